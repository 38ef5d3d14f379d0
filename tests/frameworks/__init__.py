"""Frameworks that choose gloo themselves, under `instep run --replace-gloo`; gloo's own result is the oracle."""
