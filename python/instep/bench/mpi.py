"""Open MPI's collectives called from Python through ctypes, on tensors' memory.

Only Open MPI, because only there are the handles known without a compiler: `MPI_COMM_WORLD` and the like are the
addresses of objects with fixed names. The process must have been started by `mpirun`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from pathlib import Path

from instep.bench.case import ROOT, Case

# Open MPI's value of MPI_IN_PLACE.
IN_PLACE = ctypes.c_void_p(1)


class MpiError(RuntimeError):
    """Open MPI is not there, or a call failed."""


def library_path() -> Path | str:
    """Find Open MPI's library: as the linker does, then beside `mpirun`'s own libraries."""
    if found := ctypes.util.find_library("mpi"):
        return found
    for pattern in ("/usr/lib/*/libmpi.so*", "/usr/lib*/openmpi/lib/libmpi.so*", "/usr/local/lib/libmpi.so*"):
        if paths := sorted(Path("/").glob(pattern.lstrip("/"))):
            return paths[0]
    raise MpiError("cannot find libmpi.so")


class OpenMpi:
    """MPI_COMM_WORLD of this process."""

    def __init__(self) -> None:
        """Load the library and join the others."""
        path = library_path()
        try:
            # Global: Open MPI loads its own plug-ins, which look for the library's symbols.
            self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            self._world = self._handle("ompi_mpi_comm_world")
            self._float = self._handle("ompi_mpi_float")
            self._sum = self._handle("ompi_mpi_op_sum")
        except (OSError, ValueError) as error:
            raise MpiError(f"{path} is not Open MPI: {error}") from error
        self._succeed("MPI_Init", self._library.MPI_Init(None, None))
        rank, size = ctypes.c_int(), ctypes.c_int()
        self._succeed("MPI_Comm_rank", self._library.MPI_Comm_rank(self._world, ctypes.byref(rank)))
        self._succeed("MPI_Comm_size", self._library.MPI_Comm_size(self._world, ctypes.byref(size)))
        self.rank, self.size = rank.value, size.value

    def _handle(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._library, name)))

    def _succeed(self, name: str, status: int) -> None:
        if status != 0:
            raise MpiError(f"{name} failed with code {status}")

    def call(self, case: Case, source: int, result: int) -> Callable[[], None]:
        """Prepare one call on the buffers at these addresses; `result` is 0 for operations in place."""
        library, world, item, plus = self._library, self._world, self._float, self._sum
        root, at_root = ctypes.c_int(ROOT), self.rank == ROOT
        count, share = ctypes.c_int(case.count), ctypes.c_int(case.share)
        put, get, nowhere = ctypes.c_void_p(source), ctypes.c_void_p(result), ctypes.c_void_p(0)
        arguments: tuple[object, ...]
        match case.operation:
            case "barrier":
                name, arguments = "MPI_Barrier", (world,)
            case "all_reduce":
                name, arguments = "MPI_Allreduce", (IN_PLACE, put, count, item, plus, world)
            case "broadcast":
                name, arguments = "MPI_Bcast", (put, count, item, root, world)
            case "reduce":
                buffers = (IN_PLACE, put) if at_root else (put, nowhere)
                name, arguments = "MPI_Reduce", (*buffers, count, item, plus, root, world)
            case "reduce_scatter":
                name, arguments = "MPI_Reduce_scatter_block", (put, get, share, item, plus, world)
            case "all_gather":
                name, arguments = "MPI_Allgather", (put, share, item, get, share, item, world)
            case "all_to_all":
                name, arguments = "MPI_Alltoall", (put, share, item, get, share, item, world)
            case "gather":
                name, arguments = "MPI_Gather", (put, share, item, get, share, item, root, world)
            case "scatter":
                name, arguments = "MPI_Scatter", (put, share, item, get, share, item, root, world)
            case unknown:
                raise ValueError(f"unknown operation {unknown!r}")
        function = getattr(library, name)

        def call() -> None:
            if status := function(*arguments):
                raise MpiError(f"{name} failed with code {status}")

        return call

    def close(self) -> None:
        """Leave; nothing may be called after it."""
        self._succeed("MPI_Finalize", self._library.MPI_Finalize())
