"""Runs Determined's own end-to-end tests, from a copy of its repository, against `instep master`.

    .venv/bin/python scripts/determined_tests.py COPY --python CLIENT/bin/python [FILE ...]
    .venv/bin/python scripts/determined_tests.py COPY --python CLIENT/bin/python --agents 2 [FILE ...]
    .venv/bin/python scripts/determined_tests.py COPY --python CLIENT/bin/python --roles [FILE ...]

COPY is a checkout of github.com/determined-ai/determined at 0.38.1: its e2e_tests, examples, master/static and harness.
CLIENT is an environment with `determined` 0.38.1, torch, pytest, pytest-timeout and what its requirements.txt
names beside them; tasks run with it too. Each file of tests meets a master of its own. Outcomes are kept by node id in
--results, where a later run replaces those of the tests that it ran again; --table writes them for people.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

# Marks of the tests that need neither Docker, GPUs, another scheduler nor Determined's own developers' cluster.
ONE_AGENT = ("e2e_cpu", "e2e_cpu_elastic")
TWO_AGENTS = ("e2e_cpu_2a",)
WITH_ROLES = ("e2e_cpu_rbac", "test_model_registry_rbac")


def wait_for_agents(address: str, count: int) -> None:
    """Wait until the master knows its agents."""
    login = json.dumps({"username": "admin", "password": "", "isHashed": False}).encode()
    for _ in range(300):
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"{address}/api/v1/auth/login", data=login) as answer:
                token = json.load(answer)["token"]
            request = urllib.request.Request(f"{address}/api/v1/agents", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request) as answer:
                if len(json.load(answer)["agents"]) == count:
                    return
        time.sleep(0.1)
    sys.exit("the agents did not come; see the logs of the master and the agents")


@contextlib.contextmanager
def cluster(words: argparse.Namespace, folder: Path) -> Iterator[None]:
    """A master with an empty database, and its agents."""
    address = f"http://127.0.0.1:{words.port}"
    environment = {**os.environ, "HOME": str(folder), "DET_DEBUG_CONFIG_PATH": str(folder), "DET_MASTER": address}
    master = [words.instep, "master", "--port", str(words.port), "--db", str(folder / "master.db")]
    master += ["--webhooks-private-addresses", *(["--roles"] if words.roles else [])]
    agent = [
        words.instep,
        "agent",
        "--master",
        address,
        "--slots",
        str(words.slots),
        "--python",
        words.python,
        "--stop-tasks",
    ]
    agent += ["--default-user", "root"] if os.geteuid() == 0 else ["--shared-uid"]
    names = [f"agent{number}" for number in range(1, words.agents + 1)]
    agents = {name: [*agent, "--name", name, "--state-folder", str(folder / name)] for name in names}
    with contextlib.ExitStack() as stack:
        for name, command in {"master": master, **agents}.items():
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)
            if name == "master":
                wait_for_agents(address, 0)
        wait_for_agents(address, words.agents)
        yield


def outcomes(report: Path) -> dict[str, dict[str, str]]:
    """Read pytest's report: outcome and reason by node id."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file, _, group = case.get("classname", "").partition(".Test")
        test = "::".join([f"Test{group}"] * bool(group) + [case.get("name", "")])
        outcome, reason = "passed", ""
        for kind, name in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            for part in case.iter(kind):
                text = re.sub(r"\x1b\[[0-9;]*m", "", part.get("message", ""))
                outcome, reason = name, " ".join(text.split())[:300]
        found[f"{file.replace('.', '/')}.py::{test}"] = {"outcome": outcome, "reason": reason}
    return found


def run_file(words: argparse.Namespace, tests: Path, file: str) -> dict[str, dict[str, str]]:
    """Run one file of tests against a cluster of its own."""
    for_agents = ONE_AGENT if words.agents == 1 else TWO_AGENTS
    marks = " or ".join([*WITH_ROLES, *for_agents] if words.roles else for_agents)
    folder = Path(tempfile.mkdtemp(prefix="determined-e2e-"))
    # Tasks of other users work below it.
    folder.chmod(0o755)
    report = folder / "report.xml"
    command = [words.python, "-m", "pytest", file, "-m", marks]
    command += ["--master-host", "127.0.0.1", "--master-port", str(words.port), "--no-compare-stats"]
    command += ["-q", f"--timeout={words.limit}", f"--junitxml={report}", "-o", "junit_logging=no"]
    command += ["-k", words.only] if words.only else []
    environment = {
        **os.environ,
        "DET_MASTER": f"http://127.0.0.1:{words.port}",
        "DET_DEBUG_CONFIG_PATH": str(folder / "client"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PATH": f"{Path(words.python).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with cluster(words, folder), (folder / "pytest.log").open("w") as log:
        process = subprocess.Popen(command, cwd=tests, env=environment, stdout=log, stderr=subprocess.STDOUT)
        # Threads that a failed test has left would keep pytest from ending: the report is the last thing it writes.
        while process.poll() is None and not report.exists():
            time.sleep(0.5)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
    print(f"{file}: logs in {folder}", flush=True)
    return outcomes(report) if report.exists() else {}


def write_table(path: Path, results: dict[str, dict[str, str]]) -> None:
    """Write the outcomes for people."""
    counts = Counter(result["outcome"] for result in results.values())
    lines = [", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())), ""]
    lines += ["| test | outcome | reason |", "|---|---|---|"]
    for name, result in sorted(results.items()):
        reason = result["reason"].replace("|", "\\|")
        lines.append(f"| `{name}` | {result['outcome']} | {reason} |")
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("copy", type=Path)
    parser.add_argument("files", nargs="*", help="such as tests/cluster/test_users.py; all without")
    parser.add_argument("--python", required=True)
    parser.add_argument("--instep", default=str(Path(sys.executable).with_name("instep")))
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--slots", type=int, default=1, help="slots of each agent")
    parser.add_argument("--agents", type=int, default=1, help="2: run the tests that want two")
    parser.add_argument("--limit", type=int, default=120, help="seconds for each test")
    parser.add_argument("--only", help="like pytest's -k")
    parser.add_argument("--roles", action="store_true", help="run the tests of roles too, on a master with roles")
    parser.add_argument("--results", type=Path, default=Path("results.json"))
    parser.add_argument("--table", type=Path, default=Path("results.md"))
    words = parser.parse_intermixed_args()
    # Told to end, it takes the master and the agents with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    tests = words.copy / "e2e_tests"
    for file in words.files or sorted(str(path.relative_to(tests)) for path in tests.glob("tests/**/test_*.py")):
        fresh = run_file(words, tests, file)
        results = json.loads(words.results.read_text()) if words.results.exists() else {}
        results.update(fresh)
        words.results.write_text(json.dumps(results, indent=1, sort_keys=True))
        write_table(words.table, results)
        print(", ".join(f"{n} {o}" for o, n in Counter(r["outcome"] for r in fresh.values()).items()), flush=True)


if __name__ == "__main__":
    main()
