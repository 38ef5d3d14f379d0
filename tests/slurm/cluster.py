"""A Slurm cluster of one's own: real daemons on this machine, a controller and several nodes.

    with SlurmCluster(folder) as slurm:
        slurm.command("sinfo")                                            # any of Slurm's commands, to its end
        job = slurm.submit("srun hostname", "--nodes=4")                  # sbatch, of a shell script
        slurm.wait_for(job, "COMPLETED")                                  # or what became of it, with its output
        slurm.nodes["n2"].send_signal(signal.SIGKILL)                     # its daemon dies, its jobs run on
        slurm.start_node("n2")

Everything is in `folder`, on free ports and with a munged of its own, so clusters of several tests run side by side.
There are no control groups unless a test asks for `proctrack/cgroup`, no accounting database, no prolog. Programs find
the cluster by `SLURM_CONF`, which is in `slurm.environment`; every process of the cluster and of its jobs carries it,
and none outlives the cluster.

Each node has an address of its own in 127.0.0.0/8, and the names of all nodes resolve by a hosts file that nodes alone
see, in a mount namespace; this needs root. They share all else: files, process ids, processors, the host name.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
import pytest

from conftest import Result, Runner, Running
from ports import free_ports

# All is up within two seconds on an idle machine; this is for one that runs three other suites.
START_TIMEOUT_S = 60.0
JOB_TIMEOUT_S = 90.0
# Where a job ends. PREEMPTED and the like are Slurm's; a job that is requeued is PENDING again.
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
# Where the groups of `proctrack/cgroup` are: control groups of version 1, of which a cluster leaves none.
FREEZER = Path("/sys/fs/cgroup/freezer")
CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"
ONE_PARTITION = ("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP",)

CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=10000,bf_interval=1,batch_sched_delay=0
PriorityType=priority/basic
FirstJobId={first_job}
JobRequeue=0
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MinJobAge=3600
GresTypes=gpu
"""


