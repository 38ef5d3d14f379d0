"""What a script sees when something is wrong: no master, a wrong one, one that is killed, contradictions, a bad end."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import Runner, WaitUntil
from detached.conftest import Client, Master
from detached.test_scripts import rows

from .conftest import SCRIPTS

Settings = dict[str, str | None]


def test_every_report_is_there_once_after_the_master_was_killed(
    run: Runner, python: Path, settings: Settings, master: Master, api: Client, wait_until: WaitUntil, tmp_path: Path
) -> None:
    steps = 1500
    signal = tmp_path / "end"
    script = run.start(python, "-u", SCRIPTS / "steady.py", str(steps), signal, env=settings)

    def reported() -> int:
        return int(api("GET", "/api/v1/trials/1")["trial"]["totalBatchesProcessed"])

    wait_until(lambda: "line 50" in script.stdout, 60, "the script to report")
    for goal in (200, 500, 800):
        wait_until(lambda goal=goal: f"line {goal}\n" in script.stdout, 60, "the script to report")
        master.kill()
        master.start(wait_until)
    wait_until(lambda: f"line {steps - 1}\n" in script.stdout, 60, "the script's last report")
    # It ends while the master is away, and still delivers.
    master.kill()
    signal.touch()
    master.start(wait_until)
    done = script.wait().expect(0)
    assert "not delivered" not in done.stderr
    assert reported() == steps
    trial = api("GET", "/api/v1/trials/1")["trial"]
    assert trial["state"] == "STATE_COMPLETED"
    assert rows(api, 1, "training") == {step: {"value": step} for step in range(steps)}
    found = [
        row
        for element in api.lines("/api/v1/trials/metrics/trial_metrics?trialIds=1&group=other")
        for row in element["metrics"]
    ]
    assert [row["totalBatches"] for row in found] == list(range(steps))
    lines = [line["log"] for line in api.lines("/api/v1/trials/1/logs") if line["log"].startswith("line")]
    assert lines == [f"line {step}\n" for step in range(steps)]


def test_a_script_waits_once_for_a_master_that_does_not_come_back(
    run: Runner, python: Path, settings: Settings, master: Master
) -> None:
    code = """
import os, signal, sys
import instep.core
from instep.core import _context
_context.FLUSH_S = 1.0
with instep.core.init() as context:
    os.kill(int(sys.argv[1]), signal.SIGKILL)
    context.train.report_training_metrics(1, {"loss": 0.5})
