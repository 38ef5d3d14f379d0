"""Trials that work with a checkpoint or a model, through Determined's own package: where the checkpoint is, and what is
found again of what they report."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Runner
from detached.conftest import Failed

from .conftest import Cluster

# Saves a checkpoint, registers it, and evaluates it.
SCRIPT = """
import os
import determined as det
from determined import core
from determined.experimental import client

storage = det.get_cluster_info().trial._config["checkpoint_storage"]
assert storage["type"] == "shared_fs" and storage["storage_path"] == "checkpoints", storage
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        assert str(path).startswith("/determined_shared_fs/checkpoints/"), path
        (path / "model").write_text("x")
    assert uuid in os.listdir(os.path.join(storage["host_path"], "checkpoints"))
    context.experimental.report_task_using_checkpoint(client.get_checkpoint(uuid))
    version = client.create_model("evaluated").register_version(uuid)
    context.experimental.report_task_using_model_version(version)
    context.train.report_metrics("inference", 1, {"accuracy": 0.5})
"""

ASK = """
import json
from determined.experimental import client

version = client.get_model("evaluated").get_version(1)
of_version = [(one.group, one.steps_completed, one.metrics) for one in version.iter_metrics("inference")]
of_checkpoint = [(one.group, one.steps_completed, one.metrics) for one in version.checkpoint.get_metrics()]
training = list(version.checkpoint.get_metrics("training"))
print(json.dumps([of_version, of_checkpoint, training, version.checkpoint.download()]))
"""


def test_a_checkpoint_s_metrics_are_found_again(
    cluster: Cluster, run: Runner, determined: Path, settings: dict[str, str], tmp_path: Path
) -> None:
    cluster.agent("one", 1)
    config = cluster.config(["python3", "-c", SCRIPT])
    made = cluster.api("POST", "/api/v1/experiments", {"config": json.dumps(config), "activate": True})
    cluster.wait_for(made["experiment"]["id"], "STATE_COMPLETED")
    asked = run(determined, "-c", ASK, env=settings, cwd=tmp_path).expect(0)
    of_version, of_checkpoint, training, folder = json.loads(asked.stdout.splitlines()[-1])
    [[group, steps, metrics]] = of_version
    assert (group, steps, metrics) == ("inference", 1, {"accuracy": 0.5})
    assert (of_checkpoint, training) == (of_version, [])
    assert (tmp_path / folder / "model").read_text() == "x"
    uuid = Path(folder).name
    for source in ({"trialId": 9, "checkpointUuid": uuid}, {"trialId": 1, "checkpointUuid": "nothing"}, {}):
        try:
            cluster.api("POST", "/api/v1/trial-source-info", {"trialSourceInfo": source})
        except Failed as failed:
            assert failed.status in (400, 404), source
        else:
            raise AssertionError(source)
