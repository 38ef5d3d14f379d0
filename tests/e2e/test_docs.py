"""The documents say what the product does.

- Every command of the README and of the guides is run, page by page in order, each page in a folder of its own: the
  README here, the guides in `make soak`. One that cannot run says why. documents.py describes the marks.
- What a `console` block shows below a command is compared with what that prints. `…` stands for any text within
  a line and, alone on a line, for any lines. A command without output below it may print anything. It must end with
  status 0, unless the next command is `echo $?`.
- Every `instep run` command line in any code block is understood: checked with `--dry-run`.
- Generated and hand-kept tables are complete: options, `PET_*` variables, rendezvous settings, JSON keys.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from documents import BLOCK, Page, unfit

from conftest import ROOT, Result, Runner

PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md")] + sorted((ROOT / "docs").rglob("*.md"))
REFERENCE = ROOT / "docs" / "reference"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A few seconds on an idle machine; importing torch on one that compiles at the same time takes many times that.
PAGE_TIMEOUT_S = 150.0
GUIDE_TIMEOUT_S = 900.0
README = ROOT / "README.md"
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def as_pattern(shown: Iterable[str]) -> re.Pattern[str]:
    """Turn output as shown into a pattern: `…` is any text, and any lines where it stands alone."""
    lines = [r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n" for line in shown]
    return re.compile("".join(lines))


def carry_out(text: str, instep: Path, folder: Path, run: Runner, timeout: float) -> None:
    """Run the commands of a page, and compare what it shows."""
    # This build of the binary, and the environment with torch and the wheel.
    path = os.pathsep.join([str(instep.parent), str(ROOT / ".venv" / "bin"), os.environ["PATH"]])
    outcomes = Page(text, folder, path).run(run, timeout)
    for at, (step, printed, status) in enumerate(outcomes):
        asked = at + 1 < len(outcomes) and outcomes[at + 1][0].command == "echo $?"
        assert status == 0 or asked, f"`{step.command}` ended with {status}:\n{printed}"
        if step.shown:
            wanted = "\n".join(step.shown)
            assert as_pattern(step.shown).fullmatch(printed), f"shown:\n{wanted}\n\nprinted:\n{printed}"


def test_every_command_of_the_readme_runs(instep: Path, tmp_path: Path, run: Runner) -> None:
    carry_out(README.read_text(), instep, tmp_path, run, PAGE_TIMEOUT_S)


@pytest.mark.soak
@pytest.mark.timeout(GUIDE_TIMEOUT_S + 60)
@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_every_command_of_a_guide_runs(page: Path, instep: Path, tmp_path: Path, run: Runner) -> None:
    carry_out(page.read_text(), instep, tmp_path, run, GUIDE_TIMEOUT_S)


@pytest.mark.parametrize("page", [README, *GUIDES], ids=name_of)
def test_every_command_of_a_page_can_be_run_or_says_why_not(page: Path) -> None:
    assert unfit(page.read_text()) == []


# Pages whose console blocks stand alone, and so are also run without the rest of the page.
CONSOLE_PAGES = [page for page in PAGES if "\n```console\n" in page.read_text() and page not in (README, *GUIDES)]
CONSOLE_PAGES += [ROOT / "docs" / "guides" / name for name in ("machines-that-disappear.md", "which-backend.md")]


@pytest.mark.parametrize("page", CONSOLE_PAGES, ids=name_of)
def test_console_blocks_show_what_really_happens(page: Path, instep: Path, tmp_path: Path, run: Runner) -> None:
    kept = [block[0] for block in BLOCK.finditer(page.read_text()) if block[1] == "file" or block[3] == "console"]
    assert kept, "no console block: take the page from the list"
    carry_out("\n\n".join(kept), instep, tmp_path, run, PAGE_TIMEOUT_S)


def test_marks_of_a_page_are_read(tmp_path: Path, run: Runner) -> None:
    """The harness itself: order, files, terminals, reasons, and what it does not let through."""
    page = """<!-- file: part/one.txt -->
```text
one
```

```bash
cat part/one.txt    # a comment
word=\\
kept
```

<!-- terminal: 2, until: ready -->
```bash
echo ready
until test -e go; do sleep 0.05; done
```

<!-- not run: nobody has this program -->
```bash
no-such-program
```

