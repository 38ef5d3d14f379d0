"""What this rank's time is spent on, for `instep run`'s report of goodput.

There is a ledger where there is a flight recorder, for the thread that made it; elsewhere all of this does nothing.
The rank has one activity at a time: what is neither waiting nor saving is computing. A switch costs tens of nanoseconds
beside the call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from instep import _native

# Numbers of the activities, as `crates/recorder/src/ledger.rs` has them.
COMPUTE, DATA, CHECKPOINT, RESTART = 1, 3, 4, 5

switch = _native.ledger_switch
begin_wait = _native.ledger_begin_wait
end_wait = _native.ledger_end_wait
take_over = _native.ledger_take_over
begin_training = _native.ledger_begin_training
begin_attempt = _native.ledger_begin_attempt
commit = _native.ledger_commit
abort_attempt = _native.ledger_abort_attempt

os.register_at_fork(after_in_child=_native.ledger_forget)


@contextmanager
def during(activity: int) -> Iterator[None]:
    """Book the time of a block as this."""
    before = switch(activity)
    try:
        yield
    finally:
        switch(before)
