"""Checks that the wheel runs where its name says: every ELF file in it needs nothing newer than glibc 2.28.

    python3 scripts/audit.py dist/*.whl

maturin checks the extension module; this also checks the binary that travels as a script, and which
libraries both load.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from project import fail

OLDEST_GLIBC = "2.28"
# Part of glibc on every machine, or of its compiler's runtime, as manylinux allows.
ALLOWED_LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|libresolv|librt|libutil|libgcc_s|ld-linux-x86-64)\.so\.\d")


@dataclass(frozen=True)
class Needs:
    """What one ELF file asks of the machine it runs on."""

    name: str
    glibc: tuple[int, ...]
    libraries: tuple[str, ...]

    def problems(self) -> list[str]:
        """Say what would stop this file from loading on the oldest machine we promise."""
        found = []
        if self.glibc > parse_version(OLDEST_GLIBC):
            found.append(f"{self.name} needs glibc {'.'.join(map(str, self.glibc))}, newer than {OLDEST_GLIBC}")
        for library in self.libraries:
            if not ALLOWED_LIBRARIES.fullmatch(library):
                found.append(f"{self.name} loads {library}, which is not on every machine")
        return found


def parse_version(text: str) -> tuple[int, ...]:
    """Turn `2.28` into something that can be compared."""
    return tuple(int(part) for part in text.split("."))


def needs(file: Path, name: str) -> Needs:
    """Read the symbol versions and libraries that an ELF file asks for."""
    versions = readelf("--version-info", file)
    dynamic = readelf("--dynamic", file)
    glibc = [parse_version(found) for found in re.findall(r"Name: GLIBC_([\d.]+)", versions)]
    libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    return Needs(name, max(glibc, default=(0,)), tuple(libraries))


def readelf(option: str, file: Path) -> str:
    """Run binutils' readelf."""
    return subprocess.run(["readelf", "--wide", option, str(file)], capture_output=True, text=True, check=True).stdout


def elf_needs(wheel: Path) -> list[Needs]:
    """Read what each ELF file in a wheel needs."""
    found = []
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for name in archive.namelist():
            content = archive.read(name)
            if content.startswith(b"\x7fELF"):
                file = Path(folder, "elf")
                file.write_bytes(content)
                found.append(needs(file, name))
    return found


def check_wheel(wheel: Path) -> list[Needs]:
    """End the script unless the wheel holds the extension and the binary, both fit for the oldest machine promised."""
    if not wheel.is_file():
        fail(f"there is no {wheel}", hint="`make wheel` builds it")
    found = elf_needs(wheel)
    problems = [problem for needed in found for problem in needed.problems()]
    names = [needed.name for needed in found]
    for wanted in ("instep/_native.abi3.so", ".data/scripts/instep"):
        if not any(name.endswith(wanted) for name in names):
            problems.append(f"no {wanted} in it")
    if f"-manylinux_{OLDEST_GLIBC.replace('.', '_')}_x86_64." not in wheel.name:
        problems.append("its name does not promise that")
    if problems:
        fail(
            f"{wheel.name} would not run on glibc {OLDEST_GLIBC}",
            cause="; ".join(problems),
            hint="look for a new dependency that links a system library, or a compiler other than zig",
        )
    return found


if __name__ == "__main__":
    if len(sys.argv) < 2:
        fail("no wheel given", hint="python3 scripts/audit.py dist/*.whl", status=2)
    for argument in sys.argv[1:]:
        for needed in check_wheel(Path(argument)):
            print(f"{needed.name}: glibc {'.'.join(map(str, needed.glibc))}, loads {', '.join(needed.libraries)}")
