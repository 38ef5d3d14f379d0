"""`init_process_group(backend="smddp")` without any import: torch 2.14 and later find `register` as an entry point."""

from __future__ import annotations

import importlib


def register() -> None:
    """Make the backend known to torch: Amazon's where it is installed, else ours.

    Both are found under one name, Amazon's first; importing it registers the backend.
    """
    try:
        importlib.import_module("smdistributed.dataparallel.torch.torch_smddp")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("smdistributed"):
            raise
        # No site-packages: the package was put on the path by other means, without the `.pth` file beside it.
        from instep.backend import register as register_backend

        register_backend("smddp")
