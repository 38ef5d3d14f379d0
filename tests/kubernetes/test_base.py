"""What `deploy/kubernetes` ships, as far as it can be checked without a cluster."""

from __future__ import annotations

from pathlib import Path

from conftest import ROOT, Runner

BASE = ROOT / "deploy" / "kubernetes"


def test_shipped_settings_are_valid(run: Runner, instep: Path) -> None:
    settings = BASE / "settings.yaml"
    said = run(instep, "master", "config", "show", "--config", settings).expect(0).stdout
    assert "registry.example.org/instep:latest" in said, said
    run(instep, "master", "config", "check", "--config", settings).expect(0)


def test_all_files_are_used() -> None:
    named = (BASE / "kustomization.yaml").read_text()
    unused = [path.name for path in BASE.iterdir() if path.name != "kustomization.yaml" and path.name not in named]
    assert unused == []
