"""Calls the functions for what runs on an agent, against a master with one agent of two slots in the pool `fast`.

Prints, as its last line, which were called.
"""

import base64
import io
import json
import sys
import tarfile
import time
import typing
from pathlib import Path

from determined.common import api
from determined.common.api import authentication, bindings, errors
from made import CALLED, count_calls, file, refused

State = bindings.taskv1State
GenericState = bindings.v1GenericTaskState
POOL = {"resource_pool": "fast"}


def wait_for(condition: typing.Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"waited 30 s for {what}"
        time.sleep(0.05)


def agents(session: api.Session, admin: api.Session) -> None:
    [agent] = bindings.get_GetAgents(session).agents
    assert agent.id == "one" and agent.resourcePools == ["fast"] and len(agent.slots or {}) == 2

    def shown() -> bindings.v1Agent:
        return bindings.get_GetAgent(session, agentId="one").agent

    body = bindings.v1DisableAgentRequest(agentId="one", drain=True)
    refused(errors.ForbiddenException, bindings.post_DisableAgent, session, body=body, agentId="one")
    bindings.post_DisableAgent(admin, body=body, agentId="one")
    assert not shown().enabled and shown().draining
    bindings.post_EnableAgent(admin, agentId="one")
    assert shown().enabled
    slots = bindings.get_GetSlots(session, agentId="one").slots or []
    first = sorted(slot.id or "" for slot in slots)[0]
    off = bindings.v1DisableSlotRequest(agentId="one", slotId=first)
    bindings.post_DisableSlot(admin, body=off, agentId="one", slotId=first)
    slot = bindings.get_GetSlot(session, agentId="one", slotId=first).slot
    assert slot and not slot.enabled
    bindings.post_EnableSlot(admin, agentId="one", slotId=first)
    slot = bindings.get_GetSlot(session, agentId="one", slotId=first).slot
    assert slot and slot.enabled


def pools(session: api.Session, admin: api.Session) -> None:
    here, there = (
        bindings.post_PostWorkspace(session, body=bindings.v1PostWorkspaceRequest(name=name)).workspace.id
        for name in ("here", "there")
    )

    def bound() -> list[int]:
        return sorted(bindings.get_ListWorkspacesBoundToRP(session, resourcePoolName="fast").workspaceIds or [])

    one = bindings.v1BindRPToWorkspaceRequest(resourcePoolName="fast", workspaceIds=[here])
    bindings.post_BindRPToWorkspace(admin, body=one, resourcePoolName="fast")
    assert bound() == [here]
    whole = bindings.v1OverwriteRPWorkspaceBindingsRequest(resourcePoolName="fast", workspaceIds=[there])
    bindings.put_OverwriteRPWorkspaceBindings(admin, body=whole, resourcePoolName="fast")
    assert bound() == [there]
    launch = bindings.v1LaunchCommandRequest(config={"entrypoint": ["true"], "resources": POOL}, workspaceId=here)
    refused(errors.APIException, bindings.post_LaunchCommand, session, body=launch)
    away = bindings.v1UnbindRPFromWorkspaceRequest(resourcePoolName="fast", workspaceIds=[there])
    bindings.delete_UnbindRPFromWorkspace(admin, body=away, resourcePoolName="fast")
    assert bound() == []


def commands(session: api.Session) -> None:
    config = {"entrypoint": ["sleep", "600"], "resources": {**POOL, "slots": 1}}
    launch = bindings.v1LaunchCommandRequest(config=config, files=[file("a.txt", "words")])
    task = bindings.post_LaunchCommand(session, body=launch).command.id

    def shown() -> bindings.v1Command:
        return bindings.get_GetCommand(session, commandId=task).command

    wait_for(lambda: shown().state == State.RUNNING, "the command to run")
    context = base64.b64decode(bindings.get_GetTaskContextDirectory(session, taskId=task).b64Tgz)
    with tarfile.open(fileobj=io.BytesIO(context)) as archive:
        assert archive.getnames() == ["a.txt"]
    urgent = bindings.v1SetCommandPriorityRequest(commandId=task, priority=7)
    bindings.post_SetCommandPriority(session, body=urgent, commandId=task)
    [job] = bindings.get_GetJobs(session, resourcePool="fast").jobs
    assert job.priority == 7
    allocation(session, task)
    bindings.post_KillCommand(session, commandId=task)
    wait_for(lambda: shown().state == State.TERMINATED, "the command to end")
    assert [each.id for each in bindings.get_GetCommands(session).commands] == [task]


def allocation(session: api.Session, task: str) -> None:
    """What a task says about itself; here its owner says it."""
    name = f"{task}.1"
    [summary] = (bindings.get_GetTasks(session).allocationIdToSummary or {}).values()
    [resources] = summary.resources or []
    share = resources.resourcesId
    assert share
    met = bindings.get_AllocationRendezvousInfo(session, allocationId=name, resourcesId=share).rendezvousInfo
    assert (met.rank, met.slots, len(met.addresses)) == (0, [1], 1)
    gather = bindings.v1AllocationAllGatherRequest(
        allocationId=name, data={"rank": 0}, numPeers=1, requestUuid="only one"
    )
    assert bindings.post_AllocationAllGather(session, allocationId=name, body=gather).data == [{"rank": 0}]
    body = bindings.v1AllocationWaitingRequest(allocationId=name)
    bindings.post_AllocationWaiting(session, allocationId=name, body=body)
    wait_for(lambda: bindings.get_GetAllocation(session, allocationId=name).allocation.state, "a state")
    bindings.post_AllocationReady(session, allocationId=name, body=bindings.v1AllocationReadyRequest(allocationId=name))
    assert bindings.get_GetAllocation(session, allocationId=name).allocation.isReady
    running = bindings.v1NotifyContainerRunningRequest(allocationId=name, data={}, numPeers=1, rank=0, nodeName="one")
    assert bindings.post_NotifyContainerRunning(session, allocationId=name, body=running).data == []
    devices = bindings.v1PostAllocationAcceleratorDataRequest(
        allocationId=name, acceleratorData=bindings.v1AcceleratorData(allocationId=name)
    )
    bindings.post_PostAllocationAcceleratorData(session, allocationId=name, body=devices)
    address = bindings.v1PostAllocationProxyAddressRequest(allocationId=name, proxyAddress="127.0.0.1")
    bindings.post_PostAllocationProxyAddress(session, allocationId=name, body=address)
    assert bindings.get_AllocationPreemptionSignal(session, allocationId=name, timeoutSeconds=0).preempt is False
    refused(errors.NotFoundException, bindings.get_AllocationPreemptionSignal, session, allocationId="none.1")
    daemon = bindings.v1MarkAllocationResourcesDaemonRequest(allocationId=name, resourcesId=share)
    bindings.post_MarkAllocationResourcesDaemon(session, allocationId=name, resourcesId=share, body=daemon)


def preempted_trial(session: api.Session, folder: Path) -> None:
    """A trial that is asked to stop, for which its owner answers; then a TensorBoard of it."""
    config = {
        "name": "asked",
        "entrypoint": "sleep 600",
        "searcher": {"name": "single", "metric": "x"},
        "resources": {**POOL, "slots_per_trial": 1},
        "checkpoint_storage": {"type": "directory", "container_path": str(folder)},
        "max_restarts": 0,
    }
    request = bindings.v1CreateExperimentRequest(config=json.dumps(config), activate=True)
    experiment = bindings.post_CreateExperiment(session, body=request).experiment.id
    shown = bindings.get_GetExperimentTrials
    wait_for(lambda: shown(session, experimentId=experiment).trials, "a trial")
    [trial] = shown(session, experimentId=experiment).trials
    name = f"{trial.taskId}.1"

    def state() -> State:
        return bindings.get_GetAllocation(session, allocationId=name).allocation.state

    wait_for(lambda: name in (bindings.get_GetTasks(session).allocationIdToSummary or {}), "its allocation")
    wait_for(lambda: state() == State.RUNNING, "the trial to run")
    bindings.post_AllocationReady(session, allocationId=name, body=bindings.v1AllocationReadyRequest())
    wanted = bindings.v1AllocationPendingPreemptionSignalRequest(allocationId=name)
    bindings.post_AllocationPendingPreemptionSignal(session, allocationId=name, body=wanted)
    assert bindings.get_AllocationPreemptionSignal(session, allocationId=name, timeoutSeconds=30).preempt
    heard = bindings.v1AckAllocationPreemptionSignalRequest(allocationId=name)
    bindings.post_AckAllocationPreemptionSignal(session, allocationId=name, body=heard)
    tensorboard(session, experiment)
    notebook(session)
    shell(session)
    bindings.post_KillExperiment(session, id=experiment)
    wait_for(lambda: state() == State.TERMINATED, "the trial to end")


def tensorboard(session: api.Session, experiment: int) -> None:
    launch = bindings.v1LaunchTensorboardRequest(experimentIds=[experiment], config={"resources": POOL})
    task = bindings.post_LaunchTensorboard(session, body=launch).tensorboard.id
    shown = bindings.get_GetTensorboard(session, tensorboardId=task).tensorboard
    assert shown.experimentIds == [experiment] and shown.serviceAddress
    urgent = bindings.v1SetTensorboardPriorityRequest(tensorboardId=task, priority=8)
    bindings.post_SetTensorboardPriority(session, body=urgent, tensorboardId=task)
    jobs = bindings.get_GetJobs(session, resourcePool="fast").jobs
    assert 8 in [job.priority for job in jobs]
    bindings.post_KillTensorboard(session, tensorboardId=task)

    def states() -> list[State]:
        return [each.state for each in bindings.get_GetTensorboards(session).tensorboards]

    wait_for(lambda: states() == [State.TERMINATED], "the TensorBoard to end")


def notebook(session: api.Session) -> None:
    config = {"resources": {**POOL, "slots": 0}}
    preview = bindings.v1LaunchNotebookRequest(config=config, preview=True)
    assert bindings.post_LaunchNotebook(session, body=preview).config["resources"]["slots"] == 0
    launch = bindings.v1LaunchNotebookRequest(config={**config, "description": "ours"})
    task = bindings.post_LaunchNotebook(session, body=launch).notebook.id
    shown = bindings.get_GetNotebook(session, notebookId=task).notebook
    assert shown.description == "ours" and shown.serviceAddress == f"/proxy/{task}/"
    urgent = bindings.v1SetNotebookPriorityRequest(notebookId=task, priority=9)
    bindings.post_SetNotebookPriority(session, body=urgent, notebookId=task)
    assert 9 in [job.priority for job in bindings.get_GetJobs(session, resourcePool="fast").jobs]
    used = bindings.v1IdleNotebookRequest(notebookId=task, idle=False)
    bindings.put_IdleNotebook(session, body=used, notebookId=task)
    bindings.post_KillNotebook(session, notebookId=task)

    def states() -> list[State]:
        return [each.state for each in bindings.get_GetNotebooks(session).notebooks]

    wait_for(lambda: states() == [State.TERMINATED], "the notebook to end")


def shell(session: api.Session) -> None:
    """A shell, from its start to its end; only whoever asks for one learns its key."""
    launch = bindings.v1LaunchShellRequest(config={"resources": {**POOL, "slots": 0}, "description": "ours"})
    made = bindings.post_LaunchShell(session, body=launch).shell
    assert (made.privateKey or "").startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    shown = bindings.get_GetShell(session, shellId=made.id).shell
    assert (shown.privateKey, shown.publicKey, shown.description) == (made.privateKey, made.publicKey, "ours")
    urgent = bindings.v1SetShellPriorityRequest(shellId=made.id, priority=9)
    assert bindings.post_SetShellPriority(session, body=urgent, shellId=made.id).shell.privateKey is None
    bindings.post_KillShell(session, shellId=made.id)

    def found() -> list[tuple[State, str | None]]:
        return [(each.state, each.privateKey) for each in bindings.get_GetShells(session).shells]

    wait_for(lambda: found() == [(State.TERMINATED, None)], "the shell to end")


def generic_tasks(session: api.Session) -> None:
    config = json.dumps({"entrypoint": ["sleep", "600"], "resources": {**POOL, "slots": 0}})

    def create(**more: typing.Any) -> str:  # noqa: ANN401
        request = bindings.v1CreateGenericTaskRequest(config=config, contextDirectory=[], **more)
        return bindings.post_CreateGenericTask(session, body=request).taskId

    def shown(task: str) -> bindings.v1Task:
        return bindings.get_GetTask(session, taskId=task).task

    def all_are(*wanted: GenericState) -> None:
        wait_for(lambda: [shown(task).taskState for task in tasks] == list(wanted), f"the tasks to be {wanted}")

    parent = create()
    # Children run on while their parent is paused, unless they say that they may be paused too.
    tasks = [parent, create(parentId=parent), create(parentId=parent, noPause=False)]
    assert "sleep" in bindings.get_GetGenericTaskConfig(session, taskId=parent).config
    assert shown(tasks[2]).parentId == parent and shown(tasks[2]).noPause is False
    all_are(GenericState.ACTIVE, GenericState.ACTIVE, GenericState.ACTIVE)
    bindings.post_PauseGenericTask(session, taskId=parent)
    all_are(GenericState.PAUSED, GenericState.ACTIVE, GenericState.PAUSED)
    assert "paused already" in refused(errors.APIException, bindings.post_PauseGenericTask, session, taskId=parent)
    bindings.post_UnpauseGenericTask(session, taskId=parent)
    all_are(GenericState.ACTIVE, GenericState.ACTIVE, GenericState.ACTIVE)
    assert [each.allocationId for each in shown(parent).allocations] == [f"{parent}.2", f"{parent}.1"]
    fixed = create(noPause=True)
    assert "noPause" in refused(errors.APIException, bindings.post_PauseGenericTask, session, taskId=fixed)
    bindings.post_PauseGenericTask(session, taskId=parent)
    for task in (parent, fixed):
        kill = bindings.v1KillGenericTaskRequest(taskId=task, killFromRoot=False)
        bindings.post_KillGenericTask(session, body=kill, taskId=task)
    tasks.append(fixed)
    all_are(*[GenericState.CANCELED] * 4)
    refused(errors.NotFoundException, bindings.post_UnpauseGenericTask, session, taskId="none")


def main(address: str) -> None:
    session = authentication.login(address, "determined", "")
    admin = authentication.login(address, "admin", "")
    count_calls()
    agents(session, admin)
    pools(session, admin)
    commands(session)
    folder = Path.home() / "checkpoints"
    folder.mkdir()
    preempted_trial(session, folder)
    generic_tasks(session)
    print(json.dumps({"called": sorted(CALLED)}))


if __name__ == "__main__":
    main(sys.argv[1])
