"""The master that records a trial: finding it, logging in, making a trial or joining that of a cluster, its end."""

from __future__ import annotations

import errno
import json
import os
import re
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from instep._native import MasterClient, Preemption, Reporter
from instep.core._information import ClusterInfo, TrialInfo
from instep.core.errors import MasterRefused, MasterUnreachable

if TYPE_CHECKING:
    from instep.core._config import Config
    from instep.core._distributed import DistributedContext

Answer = TypeVar("Answer")
# For how long calls other than reports are tried again while the master is away.
PATIENCE_S = 30.0


def master_address() -> str | None:
    """Where the environment says that the master is."""
    return os.environ.get("INSTEP_MASTER") or os.environ.get("DET_MASTER") or None


def all_of(address: str) -> str:
    """Give all addresses of a task's cluster: an agent that knows several says them beside the one that it uses."""
    several = os.environ.get("INSTEP_MASTER", "")
    return several if address in several.split(",") else address


def connect(address: str) -> MasterClient:
    """Reach the master and log in; an error with a hint if that cannot be done."""
    environment = os.environ
    names = ("INSTEP_MASTER_CERT_FILE", "INSTEP_MASTER_CERT", "DET_MASTER_CERT_FILE")
    certificates = next((environment[name] for name in names if environment.get(name)), None)
    if certificates == "noverify":
        raise ValueError(
            "DET_MASTER_CERT_FILE=noverify disables certificate checks, which is not supported\n"
            "hint: set INSTEP_MASTER_CERT_FILE to the file with the master's certificate"
        )
    variable = "INSTEP_MASTER" if environment.get("INSTEP_MASTER") else "DET_MASTER"
    # Short: a wrong address should be said now. What comes later is patient.
    try:
        probe = MasterClient(address, certificates=certificates, patience=2.0)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}\nhint: set it to an address such as http://127.0.0.1:8080") from None
    try:
        probe.call("GET", "/api/v1/master")
    except (MasterUnreachable, MasterRefused) as error:
        raise MasterUnreachable(with_hint(str(error), variable, address)) from None
    client = MasterClient(address, certificates=certificates, patience=PATIENCE_S)
    user = environment.get("INSTEP_USER") or environment.get("DET_USER")
    token = environment.get("INSTEP_USER_TOKEN") or (environment.get("DET_USER_TOKEN") if user else None)
    if token:
        client.use_token(token)
        return client
    names = ("INSTEP_PASSWORD", "INSTEP_PASS", "DET_PASS")
    password = next((environment[name] for name in names if environment.get(name)), "")
    try:
        client.login(user or "determined", password)
    except MasterRefused as refused:
        raise MasterRefused(
            f"cannot log in to {client.address} as {user or 'determined'}: {refused}\n"
            "hint: set INSTEP_USER and INSTEP_PASSWORD (or DET_USER and DET_PASS)",
            refused.status,
        ) from refused
    return client


def with_hint(error: str, variable: str, address: str) -> str:
    """Say what to do about a master that does not answer, unless the error does: somebody else is there, or nobody."""
    if "\nhint: " in error:
        return error
    start = ""
    if os.strerror(errno.ECONNREFUSED) in error:
        found = re.search(r":(\d+)/?$", address)
        port = f" --port {found[1]}" if found and found[1] != "8080" else ""
        start = f"start a master there with `instep up{port}`, "
    return (
        f"{error}\nhint: {variable} is {address!r}; {start}name another master, or unset {variable} to run unrecorded"
    )


def on_chief(distributed: DistributedContext, work: Callable[[], Answer]) -> Answer:
    """Let rank 0 do something and give all ranks its result, or raise its error on all."""
    outcome: dict[str, Any] | None = None
    error: Exception | None = None
    if distributed.rank == 0:
        try:
            outcome = {"result": work()}
        except Exception as raised:
            error = raised
            outcome = {"error": str(raised)}
    outcome = distributed.broadcast(outcome)
    assert outcome is not None
    if error is not None:
        raise error
    if "error" in outcome:
        raise RuntimeError(f"rank 0: {outcome['error']}")
    result: Answer = outcome["result"]
    return result


def on_all(allgather: Callable[[Any], list[Any]], work: Callable[[], Answer], who: str = "rank") -> list[Answer]:
    """Let every rank that takes part in `allgather` do something and give all of them all results.

    An error is raised on all of them: on others than the one it happened to, with its number, as `who`.
    """
    error: Exception | None = None
    outcome: dict[str, Any]
    try:
        outcome = {"result": work()}
    except Exception as raised:
        error = raised
        outcome = {"error": str(raised)}
    outcomes = allgather(outcome)
    if error is not None:
        raise error
    for number, each in enumerate(outcomes):
        if "error" in each:
            raise RuntimeError(f"{who} {number}: {each['error']}")
    return [each["result"] for each in outcomes]


