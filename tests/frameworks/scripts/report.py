"""What a script came to, for the test to compare: its last loss, the sum of its weights, and who made its groups."""

import json
from collections.abc import Iterable

import torch
import torch.distributed as dist


def report(weights: torch.nn.Module | Iterable[torch.Tensor], loss: float) -> None:
    tensors = weights.parameters() if isinstance(weights, torch.nn.Module) else weights
    total = 0.0
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        total += whole.detach().double().abs().sum().item()
    world = dist.group.WORLD
    ours = "instep" in type(world).__module__ or "instep" in type(world._get_backend(torch.device("cpu"))).__module__
    if dist.get_rank() == 0:
        found = {"loss": loss, "weights": total, "backend": dist.get_backend(), "on_instep": ours}
        print("RESULT " + json.dumps(found), flush=True)
