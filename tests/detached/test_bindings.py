"""Determined's own bindings, function by function: what they ask is served, and what they are answered they can read.

The tests are made of the `determined` package: `scripts/bindings/walk.py` says which requests its functions send. The
other scripts there send them, read each answer with the client's own types, and read each change back: `calls.py` to a
master alone, `roles.py` to one with roles, and `tasks.py` (in `tests/managed`) to one with an agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from conftest import Runner

from .conftest import SCRIPTS, Client, Master

# Functions whose requests are not served, each with the reason.
UNUSED = "nothing in the package calls it: the profiler reports groups of metrics"
NOT_SERVED = {
    "get_GetTrialProfilerAvailableSeries": UNUSED,
    "get_GetTrialProfilerMetrics": UNUSED,
    "post_PostTrialProfilerMetricsBatch": UNUSED,
}
# Functions that are called and refused, each with the reason.
NO_KUBERNETES = "there is no Kubernetes under the master"
REFUSED = {
    "delete_DeleteWorkspaceNamespaceBindings": NO_KUBERNETES,
    "post_BulkAutoCreateWorkspaceNamespaceBindings": NO_KUBERNETES,
    "post_SetResourceQuotas": NO_KUBERNETES,
    "post_SetWorkspaceNamespaceBindings": NO_KUBERNETES,
    "post_TestWebhook": "webhooks stay out of this machine, unless the master is told otherwise: see test_webhooks.py",
}
# Functions that need an agent: `tests/managed/test_bindings.py` calls them.
WITH_AGENT = {
    *("delete_UnbindRPFromWorkspace", "post_BindRPToWorkspace", "put_OverwriteRPWorkspaceBindings"),
    *("get_GetAgent", "post_DisableAgent", "post_EnableAgent"),
    *("get_GetSlot", "get_GetSlots", "post_DisableSlot", "post_EnableSlot"),
    *("get_GetCommand", "get_GetCommands", "post_KillCommand", "post_LaunchCommand", "post_SetCommandPriority"),
    *("get_GetTensorboard", "get_GetTensorboards", "post_KillTensorboard", "post_LaunchTensorboard"),
    "post_SetTensorboardPriority",
    *("get_GetNotebook", "get_GetNotebooks", "post_KillNotebook", "post_LaunchNotebook"),
    *("post_SetNotebookPriority", "put_IdleNotebook"),
    *("get_GetShell", "get_GetShells", "post_KillShell", "post_LaunchShell", "post_SetShellPriority"),
    *("get_GetGenericTaskConfig", "post_CreateGenericTask", "post_KillGenericTask"),
    *("get_GetTaskContextDirectory", "post_PauseGenericTask", "post_UnpauseGenericTask"),
    *("get_AllocationPreemptionSignal", "get_AllocationRendezvousInfo", "get_GetAllocation"),
    *("post_AckAllocationPreemptionSignal", "post_AllocationAllGather", "post_AllocationPendingPreemptionSignal"),
    *("post_AllocationReady", "post_AllocationWaiting", "post_MarkAllocationResourcesDaemon"),
    *("post_NotifyContainerRunning", "post_PostAllocationAcceleratorData", "post_PostAllocationProxyAddress"),
}


def served_paths(api: Client) -> list[tuple[str, re.Pattern[str]]]:
    """Every request that the master serves, as its OpenAPI document says."""
    document = api("GET", "/api/openapi.json")
    found = []
    for path, operations in document["paths"].items():
        # Two arguments stand for more than one of the client's: ids that may hold slashes, and kinds of metrics.
        inner = re.escape(path).replace(r"\{external\}", ".+").replace(r"\{kind\}", "[^/]+")
        pattern = re.compile(re.sub(r"\\\{\w+\\\}", r"\\{\\}", inner))
        found += [(method.upper(), pattern) for method in operations]
    return found


def walked(run: Runner, determined: Path) -> dict[str, list[str]]:
    """The request of every function."""
    found: dict[str, list[str]] = json.loads(
        run(determined, SCRIPTS / "bindings" / "walk.py", timeout=60).expect(0).stdout
    )
    return found


def called(run: Runner, determined: Path, script: str, address: str, settings: dict[str, str]) -> set[str]:
    """The functions that a script has called, all of which were answered."""
    done = run(determined, SCRIPTS / "bindings" / script, address, env=settings, timeout=120).expect(0)
    return set(json.loads(done.stdout.splitlines()[-1])["called"])


def test_every_request_of_the_bindings_is_served(run: Runner, determined: Path, api: Client) -> None:
    functions = walked(run, determined)
    served = served_paths(api)

    def is_served(method: str, path: str) -> bool:
        return any(method == known and pattern.fullmatch(path) for known, pattern in served)

    missing = {name for name, request in functions.items() if not is_served(*request)}
    print(f"{len(functions)} functions, {len(functions) - len(missing)} served, {len(missing)} not:")
    for name in sorted(missing):
        print(f"  {name:45} {' '.join(functions[name])}: {NOT_SERVED.get(name)}")
    assert len(functions) > 250
    assert missing == NOT_SERVED.keys()


def test_answers_are_read_and_changes_read_back(
    run: Runner,
    instep: Path,
    determined: Path,
    master: Master,
    settings: dict[str, str],
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    functions = walked(run, determined).keys()
    found = called(run, determined, "calls.py", master.address, settings)
    with_roles = Master(run.start, instep, tmp_path / "roles.db")
    with_roles.start(wait_until, "--roles")
    found |= called(run, determined, "roles.py", with_roles.address, settings | {"DET_MASTER": with_roles.address})
    with_roles.stop()
    print(f"{len(functions)} functions, {len(found)} called without an agent, {len(WITH_AGENT)} with one")
    assert functions - found == NOT_SERVED.keys() | REFUSED.keys() | WITH_AGENT
