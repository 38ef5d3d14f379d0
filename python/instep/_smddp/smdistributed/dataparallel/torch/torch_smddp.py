"""Makes `backend="smddp"` known to torch.distributed: instep's collectives under the name SageMaker's scripts use.

    import smdistributed.dataparallel.torch.torch_smddp
    import torch.distributed as dist

    dist.init_process_group(backend="smddp")

The folders above this file are namespace packages on purpose (no `__init__.py`): wherever Amazon's own
`smdistributed` is installed, its files are found before these, whichever way it is packaged.
"""

from __future__ import annotations

from instep import backend

__all__: list[str] = []

backend.register("smddp")
