"""`instep run` in jobs of Slurm, without an option that says where the nodes meet."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from .cluster import SlurmCluster

SCRIPT = Path(__file__).parent / "scripts" / "all_reduce.py"
WaitUntil = Callable[..., None]


@pytest.fixture
def launcher(instep: Path, forked: Path) -> str:
    """The command, as a batch script has it."""
    return f"env OMP_NUM_THREADS=1 PYTHON_EXEC={forked} {instep} run --log-dir /dev/null"


def ranks(shown: str) -> list[dict[str, str]]:
    """What the ranks of a job have said, in their order."""
    lines = sorted(
        re.findall(r"^rank (\d+) of (\d+): sum (\d+); (.*)$", shown, re.MULTILINE), key=lambda line: int(line[0])
    )
    variables = [dict(pair.split("=", 1) for pair in line[3].split()) for line in lines]
    return [
        {"rank": line[0], "of": line[1], "sum": line[2], **said} for line, said in zip(lines, variables, strict=True)
    ]


def test_batch_script_of_four_nodes_needs_no_rendezvous_option(slurm: SlurmCluster, launcher: str) -> None:
    job = slurm.submit(f"{launcher} {SCRIPT}", "--nodes=4", "--gpus-per-node=2")
    shown = slurm.wait_for(job, "COMPLETED")
    said = ranks(shown)
    assert [rank["SLURMD_NODENAME"] for rank in said] == ["n1", "n2", "n3", "n4"], shown
    assert {(rank["of"], rank["sum"], rank["MASTER_ADDR"]) for rank in said} == {("4", "10", "n1")}, shown
    assert [rank["GROUP_RANK"] for rank in said] == ["0", "1", "2", "3"], shown
    assert {rank["TORCHELASTIC_RUN_ID"] for rank in said} == {f"{job}.0"}, shown
    assert f"starting on each of the nodes of Slurm job {job} (4) through srun" in shown, shown
    assert "the job has 2 GPUs (SLURM_GPUS_ON_NODE); --nproc-per-node gpu" in shown, shown


def plans(slurm: SlurmCluster, instep: Path, command: str, *options: str) -> list[dict[str, Any]]:
    """What launchers of a step would do, in the order of their nodes."""
    folder = slurm.folder / f"plans-{len(list(slurm.folder.glob('plans-*')))}"
    folder.mkdir()
    words = command.replace("instep", shlex.quote(str(instep)))
    inner = shlex.quote(f"{words} > {folder}/$SLURM_NODEID.$SLURM_LOCALID.$$")
    job = slurm.submit(f"srun {' '.join(options)} sh -c {inner}", "--nodes=4", "--gpus-per-node=2")
    slurm.wait_for(job, "COMPLETED")
    found = [json.loads(file.read_text()) for file in sorted(folder.iterdir())]
    assert all(
        plan["scheduler"]["found"][0] == {"what": "job", "value": str(job), "from": "SLURM_JOB_ID"} for plan in found
    )
    return found


def test_steps_of_one_job_find_their_own_nodes_and_ports(slurm: SlurmCluster, instep: Path) -> None:
    command = "instep run --no-python --dry-run=json true"
    whole = plans(slurm, instep, command)
    assert [plan["nodes"] for plan in whole] == [{"min": 4, "max": 4, "this": node} for node in range(4)]
    assert {plan["rendezvous"].partition(" serves")[0] for plan in whole} == {"c10d: the node at n1"}
    assert len({plan["rendezvous"] for plan in whole}) == 1
    part = plans(slurm, instep, command, "--nodes=2", "--ntasks=2", "--nodelist=n3,n4")
    assert [plan["nodes"]["max"] for plan in part] == [2, 2]
    assert {plan["rendezvous"].partition(" serves")[0] for plan in part} == {"c10d: the node at n3"}
    assert {plan["run_id"] for plan in whole}.isdisjoint({plan["run_id"] for plan in part})


def test_misuse_in_a_job_is_named(slurm: SlurmCluster, instep: Path) -> None:
    script = f"""
