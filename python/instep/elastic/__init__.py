"""Lose a rank, keep the step: training that goes on when one of its processes dies.

    session = instep.elastic.Session(model, optimizer, scheduler=scheduler)
    for epoch in session.epochs(10):
        for inputs, targets in session.batches(loader):
            with session.step():
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

Under `instep run --recover step` a rank that dies is replaced by a new process while the others wait. The replacement
gets their weights and optimizer state, and the step that was interrupted is done again, with the same samples and the
same random numbers: the same bits come out as if nothing had happened. Started in any other way, a session trains the
same way and recovers nothing.

What a session needs of a script:

- All collectives of a step are inside `with session.step()`, before the first `optimizer.step()` in it. A rank that is
  lost during a collective elsewhere ends the round, and all workers start again.
- What the step changes before `optimizer.step()` is known to the session: buffers of the model, and objects given as
  `private`. Parameters, optimizers, schedulers and objects given as `state` are changed at or after `optimizer.step()`.
- Data has an order: a `DataLoader` of a data set with a length, or a sequence of batches.

Refused: FSDP and other sharded modules, CUDA tensors, optimizers that evaluate the model in their step (LBFGS).
"""

from __future__ import annotations

from instep.elastic.session import CannotRecover, Session

__all__ = ["CannotRecover", "Session"]
