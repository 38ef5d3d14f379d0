"""Packs the wheel of a quick build, from what cargo has compiled with the tests.

maturin makes the wheel that users get, but it compiles the extension by itself, with other features of its
dependencies: minutes more, for the same module.
"""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import tomllib

from project import ROOT

TAG = "cp310-abi3-linux_x86_64"
EXECUTABLE = 0o755


def pack(extension: Path, data: Path, folder: Path) -> Path:
    """Make a wheel of the package, its compiled extension, and the data that goes beside it."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    information = f"{project['name']}-{version}.dist-info"
    wheel = folder / f"{project['name']}-{version}-{TAG}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    record = []
    with zipfile.ZipFile(wheel, "w") as archive:

        def add(name: str, content: bytes, mode: int = 0o644) -> None:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}")

        for file in files(ROOT / "python" / project["name"]):
            add(str(file.relative_to(ROOT / "python")), file.read_bytes())
        add(f"{project['name']}/_native.abi3.so", extension.read_bytes(), EXECUTABLE)
        for file in files(data):
            name = f"{project['name']}-{version}.data/{file.relative_to(data)}"
            add(name, file.read_bytes(), EXECUTABLE if "scripts" in name else 0o644)
        add(f"{information}/METADATA", metadata(project, version).encode())
        add(f"{information}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode())
        add(f"{information}/entry_points.txt", entry_points(project).encode())
        archive.writestr(f"{information}/RECORD", "\n".join([*record, f"{information}/RECORD,,", ""]))
    return wheel


def files(folder: Path) -> Iterator[Path]:
    """Find what belongs into a wheel."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
            yield file


def metadata(project: dict[str, object], version: str) -> str:
    """Describe the package as pyproject.toml does."""
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}"]
    lines += [f"Summary: {project['description']}", f"Requires-Python: {project['requires-python']}"]
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    for extra, needed in optional.items():
        lines += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {one}; extra == "{extra}"' for one in needed)]
    return "\n".join([*lines, ""])


def entry_points(project: dict[str, object]) -> str:
    """List what other packages find this one by."""
    groups = project["entry-points"]
    assert isinstance(groups, dict)
    sections = (
        "\n".join([f"[{name}]", *(f"{key} = {to}" for key, to in found.items())]) for name, found in groups.items()
    )
    return "\n\n".join([*sections, ""])
