"""The Hugging Face Trainer on a small model with random weights: nothing is downloaded."""

import sys
import tempfile

import torch
from report import report
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


def tokens(index: int) -> dict[str, torch.Tensor]:
    line = (torch.arange(16) * 3 + index) % 97
    return {"input_ids": line, "labels": line}


def main(ddp_backend: str | None) -> None:
    set_seed(7)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=32,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend=ddp_backend,
            per_device_train_batch_size=4,
            num_train_epochs=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=7,
        )
        done = Trainer(model=model, args=arguments, train_dataset=[tokens(index) for index in range(64)]).train()
    report(model, done.training_loss)


main(sys.argv[1] if len(sys.argv) > 1 else None)
