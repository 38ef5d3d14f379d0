"""Trains a small model on any number of ranks, and records metrics and sharded checkpoints with `instep.core`.

    python examples/detached/train.py                                    # alone, nothing recorded
    INSTEP_MASTER=localhost:8080 instep run --nproc-per-node 2 examples/detached/train.py

Started again with the same --name, it goes on from its last checkpoint.
"""

import argparse
import os

import torch
import torch.distributed as dist

import instep.core


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="line")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--storage", help="folder for checkpoints, shared by all ranks")
    arguments = parser.parse_args()

    distributed = None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        distributed = instep.core.DistributedContext.from_torch_distributed()
    config = instep.core.Config(
        name=arguments.name,
        hparams={"rate": 0.1},
        searcher={"name": "single", "metric": "loss", "smaller_is_better": True},
        external_experiment_id=f"examples/{arguments.name}",
        external_trial_id="0",
    )
    with instep.core.init(config=config, distributed=distributed, checkpoint_storage=arguments.storage) as context:
        train(context, arguments.steps)


def train(context: instep.core.Context, steps: int) -> None:
    rank, size = context.distributed.rank, context.distributed.size
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = 0
    latest = context.info.latest_checkpoint if context.info else None
    if latest is not None:
        with context.checkpoint.restore_path(latest) as path:
            start = context.checkpoint.get_metadata(latest)["steps_completed"]
            model.load_state_dict(torch.load(path / "model.pt"))
        print(f"rank {rank} goes on from step {start}")

    generator = torch.Generator().manual_seed(rank)
    for step in range(start + 1, steps + 1):
        inputs = torch.rand(32, 1, generator=generator)
        loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs + 1)
        optimizer.zero_grad()
        loss.backward()
        if size > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= size
        optimizer.step()
        context.train.report_metrics(f"rank {rank}", step, {"loss": loss.item()})
        if rank == 0:
            context.train.report_training_metrics(step, {"loss": loss.item()})
            context.train.report_progress(step / steps)
        if step % 50 == 0 or step == steps:
            if rank == 0:
                context.train.report_validation_metrics(step, {"loss": loss.item()})
            # Every rank saves what it alone has; rank 0 also saves what all have.
            with context.checkpoint.store_path({"steps_completed": step}, shard=True) as (path, _):
                torch.save(generator.get_state(), path / f"random_{rank}.pt")
                if rank == 0:
                    torch.save(model.state_dict(), path / "model.pt")
    print(f"rank {rank} ends at step {steps} with loss {loss.item():.4f}" if steps > start else "nothing left to do")


if __name__ == "__main__":
    main()