srun --ntasks-per-node=2 --ntasks=2 --nodes=1 {instep} run --no-python true
{instep} run --nnodes 8 --no-python true
{instep} run --standalone --no-python true
PATH=/nowhere {instep} run --no-python true
{instep} run --dry-run --no-python true
{instep} doctor
true
"""
    job = slurm.submit(script, "--nodes=2", "--ntasks-per-node=2")
    shown = slurm.wait_for(job, "COMPLETED")
    for said in (
        f"error: 2 tasks of step 0 of Slurm job {job} run on one node, and each of them would start the ranks",
        "hint: srun --ntasks-per-node=1 instep run --nproc-per-node 2",
        f"error: --nnodes 8, but Slurm job {job} has 2 nodes",
        f"warning: --standalone runs on this node alone, and Slurm job {job} has 2",
        "srun … apptainer exec IMAGE instep run …; or run on this node alone: --standalone",
        "command     srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --export=ALL /",
        "found       nodes 2 (SLURM_JOB_NODELIST)",
        f"Slurm job {job}; instep run starts on its nodes (2) through srun",
    ):
        assert said in shown, f"{said!r} in\n{shown}"


@pytest.mark.soak
def test_lists_of_hosts_are_those_of_scontrol(slurm: SlurmCluster, instep: Path) -> None:
    for text in ("n[1-4,7]", "a[01-03]b[1-2]", "x[08-11],login,y[1,3]z[5-6]", "rack[001-002]n[9-10]"):
        expected = slurm.command("scontrol", "show", "hostnames", text).split()
        step = {
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": text,
            "SLURM_STEP_NUM_NODES": str(len(expected)),
            "SLURM_NODEID": "0",
        }
        shown = slurm.command(instep, "run", "--no-python", "--dry-run=json", "true", env=step)
        plan = json.loads(shown)
        assert (plan["nodes"]["max"], plan["rendezvous"].split()[4]) == (len(expected), expected[0])


@pytest.mark.soak
def test_options_for_ranks_do_not_divide_what_the_launchers_have(slurm: SlurmCluster, instep: Path) -> None:
    """`--gpus-per-task` and the like speak of ranks, of which the launcher starts as many as it is told to."""
    show = "echo $SLURMD_NODENAME has $CUDA_VISIBLE_DEVICES"
    job = slurm.submit(
        f"{instep} run --no-python --log-dir /dev/null sh -c {shlex.quote(show)}",
        "--nodes=2",
        "--ntasks-per-node=2",
        "--gpus-per-task=1",
        "--cpus-per-task=2",
    )
    shown = slurm.wait_for(job, "COMPLETED")
    assert sorted(re.findall(r"^n\d has .*$", shown, re.MULTILINE)) == ["n1 has 0,1", "n2 has 0,1"], shown


@pytest.mark.soak
def test_elastic_job_goes_on_when_a_node_loses_its_launcher(
    slurm: SlurmCluster, launcher: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    go = tmp_path / "go"
    command = f"srun --no-kill --kill-on-bad-exit=0 {launcher} --nnodes 2:4 {SCRIPT} {go}"
    job = slurm.submit(command, "--nodes=4")
    wait_until((tmp_path / "training-4").exists, 60, lambda: slurm.output(job))
    # On the first node, which leads.
    on_first = [process for process in slurm.processes() if process.name() == "instep" and node_of(process) == "n1"]
    for process in on_first:
        process.send_signal(signal.SIGKILL)
    wait_until((tmp_path / "training-3").exists, 60, lambda: slurm.output(job))
    go.touch()
    wait_until(lambda: slurm.state(job) != "RUNNING", 60, lambda: slurm.output(job))
    said = ranks(slurm.output(job))
    assert [(rank["of"], rank["sum"], rank["TORCHELASTIC_RESTART_COUNT"]) for rank in said] == [("3", "6", "0")] * 3, (
        said
    )
    assert {rank["SLURMD_NODENAME"] for rank in said} == {"n2", "n3", "n4"}


def node_of(process: psutil.Process) -> str:
    return process.environ().get("SLURMD_NODENAME", "")
