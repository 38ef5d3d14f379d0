"""Writes docs/reference/cli.md from what `instep COMMAND --help` prints.

    python3 scripts/reference.py              write it
    python3 scripts/reference.py --check      only say whether it is up to date: exit status 1 if not

The binary is target/quick/instep, as `make build` leaves it; `--instep PATH` names another. The help of `instep demo`
comes from the wheel in .venv, the same target's other product.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from project import ROOT, VENV, fail, say

PAGE = ROOT / "docs" / "reference" / "cli.md"
BINARY = ROOT / "target" / "quick" / "instep"
COLUMNS = 100

HEADER = """\
<!-- Generated from the binary's own help. After a change of options: make build && python3 scripts/reference.py -->

# Command line

    instep COMMAND [OPTIONS]

Options of `run` and `launch` accept dashes or underscores (`--nproc-per-node`, `--nproc_per_node`) and unique
abbreviations. If an option is repeated, the last one counts. An option overrides its `PET_…` variable, which overrides
the default. See also [environment variables](environment.md),
[rendezvous](rendezvous.md), [exit codes](exit-codes.md), and the [differences from torchrun](torchrun.md).
"""

# Commands in the order of the page, each with the sentence that stands above its help.
COMMANDS = {
    "run": "",
    "launch": (
        "For command lines written for `python -m torch.distributed.launch`. Takes every option of `instep run`.\n"
        "Without `--use-env`, the script also receives `--local-rank=N` as its first argument. It adds:"
    ),
    "drill": "Tests how a script survives failures: [machines that disappear](../guides/machines-that-disappear.md).",
    "store": "Runs until a signal stops it. The first line on stdout shows the address and the port.",
    "master": "Runs until a signal stops it. The first line on stdout shows the address and the database file.",
    "master config": "",
    "master logs": "",
    "master backup": "",
    "master copy": (
        "Passwords, kills, what is compared: "
        "[moving a database](../guides/running-a-master.md#moving-between-sqlite-and-postgresql)."
    ),
    "master restore": "",
    "up": "Returns when the master accepts requests: [running a master](../guides/running-a-master.md).",
    "down": "",
    "agent": "Runs until a signal stops it: [running experiments on your machines](../guides/cluster.md).",
    "agent token": "",
    "wrap-rank": "",
    "login": "Asks for the password on the terminal, or reads one line from stdin.",
    "logout": "",
    "whoami": "",
    "experiment": "All subcommands accept `--master` and `--json`: [runs from the shell](../guides/from-the-shell.md).",
    "experiment create": (
        "Sends the folder, up to 95 MiB, except files listed in its `.detignore` (same syntax as `.gitignore`).\n"
        "Links that leave the folder are not followed."
    ),
    "experiment fork": "",
    "experiment continue": "",
    "experiment list": "",
    "experiment metrics": "",
    "experiment logs": "`instep trial logs` takes the same options.",
    "experiment export": "`instep trial export` takes the same options.",
    "trial": "",
    "checkpoint": "",
    "checkpoint list": "",
    "checkpoint download": "",
    "checkpoint rm": "",
    "model": "",
    "workspace": "",
    "project": "",
    "user": "",
    "slot": "",
    "resource-pool": "",
    "job": "",
    "job update": "",
    "task": "",
    "command": "Runs single programs on slots: [the guide](../guides/cluster.md#single-programs).",
    "command run": "",
    "tensorboard": "",
    "tensorboard start": "",
    "notebook": "JupyterLab on slots: [the guide](../guides/cluster.md#notebooks).",
    "notebook start": "",
    "shell": "SSH on slots: [the guide](../guides/cluster.md#shells).",
    "shell start": "",
    "secret": "Configurations name secrets: [secrets](../concepts/tasks.md#secrets).",
    "secret set": "",
    "token": "What access tokens may do: [access tokens](determined.md#access-tokens).",
    "token create": "",
    "resources": "What reports count: [usage](determined.md#usage).",
    "config-policies": "What policies say: [configuration policies](determined.md#configuration-policies).",
    "task create": "Generic tasks: [what they are](determined.md#generic-tasks).",
    "template": "",
    "preview-search": "",
    "diagnose": "Cause classes, exit codes, JSON: [instep diagnose](diagnose.md).",
    "doctor": "Checks and JSON: [instep doctor](doctor.md).",
    "bench collectives": (
        "Needs the wheel and torch. Method and JSON: [instep bench](bench.md). To choose a backend, read\n"
        "[which backend](../guides/which-backend.md)."
    ),
    "demo": "Needs the wheel. Without torch, the demo trains a model in plain Python and does not search.",
    "completion": "",
}


def help_of(binary: Path, *command: str) -> str:
    """Give the help of one command, as on a terminal of fixed width and with nothing set that changes defaults."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "INSTEP_", "PYTHON"))}
    environment = clean | {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "VIRTUAL_ENV": str(VENV)}
    done = subprocess.run(
        [binary, *command, "--help"],
        env=environment,
        stdin=subprocess.DEVNULL,  # a terminal there would decide the width
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        fail(f"cannot get the help of `instep {' '.join(command)}`", cause=done.stderr.strip(), hint="run `make build`")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()) + "\n"


def entries(text: str) -> list[str]:
    """Split a help text into its options, each with its description."""
    blocks: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("-") and line.startswith("  "):
            blocks.append(line)
        elif blocks and (not line or line.startswith("          ")):
            blocks[-1] += f"\n{line}"
        elif blocks:
            blocks.append("")
    return [block.rstrip() for block in blocks if block]


def only_in(text: str, other: str) -> str:
    """Give the options of `text` that `other` lacks; both must otherwise agree."""
    known = entries(other)
    if lost := [entry for entry in known if entry not in entries(text)]:
        fail("`instep launch` lacks an option of `instep run`", cause=lost[0].strip())
    return "\n".join(entry for entry in entries(text) if entry not in known) + "\n"


def page(binary: Path) -> str:
    """Give the whole page."""
    sections = [HEADER, f"```text\n{help_of(binary)}```\n"]
    run = help_of(binary, "run")
    for command, sentence in COMMANDS.items():
        text = run if command == "run" else help_of(binary, *command.split())
        if command == "launch":
            text = only_in(text, run)
        sections += [f"## instep {command}\n", *([f"{sentence}\n"] if sentence else []), f"```text\n{text}```\n"]
    return "\n".join(sections)


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the page is stale")
    parser.add_argument("--instep", type=Path, default=BINARY, metavar="PATH", help="the binary to ask")
    options = parser.parse_args()
    if not options.instep.is_file():
        fail(f"there is no {options.instep}", hint="`make build` makes it")
    fresh = page(options.instep.absolute())
    name = PAGE.relative_to(ROOT)
    if PAGE.is_file() and PAGE.read_text() == fresh:
        say(f"{name} is up to date")
    elif options.check:
        fail(f"{name} is out of date", hint="run `python3 scripts/reference.py` and commit the page")
    else:
        PAGE.write_text(fresh)
        say(f"wrote {name}")


if __name__ == "__main__":
    main()
