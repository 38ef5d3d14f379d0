# Python, torch and instep, with the work folder mounted at /workspace. Build `make wheel` first; see docs/guides/docker.md.
#
#   docker build -t pytorch-dev .
#   docker run -it --gpus all --ipc=host -v "$(pwd)":/workspace pytorch-dev
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# What pip installs beside instep; empty for none. PIP_OPTIONS="--index-url URL" chooses another build of torch.
ARG TORCH=torch
ARG PIP_OPTIONS=

ENV VIRTUAL_ENV=/opt/venv
ENV PATH=/opt/venv/bin:${PATH}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates procps python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv ${VIRTUAL_ENV}

# Before the wheel: torch is large and changes seldom.
RUN if [ -n "${TORCH}" ]; then pip install --no-cache-dir ${PIP_OPTIONS} ${TORCH} numpy; fi

COPY dist/*.whl /opt/instep/
RUN pip install --no-cache-dir --no-deps /opt/instep/*.whl

WORKDIR /workspace
CMD ["/bin/bash"]
