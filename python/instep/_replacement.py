"""Makes groups that request gloo use instep, where `INSTEP_REPLACE=gloo` is set.

Frameworks choose gloo by themselves, and many refuse a backend that they do not know. Torch (2.14 and later) keeps what
makes gloo's groups in a table; we put ourselves before it there, so that all names stay what scripts expect.

Torch calls `install` at the end of its own import, as an entry point of the group `torch.backends`: under any launcher,
in processes that scripts start, and with nothing that runs when Python starts. Without the variable it does nothing,
and what makes groups is loaded when one is wanted.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would be most of this import's cost
if TYPE_CHECKING:
    from instep.backend.groups import CreationOptions
    from instep.backend.replacement import Made

VARIABLE = "INSTEP_REPLACE"


def install() -> None:
    """Stand before gloo, if the variable says so."""
    if not os.environ.get(VARIABLE):
        return
    import torch
    from torch import distributed

    if not distributed.is_available():
        return
    register = getattr(distributed.Backend, "_ensure_backend_registered", None)
    if register is not None:
        register("gloo")
    plugins = distributed.Backend._plugins
    gloo = plugins.get("GLOO")
    if gloo is None:
        if os.environ.get("RANK", "0") == "0":
            say(f"gloo is not replaced: torch {torch.__version__} does not allow it; use 2.14 or later")
        return

    def create(opts: CreationOptions, options: object) -> Made:
        from instep.backend import replacement

        # Which backend the group has for which device is known nowhere but in the function that calls this one.
        config = sys._getframe(1).f_locals.get("backend_config")
        backends = dict(config.get_device_backend_map()) if config is not None else {}
        return replacement.create(opts, backends, lambda: gloo.creator_fn(opts, options))

    plugins["GLOO"] = gloo._replace(creator_fn=create)


def say(text: str) -> None:
    """Tell people what became of their choice of backend."""
    sys.stderr.write(f"instep: {text}\n")
    sys.stderr.flush()