```console
$ echo $word; touch go
kept
$ false
$ echo $?
1
```
"""
    outcomes = Page(page, tmp_path, os.environ["PATH"]).run(run, 60)
    printed = [(text, status) for _, text, status in outcomes]
    assert printed == [("one\n", 0), ("", 0), ("", 0), ("kept\n", 0), ("", 1), ("1\n", 0), ("", 0)]
    assert unfit(page) == []
    assert unfit(page.replace("not run: nobody has this program", "later: x")) == ["unknown mark <!-- later: … -->"]
    assert unfit("```sh\ninstep up\n```\n") == ["a block called 'sh' is not run: call it bash, console or text"]
    assert unfit("Then:\n\n    instep up --slots 4\n") == [
        "`instep up --slots 4` is indented: make it a bash or console block, so that it is run"
    ]
    with pytest.raises(AssertionError, match="`no-such-program` ended with 127"):
        carry_out("```bash\nno-such-program\n```\n", Path("instep"), tmp_path / "other", run, 60)


def test_no_page_installs_from_an_index_what_is_not_there() -> None:
    for page in PAGES:
        found = re.findall(r"pip install [^\n`]*\binstep\b(?![-/])[^\n`]*", page.read_text())
        assert found == [], f"{name_of(page)}: instep is not on PyPI; name a wheel"


def code_lines(text: str) -> list[str]:
    """The lines of all code blocks, fenced and indented, with continued lines joined and prompts removed."""
    fenced = [content for kind, content in FENCE.findall(text) if kind in ("", "bash", "console")]
    indented = re.findall(r"^    (\S.*)$", FENCE.sub("", text), re.MULTILINE)
    joined = re.sub(r"\\\n\s*", "", "\n".join([*fenced, *indented]))
    return [line.removeprefix("$ ") for line in joined.splitlines()]


def instep_commands(text: str) -> list[list[str]]:
    """The words of every command that is instep, without variables set before it."""
    found = []
    for line in code_lines(text):
        if re.match(r"(\w+=\S+ )*instep ", line) and "COMMAND" not in line:
            words = shlex.split(line, comments=True)
            found.append(words[words.index("instep") + 1 :])
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if instep_commands(page.read_text())], ids=name_of)
def test_every_command_line_is_understood(page: Path, instep: Path, python: Path, run: Runner, tmp_path: Path) -> None:
    # The file that the reader has made.
    (tmp_path / "job.token").touch(mode=0o600)
    (tmp_path / "job.token").write_text(run(instep, "job-token").expect(0).stdout)
    listed = set(re.findall(r"^  (\w+) ", help_of(instep), re.MULTILINE))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    for command, *arguments in instep_commands(page.read_text()):
        if command not in ("run", "launch"):
            if command not in listed:
                help_of(instep, command)  # fails unless it is the short name of one that is listed
            continue
        # The machine that tests need not have the GPUs of the reader's.
        arguments = [re.sub(r"^(--nproc.per.node)=gpu$", r"\1=1", argument) for argument in arguments]
        done = subprocess.run(
            [instep, command, "--dry-run", "--python", python, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        shown = shlex.join(["instep", command, *arguments])
        assert done.returncode == 0, f"{shown}\n{done.stderr}"
        # The scripts of pages are not here.
        expected = ("OMP_NUM", "does not exist")
        warnings = [line for line in done.stdout.splitlines() if line.startswith("warning")]
        wrong = [line for line in warnings if not any(words in line for words in expected)]
        assert not wrong, f"{shown}\n{wrong}"


@functools.cache
def help_of(instep: Path, *command: str) -> str:
    done = subprocess.run([instep, *command, "--help"], capture_output=True, text=True, check=True)
    return done.stdout


def test_command_line_reference_is_fresh(run: Runner, instep: Path) -> None:
    run("python3", ROOT / "scripts" / "reference.py", "--check", "--instep", instep).expect(0)


def test_options_named_in_the_reference_exist(instep: Path) -> None:
    commands = ("run", "launch", "store", "master", "up", "agent", "experiment list", "doctor", "diagnose")
    commands += ("bench collectives", "agent token create", "command run", "workspace share", "drill")
    helps = [help_of(instep, *command.split()) for command in commands]
    options = {option for text in helps for option in re.findall(r"--[a-z][a-z-]+", text)}
    options |= {"--version", "--release", "--example", "--loopback"}  # of instep itself, of cargo, of bench/wire.py
    for page in PAGES:
        if page.parent.name == "guides" or page.name in ("contributing.md", "determined.md"):
            continue  # they name options of docker, of pytest, of the example scripts and of det too
        named = re.findall(r"`[^`\n]*`", FENCE.sub("", page.read_text()))
        written = {option for code in named for option in re.findall(r"--[a-z][a-z_-]+", code)}
        unknown = {option.replace("_", "-") for option in written} - options
        assert not unknown, f"{name_of(page)}: {sorted(unknown)}"


def rust(path: str) -> str:
    """A Rust source without its tests."""
    return (ROOT / "crates" / path).read_text().partition("#[cfg(test)]")[0]


def documented(page: str, pattern: str) -> set[str]:
    """What the tables of a reference page have in their first column."""
    rows = re.findall(r"^\| (.*?) \|", (REFERENCE / page).read_text(), re.MULTILINE)
    return {found for row in rows for found in re.findall(f"`({pattern})`", row)}


def test_every_variable_of_torchrun_that_is_read_is_documented() -> None:
    sources = [path.read_text() for path in (ROOT / "crates").rglob("*.rs")]
    read = {name for text in sources for name in re.findall(r"\bPET_[A-Z_]+\b", text)}
    assert read, "no PET_ variable was found: has the code moved?"
    assert documented("environment.md", "PET_[A-Z_]+") == read


def test_every_variable_that_is_set_for_workers_is_documented() -> None:
    named = set(re.findall(r'"([A-Z][A-Z_]+[A-Z])"', rust("launch/src/workers/environment.rs")))
    assert {"RANK", "MASTER_ADDR", "OMP_NUM_THREADS"} <= named
    assert named <= documented("environment.md", "[A-Z_]+")


def test_every_rendezvous_setting_is_documented() -> None:
    [block] = re.findall(r"const KNOWN: \[&str; \d+\] = \[(.*?)\];", rust("launch/src/plan/rendezvous.rs"), re.DOTALL)
    _, _, settings = (REFERENCE / "rendezvous.md").read_text().partition("## Settings of")
    rows = set(re.findall(r"^\| `(\w+)` \|", settings.partition("\n## ")[0], re.MULTILINE))
    assert rows == set(re.findall(r'"(\w+)"', block))


def test_every_control_message_is_documented() -> None:
    source = rust("launch/src/control/messages.rs")
    for enum, heading in (("ToCoordinator", "From a launcher"), ("FromCoordinator", "From the coordinator")):
        [body] = re.findall(rf"pub enum {enum} \{{\n(.*?)^\}}", source, re.DOTALL | re.MULTILINE)
        names = re.findall(r'^    (?:#\[serde\(rename = "(\w+)"\)\]\n    )?([A-Z]\w+)', body, re.MULTILINE)
        messages = {renamed or re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for renamed, name in names}
        _, _, section = (REFERENCE / "control-protocol.md").read_text().partition(f"## {heading}\n")
        table = section.partition("\n\n`")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == messages


def keys_of_section(start: str, end: str) -> set[str]:
    _, _, section = (REFERENCE / "summary-json.md").read_text().partition(start)
    return set(re.findall(r"^\| `(\w+)` \|", section.partition(end)[0], re.MULTILINE))


def test_summaries_and_dry_runs_have_the_documented_keys(
    instep: Path, python: Path, tmp_path: Path, run: Runner
) -> None:
    summary = tmp_path / "summary.json"
    run(instep, "run", "--python", python, "--summary-json", summary, "--no-python", "false").expect(1)
    written = json.loads(summary.read_text())
    assert written.keys() == keys_of_section("## --summary-json", "A failure:")
    assert written["root_cause"].keys() == keys_of_section("A failure:", "### goodput")
    assert written["goodput"].keys() == keys_of_section("### goodput", "## --dry-run")
    dry: Result = run(instep, "run", "--python", python, "--dry-run=json", "train.py").expect(0)
    assert json.loads(dry.stdout).keys() == keys_of_section("## --dry-run=json", "\0")


def anchors(page: Path) -> set[str]:
    """The anchors of a page: of its headings, as GitHub makes them, and those set by hand."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_sections_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", FENCE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if "://" not in path:
            other = (page.parent / path).resolve() if path else page
            assert anchor in anchors(other), f"{name_of(other)} has no section #{anchor}"
