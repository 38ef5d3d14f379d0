"""Ranks that exchange values and save together, with a context of explicit ranks; prints what it found as JSON."""

import json
import os
import sys
from pathlib import Path

import instep.core
from instep.core._distributed import EXCHANGES_KEPT


def main(storage: str) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed = instep.core.DistributedContext(
        rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1, timeout=60
    )
    assert distributed.allgather({"rank": rank}) == [{"rank": each} for each in range(size)]
    assert distributed.gather((rank, b"x")) == (None if rank else [(each, b"x") for each in range(size)])
    assert distributed.broadcast({1, 2} if rank == 0 else None) == {1, 2}
    assert distributed.allgather_local(float(rank)) == [float(each) for each in range(size)]
    assert distributed.gather_local(rank) == (None if rank else list(range(size)))
    assert distributed.broadcast_local(Path("/x") if rank == 0 else None) == Path("/x")
    for number in range(50):
        assert distributed.allgather(number) == [number] * size
    for number in range(3 * EXCHANGES_KEPT):
        assert distributed.broadcast(number if rank == 0 else None) == number
    assert len(distributed._all._written) <= EXCHANGES_KEPT + 1, "what all have read is deleted"
    with instep.core.init(distributed=distributed, checkpoint_storage=storage) as context:
        errors = []
        for attempt in ("name", "metadata", "script"):
            metadata = {"steps_completed": 1, "key": rank if attempt == "metadata" else 0}
            try:
                with context.checkpoint.store_path(metadata, shard=True) as (path, _):
                    (path / ("same" if attempt == "name" else f"own_{rank}")).write_text(str(rank))
                    if attempt == "script" and rank == 1:
                        raise ValueError("as planned")
            except (RuntimeError, ValueError) as error:
                errors.append(str(error))
        with context.checkpoint.store_path({"steps_completed": 2}, shard=True) as (path, uuid):
            (path / f"own_{rank}").write_text(str(rank))
        with context.checkpoint.restore_path(uuid, selector=lambda name: name == f"own_{rank}") as path:
            found = sorted(each.name for each in path.iterdir())
        print(json.dumps({"rank": rank, "uuid": uuid, "errors": errors, "found": found}))


if __name__ == "__main__":
    main(sys.argv[1])