class SlurmCluster:
    """A controller and nodes n1, n2, …, each with as many processors and GPUs as you say, not as there are.

    `partitions` and `options` are lines of slurm.conf, such as `PreemptType=preempt/partition_prio`; an option given
    here replaces the one above.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 4,
        cpus: int = 8,
        gpus: int = 4,
        partitions: Sequence[str] = ONE_PARTITION,
        options: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.addresses = {f"n{number}": f"127.77.0.{number}" for number in range(1, nodes + 1)}
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        # The daemons that were started last; a test may kill them and start them again.
        self.nodes: dict[str, Running] = {}
        self.controller: Running | None = None
        self._run = Runner()
        self._cpus, self._gpus = cpus, gpus
        self._partitions, self._options = partitions, options

    def __enter__(self) -> SlurmCluster:
        """Start the daemons and wait until all nodes are idle."""
        for command in ("munged", "slurmctld", "slurmd", "srun", "unshare"):
            if not shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
                pytest.fail(f"there is no {command}\nhint: python3 scripts/system.py test", pytrace=False)
        if os.geteuid() != 0:
            pytest.skip("a Slurm cluster with several nodes on one machine needs root")
        try:
            self._write_files()
            self._start_munged()
            self.start_controller()
            for name in self.addresses:
                self.start_node(name)
            self._wait(self._all_idle, "all nodes to be idle")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all of it."""
        self.stop()

    def start_controller(self) -> None:
        """Start slurmctld, also after it was killed: it knows the jobs that it had saved."""
        self.controller = self._run.start(daemon("slurmctld"), "-D", env=self.environment)
        self._wait(lambda: self._try("scontrol", "ping").status == 0, "slurmctld to answer")

    def start_node(self, name: str) -> None:
        """Start a node's slurmd, also after it was killed."""
        # The shell becomes slurmd, which is therefore the process that a test can kill.
        inside = f'mount --bind "{self.folder}/hosts" /etc/hosts && exec {daemon("slurmd")} -D -N {name}'
        words = ("unshare", "--mount", "sh", "-c", inside)
        self.nodes[name] = self._run.start(*words, env=self.environment, cwd=self.folder / name)

    def command(self, *words: str | Path, env: Mapping[str, str | None] | None = None) -> str:
        """Run one of Slurm's commands to its end and give what it printed; it must succeed."""
        __tracebackhide__ = True
        return self._try(*words, env=env).expect(0).stdout.strip()

    def start(self, *words: str | Path, env: Mapping[str, str | None] | None = None) -> Running:
        """Start one of Slurm's commands, such as an srun outside any job."""
        return self._run.start(*words, env={**self.environment, **(env or {})})

    def submit(self, script: str, *options: str, env: Mapping[str, str | None] | None = None) -> int:
        """Submit a shell script; the number of the job."""
        __tracebackhide__ = True
        file = self.folder / f"job-{secrets.token_hex(4)}.sh"
        file.write_text(f"#!/bin/sh\n{script}\n")
        words = ("sbatch", "--parsable", f"--output={self.folder}/%j.out", *options, file)
        return int(self.command(*words, env=env).partition(";")[0])

    def state(self, job: int) -> str:
        """What Slurm says of a job: PENDING, RUNNING, COMPLETED, …"""
        shown = self.command("scontrol", "--oneliner", "show", "job", str(job))
        return shown.partition("JobState=")[2].split()[0]

    def remembers(self, job: int) -> bool:
        """Whether a controller that is killed now would know the job: slurmctld saves its state within five seconds."""
        file = self.folder / "state" / "job_state"
        # Its first bytes say which number was given last, also where the job itself is not saved yet.
        return file.exists() and struct.pack("!I", job) in file.read_bytes()[64:]

    def output(self, job: int) -> str:
        """What a job has written so far."""
        file = self.folder / f"{job}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait_for(self, job: int, state: str, timeout: float = JOB_TIMEOUT_S) -> str:
        """Wait until a job is in a state, and give its output; fail if it ends in another, or does not get there."""
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        while (seen := self.state(job)) != state:
            if seen in ENDED or time.monotonic() > deadline:
                pytest.fail(f"job {job} is {seen}, expected {state}\n{self.output(job)}{self._logs()}", pytrace=True)
            time.sleep(0.1)
        return self.output(job)

    def stop(self) -> None:
        """End the jobs and the daemons; nothing of the cluster is left."""
        # Daemons that were told to stop leave their jobs alone: these end by their environment, like all else here.
        for running in (self.controller, *self.nodes.values()):
            if running and running.poll() is None:
                running.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=0.1)
        self._run.kill_all()
        # Deepest first; those of another cluster, which is busy, stay.
        for name in self.addresses if FREEZER.exists() else ():
            for group in sorted((FREEZER / f"slurm_{name}").glob("**/"), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()

    def processes(self) -> list[psutil.Process]:
        """Every living process of the cluster: daemons, and whatever jobs have started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                # slurmstepd writes its title over its environment; it works where its slurmd does.
                marked = process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]
                if marked or self.folder in Path(process.cwd()).parents:
                    found.append(process)
        return found

    def _write_files(self) -> None:
        for folder in ("state", *self.addresses):
            (self.folder / folder).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        hosts = [f"{address} {name}\n" for name, address in self.addresses.items()]
        (self.folder / "hosts").write_text(Path("/etc/hosts").read_text() + "\n" + "".join(hosts))
        # Slurm wants a device for each GPU. /dev/null is one, and the names tell them apart.
        gpus = [self.folder / f"gpu{number}" for number in range(self._gpus)]
        for gpu in gpus:
            gpu.symlink_to("/dev/null")
        of_node = f"NodeName=n[1-{len(self.addresses)}] Name=gpu File={self.folder}/gpu[0-{self._gpus - 1}]\n"
        (self.folder / "gres.conf").write_text(of_node if gpus else "")
        (self.folder / "cgroup.conf").write_text(CGROUPS)
        self._write_conf()

    def _write_conf(self) -> None:
        controller, *nodes = free_ports(1 + len(self.addresses))
        # Names of steps' sockets and ports derived from numbers of jobs do not meet those of other clusters.
        first_job = random.randint(100_000, 900_000)
        host = socket.gethostname()
        lines = CONF.format(
            name="test", host=host.partition(".")[0], port=controller, folder=self.folder, first_job=first_job
        ).splitlines()
        given = {option.partition("=")[0] for option in self._options}
        lines = [line for line in lines if line.partition("=")[0] not in given]
        has = f"CPUs={self._cpus} RealMemory=1000" + (f" Gres=gpu:{self._gpus}" if self._gpus else "")
        lines += self._options
        for (name, address), port in zip(self.addresses.items(), nodes, strict=True):
            lines.append(f"NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} {has}")
        lines += self._partitions
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _start_munged(self) -> None:
        places = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{ending}" for option, ending in places.items()]
        # Forced, because others may write to /tmp, above its folder.
        self._run.start(daemon("munged"), "--foreground", "--force", *options, env=self.environment)
        self._wait((self.folder / "munge.socket").exists, "munged to listen")

    def _all_idle(self) -> bool:
        shown = self._try("sinfo", "--noheader", "--Node", "--format=%N %t")
        states = dict(line.split() for line in shown.stdout.splitlines())
        return shown.status == 0 and states == dict.fromkeys(self.addresses, "idle")

    def _try(self, *words: str | Path, env: Mapping[str, str | None] | None = None) -> Result:
        # Not one of those that end with the cluster: there may be hundreds, each with a look at all processes.
        return Runner()(*words, env={**self.environment, **(env or {})}, timeout=JOB_TIMEOUT_S)

    def _wait(self, condition: Callable[[], object], message: str) -> None:
        __tracebackhide__ = True
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited {START_TIMEOUT_S} s for {message}\n{self._logs()}", pytrace=True)
            time.sleep(0.05)

    def _logs(self) -> str:
        """What the daemons said last."""
        daemons = {"slurmctld": self.controller, **self.nodes}
        shown = [(name, running.stderr) for name, running in daemons.items() if running]
        return "".join(f"--- {name}\n{text[-2000:]}" for name, text in shown)


def daemon(name: str) -> str:
    """Give the path of a daemon, which may be in a folder that is not on every user's PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or name
