"""Ranks that share one GPU are killed, one after the other, at random moments of their collectives.

    python tests/gpu/kills.py [--ranks 2,4,8] [--kills 200] [--seed 0]

Needs a GPU, so that it is run by hand. Every survivor must raise `PeerLost` for the rank that was killed within a
second, have a GPU that still computes, rebuild the group with the others, and reduce correctly in it. Ends with 0 if
all of that held for every kill, and prints how long it took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection, wait

# Imported once, by the process that all ranks are forked from; it must not touch the GPU.
import torch
import torch.distributed as dist

import instep  # noqa: F401  # torch before 2.14 does not find the backend by itself
from instep import errors
from instep.backend import reconfigure

TOLD_WITHIN_S = 1.0
HUNG_AFTER_S = 20.0
COUNTS = [2, 1 << 18, 25 << 18]  # 8 bytes, 1 MB, 25 MB of float32


def rank_main(rank: int, world: int, address: tuple[int, str], parent: Connection) -> None:
    """Work until a peer is lost, tell the parent what was seen, rebuild as it says, and work on."""
    torch.cuda.set_device(0)
    port, prefix = address
    server = dist.TCPStore("localhost", port, is_master=False, timeout=timedelta(seconds=60))
    store = dist.PrefixStore(prefix, server)
    dist.init_process_group("instep", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    group = dist.group.WORLD
    assert group is not None
    tensors = {count: torch.ones(count, device="cuda") for count in COUNTS}
    generation = 0
    while True:
        check_sum(world)
        parent.send(("working", generation))
        try:
            work_on(tensors, generation)
        except errors.PeerLost as lost:
            parent.send(("lost", time.monotonic(), lost.ranks[0]))
        torch.cuda.synchronize()
        assert torch.ones(64, 64, device="cuda").mm(torch.ones(64, 64, device="cuda"))[0, 0].item() == 64
        parent.send(("usable", time.monotonic()))
        rank, world, generation = parent.recv()
        reconfigure(group, dist.PrefixStore(f"again/{generation}", store), rank, world, generation)


def work_on(tensors: dict[int, torch.Tensor], generation: int) -> None:
    """Reduce for ever, in every way: waited for, left under way, waited for on the GPU."""
    choice = random.Random(generation)
    while True:
        tensor = tensors[choice.choice(COUNTS)]
        if choice.random() < 0.5:
            dist.all_reduce(tensor)
        else:
            works = [dist.all_reduce(tensor, async_op=True) for _ in range(choice.randrange(1, 4))]
            for work in works:
                work.wait()
        if choice.random() < 0.3:
            torch.cuda.synchronize()
        tensor.fill_(1.0)


def check_sum(world: int) -> None:
    """Whether the group reduces, on the device and through the host."""
    for count in COUNTS:
        tensor = torch.full((count,), 3.0, device="cuda")
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full_like(tensor, 3.0 * world)), (count, tensor[:3], world)


class Rank:
    """One rank, as the parent sees it."""

    def __init__(self, rank: int, world: int, address: tuple[int, str]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                rank_main(rank, world, address, theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        theirs.close()

    def hear(self, what: str, deadline: float) -> tuple[object, ...]:
        """The next message, which must be this one."""
        if not wait([self.pipe], max(deadline - time.monotonic(), 0)):
            raise TimeoutError(f"no {what!r} from process {self.pid}")
        message: tuple[object, ...] = self.pipe.recv()
        if message[0] != what:
            raise RuntimeError(f"process {self.pid} said {message} instead of {what!r}")
        return message

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pipe.close()


def chain(world: int, address: tuple[int, str], chance: random.Random, kills: int) -> list[dict[str, object]]:
    """Kill ranks of a group until one is left, or as many as are wanted."""
    ranks = [Rank(rank, world, address) for rank in range(world)]
    found: list[dict[str, object]] = []
    one: dict[str, object] = {}
    try:
        for rank in ranks:
            rank.hear("working", time.monotonic() + 120)
        while len(ranks) > 1 and len(found) < kills:
            time.sleep(chance.uniform(0.02, 0.5))
            victim = chance.randrange(len(ranks))
            one = {"ranks": len(ranks), "started_with": world, "victim": victim}
            found.append(one)
            began = time.monotonic()
            ranks.pop(victim).end()
            one["gone_s"] = time.monotonic() - began
            deadline = began + HUNG_AFTER_S
            lost = [rank.hear("lost", deadline) for rank in ranks]
            one["told_s"] = max(float(message[1]) for message in lost) - began  # type: ignore[arg-type]
            one["named"] = sorted({message[2] for message in lost})  # type: ignore[type-var]
            usable = [rank.hear("usable", deadline) for rank in ranks]
            one["usable_s"] = max(float(message[1]) for message in usable) - began  # type: ignore[arg-type]
            for number, rank in enumerate(ranks):
                rank.pipe.send((number, len(ranks), len(found)))
            for rank in ranks:
                rank.hear("working", time.monotonic() + HUNG_AFTER_S)
            one["rebuilt_s"] = time.monotonic() - began
            one["right"] = one["named"] == [victim] and float(one["told_s"]) <= TOLD_WITHIN_S  # type: ignore[arg-type]
    except (TimeoutError, RuntimeError, EOFError) as error:
        print(f"failed: {one}: {error!r}", flush=True)
        if not found:
            raise
    finally:
        for rank in ranks:
            rank.end()
    return found


def main() -> int:
    """Kill as often as asked, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=500, help="begin nothing new after so long")
    options = parser.parse_args()
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    chance = random.Random(options.seed)
    worlds = [int(word) for word in options.ranks.split(",")]
    share = -(-options.kills // len(worlds))
    began, found = time.monotonic(), []
    for world in worlds:
        here: list[dict[str, object]] = []
        while len(here) < share and time.monotonic() - began < options.seconds:
            address = (server.port, f"{world}/{len(here)}")
            here.extend(chain(world, address, chance, share - len(here)))
        found.extend(here)
        right = sum(bool(one.get("right")) for one in here)
        told = sorted(float(one["told_s"]) for one in here if "told_s" in one)  # type: ignore[arg-type]
        middle, last = (told[len(told) // 2], told[-1]) if told else (float("nan"),) * 2
        print(f"from {world} ranks: {right} of {len(here)} kills right, told after {middle:.3f} s, at most {last:.3f}")
    right = sum(bool(one.get("right")) for one in found)
    print(json.dumps({"kills": len(found), "right": right, "wrong": [one for one in found if not one.get("right")]}))
    return 0 if right == len(found) and len(found) >= options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
