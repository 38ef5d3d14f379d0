"""What `--replace-gloo` gives Lightning and the Hugging Face Trainer: steps per second, with and without.

    .venv/bin/python bench/frameworks.py [--ranks 2] [--rounds 3] [--steps 40] [--json FILE]

Both jobs are data-parallel on CPUs, one thread for each rank. A round starts each job twice, on gloo and with
`--replace-gloo`, one after the other, so that a noisy machine disturbs both alike. A job's figure is the inverse of its
median step, without the first ones; a row shows the medians of the rounds. Needs `python3 scripts/build.py frameworks`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(sys.executable).parent
FRAMEWORKS = ROOT / "build" / "frameworks" / "bin" / "python"
JOBS = ("lightning", "trainer")
WARM_UP = 5


class Clock:
    """The times between steps."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def mark(self) -> None:
        """A step has ended."""
        self.marks.append(time.perf_counter())

    def per_second(self) -> float:
        """Steps per second, by the median step after the first ones."""
        steps = [end - begin for begin, end in zip(self.marks, self.marks[1:], strict=False)]
        return 1 / statistics.median(steps[WARM_UP:])


def lightning_job(steps: int) -> dict[str, Any]:
    """A perceptron of 6.3 million parameters under Lightning's DDP."""
    import lightning
    import torch

    clock = Clock()

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(6)]
            self.net = torch.nn.Sequential(*layers)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.net(batch[0]).square().mean()

        def on_train_batch_end(self, *_: object) -> None:
            clock.mark()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    model = Model()
    ranks = int(os.environ["WORLD_SIZE"])
    data = torch.utils.data.TensorDataset(torch.randn(16 * steps * ranks, 1024))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16))
    return described(model, clock)


def trainer_job(steps: int) -> dict[str, Any]:
    """A small Llama with random weights under the Hugging Face Trainer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    clock = Clock()

    class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 4 * steps * int(os.environ["WORLD_SIZE"])

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            tokens = (torch.arange(32) * 7 + index) % 8000
            return {"input_ids": tokens, "labels": tokens}

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: object, **__: object) -> None:
            clock.mark()

    config = LlamaConfig(
        vocab_size=8000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            per_device_train_batch_size=4,
            max_steps=steps,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Marks()]).train()
    return described(model, clock)


def described(model: Any, clock: Clock) -> dict[str, Any]:  # noqa: ANN401  # torch is only there in the ranks
    """What a job found out."""
    import torch
    import torch.distributed as dist

    return {
        "steps_per_second": clock.per_second(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "group": type(dist.group.WORLD).__module__.partition(".")[0],
        "torch": torch.__version__,
    }


def measure(job: str, ranks: int, steps: int, *, replaced: bool) -> dict[str, Any]:
    """Run a job once."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        launch = [str(VENV / "instep"), "run", "--python", str(FRAMEWORKS), f"--nproc-per-node={ranks}", "--no-status"]
        option = ["--replace-gloo"] if replaced else []
        script = [str(Path(__file__).resolve()), "--steps", str(steps), "--job", job, "--rank-result", str(result)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*launch, *option, *script], env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"the job {job} failed\n{done.stdout}{done.stderr}")
        found: dict[str, Any] = json.loads(result.read_text())
    assert found["group"] == ("instep" if replaced else "torch"), "who made the groups is not who should have"
    return found


def main() -> int:
    """Start the jobs, print a table, the ratios and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)  # these are given to the ranks
    parser.add_argument("--rank-result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < WARM_UP + 3:
        parser.error(f"--steps must be {WARM_UP + 3} or more: the first {WARM_UP} do not count")
    if options.job is not None:
        found = lightning_job(options.steps) if options.job == "lightning" else trainer_job(options.steps)
        if os.environ["RANK"] == "0":
            options.rank_result.write_text(json.dumps(found))
        return 0
    if not FRAMEWORKS.exists():
        parser.error(f"there is no {FRAMEWORKS}\nhint: python3 scripts/build.py frameworks")

    rates: dict[str, dict[str, list[float]]] = {job: {"gloo": [], "replaced": []} for job in JOBS}
    facts: dict[str, Any] = {}
    for number in range(options.rounds):
        for job in JOBS:
            for kind, values in rates[job].items():
                facts[job] = measure(job, options.ranks, options.steps, replaced=kind == "replaced")
                values.append(facts[job]["steps_per_second"])
        print(f"\rround {number + 1} of {options.rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)

    median = {job: {kind: statistics.median(values) for kind, values in kinds.items()} for job, kinds in rates.items()}
    ratio = {job: kinds["replaced"] / kinds["gloo"] for job, kinds in median.items()}
    cores, torch = len(os.sched_getaffinity(0)), facts[JOBS[0]]["torch"]
    print(f"{options.ranks} ranks on {cores} cores, torch {torch}; steps per second")
    print(f"{'':10} {'parameters':>12} {'gloo':>10} {'replaced':>10} {'ratio':>8}")
    for job in JOBS:
        row = (facts[job]["parameters"] / 1e6, median[job]["gloo"], median[job]["replaced"], ratio[job])
        print(f"{job:10} {row[0]:10.1f} M {row[1]:10.2f} {row[2]:10.2f} {row[3]:8.2f}")

    report = {
        "cores": cores,
        "ranks": options.ranks,
        "steps": options.steps,
        "torch": torch,
        "steps_per_second": rates,
        "ratio": ratio,
        "within": {"ratio > 1 for both jobs": min(ratio.values()) > 1},
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({"within": report["within"]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
