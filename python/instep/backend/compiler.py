"""Keeps `torch.compile` out of this package.

When compiled code calls a collective, torch's compiler looks at every Python function that runs below it, ours too;
there is nothing to gain, and it stumbles over objects it does not know. `torch.compiler.disable` would keep it out, and
loads the whole compiler to do so, seconds in every process. The marks it leaves are set here instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from torch._C._dynamo import eval_frame


def leave_alone(*modules: ModuleType) -> None:
    """Mark every function of these modules, and what it calls, as not to be compiled."""
    for module in modules:
        for code in _codes(vars(module), module.__name__):
            if hasattr(eval_frame, "set_code_exec_strategy"):
                skip = eval_frame._FrameAction.SKIP
                eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
            else:  # torch before 2.7
                eval_frame.skip_code(code)  # type: ignore[attr-defined]


def _codes(names: dict[str, object], module: str) -> Iterator[CodeType]:
    """The code of the functions that a module or a class of it defines."""
    for value in list(names.values()):
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, FunctionType):
            if value.__module__ == module:
                yield value.__code__
        elif isinstance(value, type) and value.__module__ == module:
            yield from _codes(dict(vars(value)), module)
