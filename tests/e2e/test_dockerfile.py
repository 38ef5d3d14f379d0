"""The Dockerfile, performed step by step in a Debian chroot, for machines that have root but no Docker.

Debian bookworm is unpacked with debootstrap, the instructions are carried out inside with the variables Docker would
set, and a training runs in the result. Name resolution, package mirrors and certificates of this machine are lent to
the chroot, as a Docker host lends its own.

`INSTEP_TEST_BUILD_ARGS="NAME=VALUE ..."` (shell quoting) hands build arguments over, for example
`PIP_OPTIONS='--index-url URL'` for a torch without CUDA, which saves gigabytes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import string
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import ROOT

SUITE = "bookworm"
STEP_TIMEOUT_S = 1800
# Where the lent files lie inside the chroot; no instruction of the Dockerfile looks there.
LENT = Path("/run/lent")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3 * STEP_TIMEOUT_S),
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
]


@dataclass(frozen=True)
class Instruction:
    """One line of the Dockerfile, continuation lines joined."""

    name: str
    rest: str


def parse(text: str) -> list[Instruction]:
    """Split a Dockerfile into its instructions."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


@dataclass
class Image:
    """The chroot and what Docker would remember of the instructions so far."""

    root: Path
    build_arguments: dict[str, str]
    lent_variables: dict[str, str]
    base: str = ""
    command: list[str] = field(default_factory=list)
    workdir: str = "/"
    variables: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    arguments: dict[str, str] = field(default_factory=dict)

    def perform(self, instruction: Instruction) -> None:
        """Carry one instruction out; an unknown one fails, so that the test keeps up with the Dockerfile."""
        rest = instruction.rest
        match instruction.name:
            case "FROM":
                self.base = self.substitute(rest)
                self.arguments = {}  # as in Docker: arguments from before FROM end here
            case "ARG":
                name, _, default = rest.partition("=")
                self.arguments[name] = self.build_arguments.get(name, self.substitute(default))
            case "ENV":
                name, _, value = rest.partition("=")
                self.variables[name] = self.substitute(value)
            case "WORKDIR":
                self.workdir = self.substitute(rest)
                self.inside(self.workdir).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self.copy(*self.substitute(rest).split())
            case "RUN":
                self.run(["/bin/sh", "-c", rest], lent=True)
            case "CMD":
                self.command = re.findall(r'"([^"]*)"', rest)
            case other:
                pytest.fail(f"this test cannot perform {other}; teach it")

    def substitute(self, text: str) -> str:
        """Replace ${NAME} by arguments and variables."""
        return string.Template(text).substitute({**self.arguments, **self.variables})

    def inside(self, path: str | Path) -> Path:
        """Where a path of the image lies on this machine."""
        return self.root / str(path).lstrip("/")

    def copy(self, pattern: str, target: str) -> None:
        """Copy files of the build context, those that .dockerignore leaves in it."""
        allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        assert pattern in allowed, f"{pattern} is kept out of the build context by .dockerignore"
        found = sorted(ROOT.glob(pattern))
        assert found, f"nothing matches {pattern}; run `make wheel` first"
        assert target.endswith("/"), "several files can only be copied into a folder"
        folder = self.inside(target)
        folder.mkdir(parents=True, exist_ok=True)
        for file in found:
            shutil.copy(file, folder)

    def run(self, words: list[str], *, lent: bool = False) -> str:
        """Run a command in the image and give its output; what is mounted for it goes away with it."""
        variables = {**self.variables, "HOME": "/root"}
        if lent:
            variables |= {**self.arguments, **self.lent_variables}
        mounts = (
            f"mount --rbind /dev {shlex.quote(str(self.inside('/dev')))} && "
            f"mount -t proc proc {shlex.quote(str(self.inside('/proc')))} && "
            f'exec chroot {shlex.quote(str(self.root))} /usr/bin/env --ignore-environment --chdir="$0" "$@"'
        )
        assignments = [f"{name}={value}" for name, value in variables.items()]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mounts, self.workdir, *assignments, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(words)}\nended with status {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout


def install_debootstrap() -> None:
    """Install it where it is missing, as a contributor would."""
    if shutil.which("debootstrap") is None:
        subprocess.run(["apt-get", "update", "-q"], check=True, timeout=300)
        subprocess.run(["apt-get", "install", "-qy", "--no-install-recommends", "debootstrap"], check=True, timeout=300)


def debian_mirror() -> str | None:
    """The mirror this machine itself installs from, if it runs the same suite."""
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.sources")]
    for text in (file.read_text() for file in lists if file.is_file()):
        found = re.search(rf"^URIs:\s*(\S+/debian/?)\s+Suites:.*\b{SUITE}\b", text, re.MULTILINE) or re.search(
            rf"^deb\s+(?:\[.*?\]\s+)?(\S+/debian/?)\s+{SUITE}\b", text, re.MULTILINE
        )
        if found:
            return found[1]
    return None


def lend(root: Path) -> dict[str, str]:
    """Let the chroot use this machine's network settings; give the variables that say where they are."""
    folder = root / LENT.relative_to("/")
    folder.mkdir(parents=True)
    for name in ("resolv.conf", "hosts"):  # Docker writes both; without the second not even localhost resolves
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    for source in Path("/etc/apt/apt.conf.d").glob("*"):
        # Rules about valid dates and proxies belong to the mirror; rules about docs and cleaning do not matter here.
        if "Acquire::" in source.read_text(errors="replace"):
            shutil.copy(source, root / "etc" / "apt" / "apt.conf.d")
    variables = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    variables |= {name: os.environ[name] for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL") if name in os.environ}
    for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if os.environ.get(name):
            shutil.copy(os.environ[name], folder / "certificates.crt")
            variables[name] = str(LENT / "certificates.crt")
    home = Path.home()
    for settings in (home / ".config" / "pip" / "pip.conf", home / ".pip" / "pip.conf", Path("/etc/pip.conf")):
        if settings.is_file():
            shutil.copy(settings, folder / "pip.conf")
            variables["PIP_CONFIG_FILE"] = str(LENT / "pip.conf")
            break
    return variables


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image that `docker build` would make, as a folder."""
    install_debootstrap()
    root = tmp_path_factory.mktemp("image") / "root"
    mirror = debian_mirror()
    command = ["debootstrap", "--variant=minbase", SUITE, str(root), *([mirror] if mirror else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    arguments = dict(word.split("=", 1) for word in shlex.split(os.environ.get("INSTEP_TEST_BUILD_ARGS", "")))
    image = Image(root, build_arguments=arguments, lent_variables=lend(root))
    for instruction in parse((ROOT / "Dockerfile").read_text()):
        image.perform(instruction)
    # What `docker run -v $(pwd):/workspace` would show.
    shutil.copytree(ROOT / "examples", image.inside("/workspace/examples"))
    yield image
    shutil.rmtree(root)


def test_base_is_a_debian_and_the_shell_starts_in_the_work_folder(image: Image) -> None:
    assert image.base == f"debian:{SUITE}-slim"
    assert image.workdir == "/workspace"
    assert image.command == ["/bin/bash"]
    assert image.run([*image.command, "-c", "pwd"]) == "/workspace\n"


def test_demo_runs_in_the_image(image: Image) -> None:
    shown = image.run(["instep", "demo"])
    assert "resumed from the snapshot at epoch 6" in shown
    if image.arguments["TORCH"]:
        assert "training a small MLP with torch on 4 CPU ranks" in shown


def test_launcher_example_trains_in_the_image(image: Image) -> None:
    if not image.arguments["TORCH"]:
        pytest.skip("built without torch")
    command = "instep run --standalone --nproc_per_node 2 examples/ddp/multigpu_torchrun.py 2 1"
    shown = image.run(shlex.split(command))
    assert "[GPU1] Epoch 1 | Batchsize: 32 | Steps: 32" in shown
    assert "Epoch 1 | Training snapshot saved at snapshot.pt" in shown
    assert image.inside("/workspace/snapshot.pt").is_file()
