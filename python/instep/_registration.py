"""Makes `backend="instep"` known to torch versions that do not look for it themselves (before 2.14).

Registering needs `torch.distributed`, and `import instep` must not load torch: seconds, for programs that may never use
it. So it happens at once if torch is loaded, and else right after somebody loads it, through an import hook that serves
one module once and leaves everything else about importing as it is.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would be most of this import's cost
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from torch.distributed import Backend

    from instep.backend.groups import CreationOptions

_MODULE = "torch.distributed"
DEVICES = ("cpu", "cuda")
# Under which names we are registered.
names: set[str] = set()


def register_when_torch_is_there() -> None:
    """Register now, or when torch.distributed has been imported."""
    distributed = sys.modules.get(_MODULE)
    if distributed is None:
        if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
            sys.meta_path.insert(0, _AfterImport())
    else:
        _register(distributed)


def _register(distributed: ModuleType) -> None:
    backend = getattr(distributed, "Backend", None)
    # Without it, torch was built without distributed. With the other, torch finds us by our entry point when needed.
    if backend is None or hasattr(backend, "_ensure_backend_registered"):
        return
    register("instep", backend)


def register(name: str, backend: type[Backend]) -> None:
    """Register under this name with torch's class for that; what makes groups is loaded when it is wanted."""
    if name in names:
        return
    names.add(name)

    def create(opts: CreationOptions, _options: object) -> object:
        from instep.backend.groups import create

        return create(opts, name)

    backend.register_backend(name, create, extended_api=True, devices=list(DEVICES))  # type: ignore[arg-type]


class _AfterImport:
    """Stands first in line of those who find modules, until it has seen the one it waits for."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find nothing, except the one module: as the others find it, with a word after it is loaded."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            found = finder.find_spec(name, path, target)
            if found is not None and found.loader is not None:
                _tell_when_loaded(found.loader)
                return found
        return None


def _tell_when_loaded(loader: Loader) -> None:
    load = loader.exec_module

    def load_and_register(module: ModuleType) -> None:
        load(module)
        _register(module)

    loader.exec_module = load_and_register  # type: ignore[method-assign]  # a loader serves one module
