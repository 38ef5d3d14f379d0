"""Random numbers that depend on where the training is, not on how it came there.

Every step begins with generators seeded from (seed, step, rank), every batch is loaded with generators seeded from
(seed, epoch, batch, rank): what is done again, here or in another process, draws the same numbers.
"""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def derive(*parts: int | str) -> int:
    """A seed for what these parts name."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch in this process."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