"""
    done = run(python, "-c", code, str(master.process.pid), env=settings).expect(0)
    assert "were not delivered within 1 s" in done.stderr, done
    assert "the end of trial 1 was not recorded either" in done.stderr, done
    assert done.seconds < 20, "calls beside reports are tried for 30 s"


def python_code(run: Runner, python: Path, settings: Settings, *lines: str, status: int = 0) -> tuple[str, str]:
    done = run(python, "-c", "\n".join(("import instep.core", *lines)), env=settings).expect(status)
    return done.stdout, done.stderr


def test_without_a_master_the_script_runs_alone(run: Runner, python: Path, settings: Settings, tmp_path: Path) -> None:
    alone = {**settings, "INSTEP_MASTER": None}
    lines = (
        f"with instep.core.init(checkpoint_storage={str(tmp_path / 'storage')!r}) as context:",
        "    context.train.report_training_metrics(1, {'loss': 1.0})",
        "    context.train.report_progress(0.5)",
        "    assert not context.preempt.should_preempt()",
        "    assert context.info is None",
        "    with context.checkpoint.store_path({'steps_completed': 7}) as (path, uuid):",
        "        (path / 'model').write_text('x')",
        "    assert context.checkpoint.get_metadata(uuid) == {'steps_completed': 7}",
        "    with context.checkpoint.restore_path(uuid) as path:",
        "        assert (path / 'model').read_text() == 'x'",
        "    context.checkpoint.download(uuid, path.parent / 'copy')",
        "    again = context.checkpoint.upload(path.parent / 'copy', {'steps_completed': 8})",
        "    context.checkpoint.delete(uuid)",
        "    for operation in context.searcher.operations():",
        "        operation.report_completed(1.0)",
        "    print(again)",
    )
    stdout, stderr = python_code(run, python, alone, *lines)
    assert stderr.count("not recorded") == 1
    names = {path.name for path in (tmp_path / "storage").iterdir()}
    assert names == {"copy", stdout.strip()}
    assert (tmp_path / "storage" / stdout.strip() / "model").read_text() == "x"


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Answer whatever comes with the same bytes; gives the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_master_that_cannot_be_reached_is_an_error_with_a_hint(run: Runner, python: Path, settings: Settings) -> None:
    for variable in ("INSTEP_MASTER", "DET_MASTER"):
        environment = {**settings, "INSTEP_MASTER": None, variable: "127.0.0.1:1"}
        _, stderr = python_code(run, python, environment, "instep.core.init()", status=1)
        assert "MasterUnreachable: cannot reach the master at http://127.0.0.1:1" in stderr
        assert f"hint: {variable} is '127.0.0.1:1'; start a master there with `instep up --port 1`" in stderr
        assert "During handling" not in stderr and "direct cause" not in stderr, "one traceback is enough"
    others = (
        # An alert of TLS: this master encrypts connections.
        ("http", b"\x15\x03\x01\x00\x02\x02\x0a", "its address begins with https://"),
        ("https", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "its address begins with http://"),
        ("http", b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "name another master, or unset"),
    )
    typo = {**settings, "INSTEP_MASTER": "http//localhost:1"}
    _, stderr = python_code(run, python, typo, "instep.core.init()", status=1)
    assert "INSTEP_MASTER: `http//localhost:1` is not the address of a master" in stderr
    assert stderr.endswith("\nhint: set it to an address such as http://127.0.0.1:8080\n"), stderr
    for scheme, answer, hint in others:
        with answering(answer) as port:
            environment = {**settings, "INSTEP_MASTER": f"{scheme}://127.0.0.1:{port}"}
            _, stderr = python_code(run, python, environment, "instep.core.init()", status=1)
        assert stderr.count("hint: ") == 1 and hint in stderr and "instep up" not in stderr, stderr
    wrong = {**settings, "DET_USER": "nobody", "DET_PASS": "x"}
    _, stderr = python_code(run, python, wrong, "instep.core.init()", status=1)
    assert "cannot log in" in stderr
    assert "hint:" in stderr


def test_what_the_master_refuses_is_said_and_the_rest_is_stored(
    run: Runner, python: Path, settings: Settings, api: Client
) -> None:
    lines = (
        "import logging; logging.basicConfig()",
        "with instep.core.init() as context:",
        "    report = context.train.report_training_metrics",
        "    report(1, {'a': 1, 'nan': float('nan'), 'text': 'ü\"\\n', 'list': [1, (2,)], 'big': 1 << 70})",
        "    report(1, {'a': 2})",
        "    report(2, {'a': True})",
        "    for wrong in ({'a': None}, {'a': object()}, {'a': b'x'}):",
        "        try: report(3, wrong)",
        "        except (TypeError, ValueError) as error: print(error)",
    )
    stdout, stderr = python_code(run, python, settings, *lines)
    assert stdout.count("the metric `a`") == 3
    assert "refused a report: overwriting existing metric keys is not supported, conflicting key: a" in stderr
    found = rows(api, 1, "training")
    assert sorted(found) == [1, 2]
    assert {**found[1], "big": 0} == {"a": 1, "nan": "NaN", "text": 'ü"\n', "list": [1, [2]], "big": 0}
    assert found[2] == {"a": True}


def test_the_way_a_script_ends_is_the_state_of_its_trial(
    run: Runner, python: Path, settings: Settings, api: Client
) -> None:
    begin = "from instep.experimental import core_v2; core_v2.init(config=core_v2.Config(name='x'))"
    cases = (
        ("raise RuntimeError('as planned')", 1, "ERROR"),
        ("import sys; sys.exit(3)", 3, "ERROR"),
        ("import sys; sys.exit(0)", 0, "COMPLETED"),
        ("pass", 0, "COMPLETED"),
    )
    for number, (code, status, state) in enumerate(cases, start=1):
        run(python, "-c", f"{begin}\n{code}", env=settings).expect(status)
        assert api("GET", f"/api/v1/trials/{number}")["trial"]["state"] == f"STATE_{state}", code
    [line] = [line for line in api.lines("/api/v1/trials/1/logs") if "as planned" in line["log"]]
    assert (line["stdtype"], line["rankId"]) == ("stderr", 0)


def test_an_error_within_the_block_is_in_the_log_of_its_trial(
    run: Runner, python: Path, settings: Settings, api: Client
) -> None:
    script = "import instep.core, sys\nwith instep.core.init():\n    print('hello')\n    {}"
    boom = run(python, "-c", script.format("raise RuntimeError('boom')"), env=settings).expect(1)
    run(python, "-c", script.format("sys.exit('no data')"), env=settings).expect(1)
    run(python, "-c", script.format("sys.exit(3)"), env=settings).expect(3)

    def log(trial: int) -> list[tuple[str, str]]:
        lines = list(api.lines(f"/api/v1/trials/{trial}/logs"))
        assert api("GET", f"/api/v1/trials/{trial}")["trial"]["state"] == "STATE_ERROR"
        return [(line["stdtype"], line["log"].rstrip("\n")) for line in lines]

    assert ("stderr", "Traceback (most recent call last):") in log(1)
    assert ("stderr", "RuntimeError: boom") in log(1)
    assert boom.stderr.count("RuntimeError: boom") == 1, "the terminal is told by Python"
    assert ("stderr", "no data") in log(2) and ("stdout", "hello") in log(2)
    assert log(3) == [("stdout", "hello")]


def test_a_forked_process_neither_reports_nor_ends_the_trial(
    run: Runner, python: Path, settings: Settings, api: Client
) -> None:
    lines = (
        "import os, sys",
        "with instep.core.init() as context:",
        "    child = os.fork()",
        "    if child == 0:",
        "        print('from the child')",
        "        try: context.train.report_training_metrics(1, {'a': 1})",
        "        except RuntimeError as error: print(error)",
        "        context.close()",
        "        sys.stdout.flush(); os._exit(0)",
        "    os.waitpid(child, 0)",
        "    print(context._tracking.call('GET', '/api/v1/trials/1')['trial']['state'])",
    )
    stdout, _ = python_code(run, python, settings, *lines)
    assert "forked from the reporting one" in stdout
    assert "STATE_RUNNING" in stdout
    assert rows(api, 1, "training") == {}
    assert [line["log"] for line in api.lines("/api/v1/trials/1/logs")] == ["STATE_RUNNING\n"]


def test_damage_is_noticed_when_a_checkpoint_is_restored(
    run: Runner, python: Path, settings: Settings, tmp_path: Path
) -> None:
    lines = (
        f"context = instep.core.init(checkpoint_storage={str(tmp_path / 'storage')!r})",
        "with context.checkpoint.store_path({'steps_completed': 7}) as (path, uuid):",
        "    (path / 'model').write_text('right')",
        "with context.checkpoint.restore_path(uuid) as path:",
        "    (path / 'model').write_text('wrong')",
        "try:",
        "    with context.checkpoint.restore_path(uuid): pass",
        "except RuntimeError as error: print(error)",
        "try:",
        "    with context.checkpoint.store_path({}) as (path, uuid): pass",
        "except ValueError as error: print(error)",
    )
    stdout, _ = python_code(run, python, {**settings, "INSTEP_MASTER": None}, *lines)
    assert "`model` of checkpoint" in stdout
    assert "its content has changed" in stdout
    assert "steps_completed, a whole number" in stdout


def test_profiling_is_known_by_time(run: Runner, python: Path, settings: Settings, api: Client) -> None:
    lines = (
        "import time",
        "with instep.core.init() as context:",
        "    context.profiler.off(); context.profiler.on(sampling_interval=0.2)",
        "    time.sleep(1)",
    )
    python_code(run, python, settings, *lines)
    for group, name in (("cpu", "cpu_util"), ("memory", "memory_used_gib")):
        path = f"/api/v1/trials/metrics/trial_metrics?trialIds=1&group={group}"
        found = [row for element in api.lines(path) for row in element["metrics"]]
        assert found, group
        assert all(row["metrics"]["avg_metrics"][name] >= 0 for row in found), json.dumps(found)


def test_importing_is_cheap(run: Runner, python: Path) -> None:
    code = (
        "import sys, instep\n"
        "assert 'torch' not in sys.modules and 'instep._native' not in sys.modules\n"
        "assert instep.get_cluster_info() is None and '%(levelname)s' in instep.LOG_FORMAT\n"
        "import instep.core\n"
        "assert 'torch' not in sys.modules\n"
    )
    run(python, "-c", code).expect(0)
