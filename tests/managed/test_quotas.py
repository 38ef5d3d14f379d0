"""How much of the master's disk one task's output and one user's code may take."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable

import pytest

from detached.conftest import Failed

from .conftest import Cluster


@pytest.fixture
def limited(cluster: Cluster, wait_until: Callable[..., None]) -> Cluster:
    """A master that keeps little of each task's output, and little code of each user."""
    cluster.master.stop()
    cluster.master.start(wait_until, "--task-log-limit", "1MiB", "--user-context-limit", "100KiB")
    return cluster


def create(cluster: Cluster, entrypoint: str, content: bytes = b"") -> int:
    """Start an experiment with a file of its own."""
    encoded = base64.b64encode(content).decode()
    files = [{"path": "data", "type": 48, "content": encoded, "mode": 0o644}] if content else []
    request = {
        "config": cluster.written(cluster.config(entrypoint)).read_text(),
        "activate": True,
        "modelDefinition": files,
    }
    return int(cluster.api("POST", "/api/v1/experiments", request)["experiment"]["id"])


def test_output_without_end_does_not_fill_the_masters_disk(limited: Cluster) -> None:
    limited.agent("one", 1)
    number = create(limited, "yes 'and again, and again, and again' | head -n 60000; echo the last line")
    limited.wait_for(number, "STATE_COMPLETED")
    [trial] = limited.trials(number)
    lines = [line["message"] for line in limited.logs(trial["id"])]
    [end] = [line for line in lines if "the log ends here" in line]
    assert "limit of 1 MiB for one task" in end
    assert "--task-log-limit" in end
    assert any("10000 lines dropped since the log reached its limit" in line for line in lines), lines[-5:]
    assert sum("again" in line for line in lines) < 10_000, "136 bytes each"
    assert not any("the last line" in line for line in lines)
    # What the master says itself is not dropped.
    assert any("exited" in line or "completed" in line for line in lines[lines.index(end) :]), lines[-5:]


def test_a_user_sends_code_up_to_the_limit(limited: Cluster) -> None:
    first = create(limited, "true", os.urandom(60 << 10))
    with pytest.raises(Failed) as refused:
        create(limited, "true", os.urandom(60 << 10))
    assert refused.value.status == 400
    assert "more than the limit of 1 MiB" in refused.value.message
    assert "hint: delete experiments" in refused.value.message
    assert create(limited, "true"), "what brings no code is taken"
    limited.agent("one", 1)
    limited.wait_for(first, "STATE_COMPLETED")
    limited.api("DELETE", f"/api/v1/experiments/{first}")
    limited.wait_until(lambda: accepted(limited), 30, "room for more code")


def accepted(cluster: Cluster) -> bool:
    """Try once more; deleting takes a moment."""
    try:
        return create(cluster, "true", os.urandom(60 << 10)) > 0
    except Failed as refused:
        assert refused.status == 400, refused.message
        return False
