"""Tells Determined's package where this task's folders are, on machines where they cannot be at their fixed paths.

Python imports this at its start. Nothing on disk is changed: the modules that hold the fixed paths get others when they
are imported.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys

_FIXED = "/run/determined"
_SHARED = "/determined_shared_fs"
_MODULES = ("determined._info", "determined.constants", "determined.common.constants")
_HERE = os.path.dirname(os.path.abspath(__file__))


def _moved(value):
    """The path in this task's folder, for a path in the fixed one; anything else as it is."""
    if isinstance(value, str) and (value == _FIXED or value.startswith(_FIXED + "/")):
        return os.environ["DET_RUN_DIR"] + value[len(_FIXED) :]
    if value == _SHARED:
        return _shared_folder() or value
    return value


def _shared_folder():
    """The folder of checkpoints itself, which is mounted nowhere."""
    storage = json.loads(os.environ.get("DET_EXPERIMENT_CONFIG", "{}")).get("checkpoint_storage") or {}
    return storage.get("host_path")


def _move_paths(module):
    for name, value in list(vars(module).items()):
        if isinstance(value, str):
            setattr(module, name, _moved(value))
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for method in ("_to_file", "_from_file"):
                function = vars(value).get(method)
                function = getattr(function, "__func__", function)
                if function is not None and function.__defaults__:
                    function.__defaults__ = tuple(_moved(default) for default in function.__defaults__)


class _Finder:
    """Finds these modules as usual, and looks at them after they have run."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_move(module):
            run(module)
            _move_paths(module)

        spec.loader.exec_module = run_and_move
        return spec


def _run_the_other():
    """Another module of this name, which this one hides, has its turn too."""
    folders = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("DET_RUN_DIR", _FIXED) != _FIXED:
    sys.meta_path.insert(0, _Finder)
_run_the_other()
