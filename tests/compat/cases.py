"""The command lines on which `instep run` must behave as `torchrun` does, as data.

Placeholders, filled in by `observe`: `{probe}` the worker script, `{here}` its folder, `{dir}` a fresh folder per node
(also the working directory), `{port}` a port free when the case starts, `{venv}` the virtual environment, `{python}`
its interpreter. Braces elsewhere (`${local_rank}`) are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PROBE = ("{probe}",)


@dataclass(frozen=True)
class Signal:
    """Sent to the launcher of every node once so many workers have reported."""

    name: str
    after_workers: int


@dataclass(frozen=True)
class Case:
    """One job: the options of each node's launcher, what they run, and what is different about it."""

    name: str
    nodes: tuple[tuple[str, ...], ...] = ((),)
    script: tuple[str, ...] = PROBE
    env: dict[str, str] = field(default_factory=dict)
    # Executable files written to {dir} first.
    files: dict[str, str] = field(default_factory=dict)
    signal: Signal | None = None
    # `run` is torchrun / instep run; `launch` is python -m torch.distributed.launch / instep launch.
    command: str = "run"
    # First torch release that knows the options used.
    since: tuple[int, int] = (2, 0)
    terminal: bool = False
    # Which node becomes group 0 is the launcher's choice: compare nodes by their position in `nodes`.
    free_order: bool = False
    # Also run against torchrun in the same test session, not only against its recorded behaviour.
    live: bool = False
    cwd: str = "{dir}"


def one(name: str, *options: str, script: tuple[str, ...] = (), **more: object) -> Case:
    """A single-node case running the probe; `script` lists only its arguments unless it names a program itself."""
    named = bool(script) and (script[0].startswith("{") or script[0] in ("probe", "probe.py"))
    return Case(name, (options,), script if named else PROBE + script, **more)  # type: ignore[arg-type]


def usage(name: str, *line: str, **more: object) -> Case:
    """A command line that never gets as far as starting a worker; `line` includes the script, if any."""
    return Case(name, (line,), (), **more)  # type: ignore[arg-type]


C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job7")
STATIC2 = ("--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port={port}")
LOGS = ("--log-dir={dir}/logs",)
PARENT_ERROR = {"TORCHELASTIC_ERROR_FILE": "{dir}/parent-error.json"}