class Tracking:
    """A trial on a master, as one rank sees it."""

    def __init__(
        self, client: MasterClient, distributed: DistributedContext, info: ClusterInfo, storage_id: int | None
    ) -> None:
        self._client = client
        self.chief = distributed.rank == 0
        # Whether the cluster runs this script, and so watches its end and its output itself.
        self.managed = bool(info.allocation_id)
        self.info = info
        self.experiment_id = info.trial.experiment_id
        self.trial_id = info.trial.trial_id
        self.task_id = info.task_id
        self.storage_id = storage_id
        self.reporter = Reporter(
            client,
            trial=self.trial_id,
            run=info.trial._trial_run_id,
            name=str(uuid.uuid4()),
            rank=distributed.rank,
            heartbeat=self.chief and not self.managed,
        )

    @classmethod
    def start(cls, config: Config, storage: dict[str, Any], distributed: DistributedContext) -> Tracking | None:
        """Make or find the experiment and the trial, and start it; None if there is no master to record it."""
        address = master_address()
        told = distributed.allgather(address is not None)
        if len(set(told)) > 1:
            silent = [rank for rank, each in enumerate(told) if not each]
            raise RuntimeError(f"INSTEP_MASTER is set for some ranks, but not for {silent}")
        if address is None:
            return None
        clients: list[MasterClient] = []

        def log_in() -> None:
            clients.append(connect(address))

        on_all(distributed.allgather, log_in)
        [client] = clients
        started = on_chief(distributed, lambda: _started(client, config, storage))
        return cls(client, distributed, _detached(client, started), started["storage_id"])

    @classmethod
    def join(cls, info: ClusterInfo, storage: dict[str, Any], distributed: DistributedContext) -> Tracking:
        """Speak for the trial of a cluster that this script is; the allocation's token says that it may."""
        client = MasterClient(all_of(info.master_url), certificates=info.master_cert_file, patience=PATIENCE_S)
        client.use_token(info.session_token)
        body = {"runId": info.trial.trial_id, "checkpointStorage": storage}

        def begin() -> int | None:
            answer: int | None = _call(client, "POST", "/api/v1/runs/start", body, repeat=True)["storageId"]
            return answer

        return cls(client, distributed, info, on_chief(distributed, begin))

    def call(self, method: str, path: str, body: object = None, *, repeat: bool | None = None) -> dict[str, Any]:
        """Ask the master something; see `instep._native.MasterClient.call`."""
        return _call(self._client, method, path, body, repeat=repeat)

    def watch_preemption(self) -> Preemption:
        """Listen for the word that this allocation should make room."""
        return Preemption(self._client, self.info.allocation_id)

    def acknowledge_preemption(self) -> None:
        """Say that the script stops before it is done."""
        path = f"/api/v1/allocations/{quote(self.info.allocation_id)}/signals/ack_preemption"
        self.call("POST", path, {}, repeat=True)

    def require_chief(self, what: str) -> None:
        """Refuse what only rank 0 of a managed trial may do."""
        if self.managed and not self.chief:
            raise RuntimeError(
                f"{what} is for rank 0 of a managed trial\nhint: if context.distributed.rank == 0: {what}(...)"
            )

    def set_state(self, state: str) -> None:
        """Say how the trial stands."""
        body = {"trialId": self.trial_id, "state": f"STATE_{state}"}
        self.call("PATCH", f"/api/v1/trials/{self.trial_id}", body)


def _detached(client: MasterClient, started: dict[str, Any]) -> ClusterInfo:
    return ClusterInfo(
        master_url=client.address,
        cluster_id=str(started["cluster_id"]),
        task_id=str(started["task_id"]),
        task_type="TRIAL",
        latest_checkpoint=started["latest_checkpoint"],
        _trial_info=TrialInfo(
            trial_id=int(started["trial_id"]),
            experiment_id=int(started["experiment_id"]),
            trial_seed=0,
            hparams=started["hparams"],
            _config=started["config"],
            _steps_completed=int(started["steps_completed"]),
            _trial_run_id=int(started["run_id"]),
        ),
    )


def _started(client: MasterClient, config: Config, storage: dict[str, Any]) -> dict[str, Any]:
    text = config.text(storage)
    request = {"config": text, "unmanaged": True}
    if config.external_experiment_id is not None:
        path = f"/api/v1/experiments/by-external-id/{quote(config.external_experiment_id)}"
        experiment = _call(client, "PUT", path, request)["experiment"]
    else:
        experiment = _call(client, "POST", "/api/v1/experiments", request)["experiment"]
    create = {"experimentId": experiment["id"], "hparams": config.hparams, "unmanaged": True}
    if config.external_trial_id is not None:
        body = {"createTrialRequest": create, "externalTrialId": config.external_trial_id}
        trial = _call(client, "PUT", "/api/v1/trials", body)["trial"]
    else:
        trial = _call(client, "POST", "/api/v1/trials", create)["trial"]
    start = _call(client, "POST", f"/api/v1/trials/{trial['id']}/start", {"trialId": trial["id"], "resume": True})
    run = {"runId": trial["id"], "checkpointStorage": storage}
    return {
        "experiment_id": experiment["id"],
        "trial_id": trial["id"],
        "task_id": trial["taskId"],
        "hparams": config.hparams or {},
        "config": json.loads(text),
        "run_id": start["trialRunId"],
        "steps_completed": start["stepsCompleted"],
        "latest_checkpoint": start["latestCheckpoint"],
        "storage_id": _call(client, "POST", "/api/v1/runs/start", run, repeat=True)["storageId"],
        "cluster_id": _call(client, "GET", "/api/v1/master")["clusterId"],
    }


def _call(
    client: MasterClient, method: str, path: str, body: object = None, *, repeat: bool | None = None
) -> dict[str, Any]:
    answer = json.loads(client.call(method, path, None if body is None else json.dumps(body), repeat=repeat))
    assert isinstance(answer, dict)
    return answer