SINGLE_NODE = [
    one("default", live=True),
    one("standalone", "--standalone", "--nproc-per-node=2"),
    one("standalone overrides endpoint and id", "--standalone", *C10D, "--nproc-per-node=2"),
    one("nproc 1", "--nproc-per-node", "1"),
    one("nproc 4 underscore", "--nproc_per_node=4"),
    one("nproc cpu", "--nproc-per-node=cpu"),
    one("nproc auto", "--nproc-per-node", "auto", env={"CUDA_VISIBLE_DEVICES": ""}),
    one("nnodes 1:1", "--nnodes=1:1", "--nproc-per-node=2"),
    one("nnodes 1", "--nnodes", "1", "--nproc_per_node", "2"),
    one("abbreviated nproc", "--nproc_per", "2"),
    one("abbreviated nproc with equals", "--nproc-per=2"),
    one("abbreviated standalone", "--stand", "--nproc-per-node=2"),
    one("abbreviated max restarts", "--max-r", "2"),
    one("option given twice", "--nproc-per-node=4", "--nproc_per_node=2"),
    one("joined short option", "-r3", *LOGS),
    one("pet nproc", env={"PET_NPROC_PER_NODE": "2"}),
    one("pet standalone on", "--nproc-per-node=2", env={"PET_STANDALONE": "1", "PET_RDZV_ID": "ignored"}),
    one("pet standalone off", *C10D, env={"PET_STANDALONE": "0"}),
    one("pet standalone off but flag given", "--standalone", *C10D, env={"PET_STANDALONE": "0"}),
    one("pet loses to command line", "--nproc-per-node=2", env={"PET_NPROC_PER_NODE": "4", "PET_ROLE": "trainer"}),
    one("pet max restarts and monitor interval", env={"PET_MAX_RESTARTS": "5", "PET_MONITOR_INTERVAL": "0.5"}),
    one("pet module", script=("probe", "x"), env={"PET_MODULE": "1", "PYTHONPATH": "{here}"}),
    one("pet log dir and tee", env={"PET_LOG_DIR": "{dir}/logs", "PET_TEE": "3"}),
    one("pet empty nproc", env={"PET_NPROC_PER_NODE": ""}),
    one("pet master port makes it static", env={"PET_MASTER_PORT": "{port}"}),
    one("role", "--role=trainer", "--nproc-per-node=2"),
    one("local addr", "--local-addr=127.0.0.1"),
    one("local addr c10d", *C10D, "--local-addr=127.0.0.1"),
    one("omp preset", "--nproc-per-node=2", env={"OMP_NUM_THREADS": "7"}),
    one("omp preset empty", "--nproc-per-node=2", env={"OMP_NUM_THREADS": ""}),
    one("nccl async handling preset", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    one("stale worker variables", env={"RANK": "9", "WORLD_SIZE": "99", "MASTER_ADDR": "elsewhere", "LOCAL_RANK": "3"}),
    one("private worker store", "--nproc-per-node=2", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    one("private worker store static", "--master-port={port}", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    one("signals to handle", "--signals-to-handle=SIGTERM,SIGUSR1", since=(2, 10)),
    one("signals to handle unknown name", "--signals-to-handle=SIGTERM,SIGWHAT", since=(2, 10)),
    one("event log handler null", "--event-log-handler=null", since=(2, 8)),
    one("event log handler unknown", "--event-log-handler=nosuch", since=(2, 8)),
    one("start method fork", "--start-method=fork"),
    one("monitor interval", "--monitor-interval=0.3"),
    one("terminal", terminal=True),
    one("virtual local rank", "--virtual-local-rank", "--nproc-per-node=2", since=(2, 10)),
    one(
        "virtual local rank with devices",
        "--virtual-local-rank",
        "--nproc-per-node=2",
        env={"CUDA_VISIBLE_DEVICES": "5, 3"},
        since=(2, 10),
    ),
    one(
        "virtual local rank with hip devices",
        "--virtual-local-rank",
        "--nproc-per-node=2",
        env={"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "6,7"},
        since=(2, 15),
    ),
    one("devices inherited", "--nproc-per-node=2", env={"CUDA_VISIBLE_DEVICES": "5,3"}),
]

RENDEZVOUS = [
    one(
        "static port",
        "--nnodes=1",
        "--nproc_per_node=2",
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        "{port}",
        "--max_restarts",
        "0",
        live=True,
    ),
    one("static port localhost", "--master-addr=localhost", "--master-port={port}"),
    one("static endpoint", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job7"),
    one("static by name", "--rdzv-backend=static", "--nproc-per-node=2"),
    one("master addr alone", "--master-addr=127.0.0.1"),
    one("static id", "--master-port={port}", "--rdzv-id=job7"),
    one("static conf timeout", "--master-port={port}", "--rdzv-conf=timeout=30"),
    one("c10d endpoint and id", *C10D, "--nproc-per-node=2"),
    one("c10d default id", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}"),
    one("c10d conf", *C10D, "--rdzv-conf=join_timeout=20, read_timeout = 15 ,is_host=true"),
    one("c10d node rank warns", *C10D, "--node-rank=0"),
    one("c10d range of nodes", *C10D, "--nnodes=1:2", "--rdzv-conf=last_call_timeout=1"),
    one("c10d ipv6 endpoint", "--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:{port}", "--rdzv-id=job7"),
    one("store address standalone", script=("do:listener",)),
    one("store address static", "--master-port={port}", script=("do:listener",)),
    one("store address c10d", *C10D, script=("do:listener",)),
    Case(
        "two nodes static",
        ((*STATIC2, "--node-rank=0"), (*STATIC2, "--node-rank=1")),
    ),
    Case(
        "two nodes static different nproc",
        (
            ("--nnodes=2", "--nproc-per-node=1", "--master-port={port}", "--node-rank=0"),
            ("--nnodes=2", "--nproc-per-node=3", "--master-port={port}", "--node-rank=1"),
        ),
    ),
    Case(
        "two nodes static roles",
        (
            ("--nnodes=2", "--nproc-per-node=2", "--master-port={port}", "--node-rank=0", "--role=trainer"),
            ("--nnodes=2", "--nproc-per-node=1", "--master-port={port}", "--node-rank=1", "--role=reader"),
        ),
    ),
    Case(
        "two nodes static both fail",
        ((*STATIC2, "--node-rank=0"), (*STATIC2, "--node-rank=1")),
        (*PROBE, "do:exit=3@3", "do:exit=4@0", "do:wait"),
    ),
    Case(
        "two nodes static SIGTERM",
        ((*STATIC2, "--node-rank=0"), (*STATIC2, "--node-rank=1")),
        (*PROBE, "do:wait"),
        signal=Signal("SIGTERM", 4),
    ),
    Case(
        "two nodes c10d",
        ((*C10D, "--nnodes=2", "--nproc-per-node=2"), (*C10D, "--nnodes=2", "--nproc-per-node=2")),
        free_order=True,
        live=True,
    ),
    Case(
        "two nodes c10d different nproc",
        ((*C10D, "--nnodes=2", "--nproc-per-node=1"), (*C10D, "--nnodes=2", "--nproc-per-node=2")),
        free_order=True,
    ),
    Case(
        "two nodes c10d roles",
        (
            (*C10D, "--nnodes=2", "--nproc-per-node=1", "--role=trainer"),
            (*C10D, "--nnodes=2", "--nproc-per-node=2", "--role=reader"),
        ),
        free_order=True,
    ),
    Case(
        "two nodes c10d local addr",
        (
            (*C10D, "--nnodes=2", "--local-addr=127.0.0.1"),
            (*C10D, "--nnodes=2", "--local-addr=127.0.0.1"),
        ),
        free_order=True,
    ),
    Case(
        "two nodes c10d restart",
        ((*C10D, "--nnodes=2", "--max-restarts=1"), (*C10D, "--nnodes=2", "--max-restarts=1")),
        (*PROBE, "do:exit=3@first"),
        free_order=True,
    ),
]

PROGRAM = [
    one("module", "-m", script=("probe", "x", "-v"), env={"PYTHONPATH": "{here}"}),
    one("module long", "--module", "--nproc-per-node=2", script=("probe",), env={"PYTHONPATH": "{here}"}),
    one("relative script", script=("probe.py", "x"), cwd="{here}"),
    one("no python", "--no-python", script=("{probe}", "x")),
    one(
        "no python found on path",
        "--no_python",
        script=("probe.py", "x"),
        env={"PATH": "{here}:{venv}/bin:/usr/bin:/bin"},
    ),
    one("no python missing program", "--no-python", script=("{dir}/nosuch",)),
    one(
        "python exec",
        env={"PYTHON_EXEC": "{dir}/wrapped-python"},
        files={"wrapped-python": '#!/bin/sh\nexport PROBE_WRAPPED=1\nexec "{python}" "$@"\n'},
    ),
    one(
        "macros",
        "--nproc-per-node=2",
        script=("--at=${local_rank}", "$local_rank", "${rank}", "$$x", "100%", "$", "a$1"),
    ),
    one("script options kept", script=("--nproc-per-node", "8", "-m", "--help", "--standalone", "-r", "3", "--x=1")),
    one("double dash before script", "--nproc-per-node=2", "--", script=("{probe}", "a", "--b")),
    one("double dash after script", script=("--", "a", "--", "--b")),
    one("empty and blank arguments", script=("", " ", "a b", "ü")),
    one("run path", "--run-path", script=("{probe}", "x")),
    one("missing script file", script=("{dir}/nosuch.py",)),
    one("missing module", "-m", script=("{dir}.nosuch",)),
]

LOGGING = [
    *(
        one(f"redirects {mask}", "-r", mask, *LOGS, "--nproc-per-node=2")
        for mask in ("0", "1", "2", "3", "0:3,1:0", "1:2")
    ),
    one("redirects long", "--redirects=3", *LOGS),
    one("redirects without log dir", "-r", "3"),
    one("tee 3", "-t", "3", *LOGS, "--nproc-per-node=2", live=True),
    one("tee 1", "--tee", "1", *LOGS, "--nproc-per-node=2"),
    one("tee per rank", "-t", "1:3", *LOGS, "--nproc-per-node=2"),
    one("tee and redirects", "-t", "0:1", "-r", "3", *LOGS, "--nproc-per-node=2"),
    one("tee with role", "-t", "3", "--role=trainer", *LOGS),
    one("tee without log dir", "-t", "3"),
    one(
        "tee unfinished line",
        "-t",
        "1",
        *LOGS,
        "--no-python",
        script=("{dir}/unfinished",),
        files={"unfinished": '#!/bin/sh\nprintf "probe: one\\nprobe: two"\n'},
    ),
    one(
        "tee and failure",
        "-t",
        "3",
        *LOGS,
        "--nproc-per-node=2",
        script=("do:out=last words@1", "do:exit=4@1", "do:wait"),
    ),
    one("log dir", *LOGS, "--nproc-per-node=2"),
    one("log dir nested", "--log_dir={dir}/a/b", "-r", "1"),
    one("log dir with id", *LOGS, *C10D, "-r", "1"),
    one("log dir null", "--log-dir=/dev/null", "--nproc-per-node=2"),
    one("log dir null with tee", "--log-dir=/dev/null", "-t", "3", "-r", "3"),
    one("log dir null and error", "--log-dir=/dev/null", script=("do:error=lost",)),
    one("local ranks filter", "--local-ranks-filter=1", "--nproc-per-node=2", since=(2, 3)),
    one(
        "local ranks filter with tee",
        "--local_ranks_filter",
        "0,2",
        "-t",
        "3",
        *LOGS,
        "--nproc-per-node=4",
        since=(2, 3),
    ),
    one(
        "local ranks filter with redirects",
        "--local-ranks-filter=0",
        "-r",
        "1",
        *LOGS,
        "--nproc-per-node=2",
        since=(2, 3),
    ),
    one(
        "prefix template option",
        "--log-line-prefix-template=<${role_name}|${local_rank}|${rank}|$hostname|${nosuch}> ",
        "-t3",
        *LOGS,
        "--nproc-per-node=2",
        since=(2, 14),
    ),
    one(
        "prefix template environment",
        "-t",
        "3",
        *LOGS,
        "--nproc-per-node=2",
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}.${rank}: "},
        since=(2, 2),
    ),
    one(
        "prefix template option wins",
        "--log-line-prefix-template=option ",
        "-t3",
        *LOGS,
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "environment "},
        since=(2, 14),
    ),
    one(
        "duplicate filters",
        "--duplicate-stdout-filters=apple,pear",
        "--duplicate-stderr-filters=fig",
        "-t",
        "3",
        *LOGS,
        "--nproc-per-node=2",
        script=("do:out=apple pie", "do:out=pears@1", "do:out=none", "do:err=fig", "do:err=apple"),
        since=(2, 10),
    ),
    one(
        "duplicate filters without tee",
        "--duplicate-stdout-filters=apple",
        "-r",
        "1",
        *LOGS,
        script=("do:out=apple",),
        since=(2, 10),
    ),
    one(
        "duplicate filters escaped comma",
        "--duplicate-stdout-filters=a,,b",
        "-t",
        "1",
        *LOGS,
        script=("do:out=a,b", "do:out=a", "do:out=b"),
        since=(2, 10),
    ),
    one(
        "duplicate filters with ranks filter",
        "--duplicate-stdout-filters=apple",
        "--local-ranks-filter=1",
        "-t",
        "1",
        *LOGS,
        "--nproc-per-node=2",
        script=("do:out=apple",),
        since=(2, 10),
    ),
    one(
        "duplicate filters with prefix",
        "--duplicate-stdout-filters=apple,x",
        "--log-line-prefix-template=x ",
        "-t",
        "1",
        *LOGS,
        script=("do:out=apple", "do:out=pear"),
        since=(2, 14),
    ),
]

FAILURES = [
    one("exit code 3", script=("do:exit=3",), live=True),
    one("one of two fails", "--nproc-per-node=2", script=("do:exit=3@1", "do:wait@0")),
    one("one of two fails the other ends well", "--nproc-per-node=2", script=("do:exit=3@1", "do:graceful@0")),
    one("killed by SIGKILL", "--nproc-per-node=2", script=("do:kill=SIGKILL@0", "do:wait@1")),
    one("killed by SIGSEGV", script=("do:kill=SIGSEGV",)),
    one("exit code 255", script=("do:exit=255",)),
    one(
        "restart recovers",
        "--max-restarts=2",
        "--nproc-per-node=2",
        *LOGS,
        "-r1",
        script=("do:exit=3@1@first", "do:wait@0@first"),
        live=True,
    ),
    one("restarts exhausted", "--max-restarts=1", *LOGS, "-t3", script=("do:exit=3",)),
    one(
        "restart static",
        "--max-restarts=1",
        "--master-port={port}",
        "--nproc-per-node=2",
        script=("do:exit=3@0@first",),
    ),
    one("restart c10d", "--max-restarts=1", *C10D, script=("do:exit=3@first",)),
    one(
        "restart private worker store",
        "--max-restarts=1",
        script=("do:exit=3@first",),
        env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
    one(
        "error file",
        "--nproc-per-node=2",
        *LOGS,
        script=("do:error=broken@1", "do:wait@0"),
        env=PARENT_ERROR,
        live=True,
    ),
    one("error file of real record", *LOGS, script=("do:record=broken",), env=PARENT_ERROR),
    one("error file older shape", *LOGS, script=("do:oldstyle=broken",), env=PARENT_ERROR),
    one("error file in temporary folder", script=("do:error=broken",), env=PARENT_ERROR),
    one("error file after recovery", "--max-restarts=1", *LOGS, script=("do:error=broken@first",), env=PARENT_ERROR),
    one("no error file to copy", script=("do:exit=3",), env=PARENT_ERROR),
    one("no error file without failure", env=PARENT_ERROR),
    one("error file with log dir null", "--log-dir=/dev/null", script=("do:error=broken",), env=PARENT_ERROR),
]

SIGNALS = [
    one("SIGTERM to launcher", "--nproc-per-node=2", script=("do:wait",), signal=Signal("SIGTERM", 2), live=True),
    one("SIGINT to launcher", "--nproc-per-node=2", script=("do:wait",), signal=Signal("SIGINT", 2)),
    one("SIGHUP to launcher", script=("do:wait",), signal=Signal("SIGHUP", 1)),
    one("SIGTERM and graceful workers", script=("do:graceful",), signal=Signal("SIGTERM", 1)),
    one("SIGTERM with restarts left", "--max-restarts=3", script=("do:wait",), signal=Signal("SIGTERM", 1)),
    one("SIGTERM and static", "--master-port={port}", script=("do:wait",), signal=Signal("SIGTERM", 1)),
    one("SIGTERM with error file", script=("do:wait",), env=PARENT_ERROR, signal=Signal("SIGTERM", 1)),
    one("SIGTERM and tee", "-t", "3", *LOGS, script=("do:wait",), signal=Signal("SIGTERM", 1)),
    one(
        "SIGUSR1 handled",
        "--signals-to-handle=SIGUSR1",
        script=("do:wait",),
        signal=Signal("SIGUSR1", 1),
        since=(2, 10),
    ),
    one("SIGUSR1 not handled", script=("do:wait",), signal=Signal("SIGUSR1", 1)),
    one(
        "SIGTERM not handled",
        "--signals-to-handle=SIGUSR1",
        script=("do:wait",),
        signal=Signal("SIGTERM", 1),
        since=(2, 10),
    ),
    one(
        "stubborn workers", "--shutdown-timeout=1", script=("do:stubborn",), signal=Signal("SIGTERM", 1), since=(2, 12)
    ),
    one(
        "stubborn workers environment",
        script=("do:stubborn",),
        signal=Signal("SIGTERM", 1),
        env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"},
        since=(2, 12),
    ),
]

LEGACY = [
    one("legacy launch", "--nproc-per-node=2", script=("{probe}", "x"), command="launch"),
    one("legacy launch use env", "--use-env", "--nproc_per_node=2", script=("{probe}", "x"), command="launch"),
    one("legacy launch use_env", "--use_env", command="launch"),
    one("legacy launch module", "-m", script=("probe", "x"), env={"PYTHONPATH": "{here}"}, command="launch"),
    one("legacy launch static", "--master_port={port}", "--nproc_per_node=2", command="launch"),
    one("legacy launch no python", "--no-python", command="launch"),
    one("legacy launch no python use env", "--no-python", "--use-env", command="launch"),
]

WRONG = [
    usage("no script"),
    usage("no script after options", "--nproc-per-node=2"),
    usage("only double dash", "--"),
    usage("unknown option", "--nosuch", "{probe}"),
    usage("unknown short option", "-z", "{probe}"),
    usage("use env is not for run", "--use-env", "{probe}"),
    usage("option without value", "--nproc-per-node"),
    usage("ambiguous abbreviation", "--rdzv", "x", "{probe}"),
    usage("ambiguous no", "--n", "2", "{probe}"),
    usage("flag with value", "--standalone=1", "{probe}"),
    usage("wrong nproc", "--nproc-per-node=many", "{probe}"),
    usage("nproc gpu without gpu", "--nproc-per-node=gpu", "{probe}", env={"CUDA_VISIBLE_DEVICES": ""}),
    usage("nproc 0", "--nproc-per-node=0", "{probe}"),
    usage("nproc negative", "--nproc-per-node=-1", "{probe}"),
    usage("nnodes 2:1", "--nnodes=2:1", "{probe}"),
    usage("nnodes 0", "--nnodes=0", "{probe}"),
    usage("nnodes text", "--nnodes=two", "{probe}"),
    usage("nnodes three parts", "--nnodes=1:2:3", "{probe}"),
    usage("wrong max restarts", "--max-restarts=x", "{probe}"),
    usage("negative max restarts", "--max-restarts=-1", "{probe}"),
    usage("wrong monitor interval", "--monitor-interval=x", "{probe}"),
    usage("wrong master port", "--master-port=x", "{probe}"),
    usage("wrong node rank", "--node-rank=x", "{probe}"),
    usage("wrong start method", "--start-method=clone", "{probe}"),
    usage("wrong backend", "--rdzv-backend=nosuch", "--rdzv-endpoint=127.0.0.1:{port}", "{probe}"),
    usage("wrong endpoint port", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:x", "{probe}"),
    usage("static endpoint without port", "--rdzv-endpoint=127.0.0.1", "{probe}"),
    usage("rdzv conf without value", "--rdzv-conf=timeout", "--master-port={port}", "{probe}"),
    usage("rdzv conf without key", "--rdzv-conf==3", "--master-port={port}", "{probe}"),
    usage("rdzv conf wrong type", *C10D, "--rdzv-conf=join_timeout=soon", "{probe}"),
    usage("wrong redirects", "-r", "5", "{probe}"),
    usage("wrong redirects map", "-r", "0:4", "{probe}"),
    usage("wrong tee", "-t", "all", "{probe}"),
    usage("wrong local ranks filter", "--local-ranks-filter=a", "{probe}", since=(2, 3)),
    usage("wrong numa binding", "--numa-binding=x", "{probe}", since=(2, 9)),
    usage("wrong shutdown timeout", "--shutdown-timeout=x", "{probe}", since=(2, 12)),
    usage("negative shutdown timeout", "--shutdown-timeout=-1", "{probe}", since=(2, 12)),
    usage("log dir is a file", "--log-dir={dir}/file", "{probe}", files={"file": ""}),
    usage("module and no python", "-m", "--no-python", "probe"),
    usage(
        "too few virtual devices",
        "--virtual-local-rank",
        "--nproc-per-node=2",
        "{probe}",
        env={"CUDA_VISIBLE_DEVICES": "0"},
        since=(2, 10),
    ),
    usage("pet flag not a number", "{probe}", env={"PET_STANDALONE": "yes"}),
    usage("pet flag empty", "{probe}", env={"PET_STANDALONE": ""}),
    usage("pet integer wrong", "{probe}", env={"PET_MAX_RESTARTS": "x"}),
    usage("pet start method wrong", "{probe}", env={"PET_START_METHOD": "clone"}),
    usage("wrong option recorded for parent", "--nnodes=2:1", "{probe}", env=PARENT_ERROR),
    usage("help", "--help"),
    usage("help after wrong value", "--nnodes=2:1", "-h"),
]

CASES: list[Case] = [*SINGLE_NODE, *RENDEZVOUS, *PROGRAM, *LOGGING, *FAILURES, *SIGNALS, *LEGACY, *WRONG]
BY_NAME = {case.name: case for case in CASES}
assert len(BY_NAME) == len(CASES), "case names must be unique"
