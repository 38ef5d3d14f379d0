"""How busy the machine is: processors, memory and GPUs, as groups of metrics of their own.

The first rank of every machine looks every ten seconds, on a thread of its own, and reports under the groups `cpu`,
`memory` and `gpu`, which are known by time and not by step. Where there are several machines, names begin with the
host's.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from instep._native import Reporter

INTERVAL_S = 10.0


class ProfilerContext:
    """Looks at the machine while training runs; `off()` ends it, `on()` begins again."""

    def __init__(self, reporter: Reporter | None, prefix: str | None) -> None:
        self._reporter = reporter
        self._prefix = prefix
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def on(self, sampling_interval: float = INTERVAL_S, samples_per_report: int = 1) -> None:
        """Look every `sampling_interval` seconds, and report averages of so many looks."""
        if sampling_interval < 0.1 or samples_per_report < 1:
            raise ValueError("an interval must be at least 0.1 s, a report at least one sample")
        if self._reporter is None or self._thread is not None:
            return
        self._stopping.clear()
        arguments = (self._reporter, sampling_interval, samples_per_report)
        self._thread = threading.Thread(target=self._run, args=arguments, name="instep-profiler", daemon=True)
        self._thread.start()

    def off(self) -> None:
        """Look no more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join(timeout=5)

    def _run(self, reporter: Reporter, interval: float, samples: int) -> None:
        processors, gpus = Processors(), Gpus()
        gathered: list[dict[str, dict[str, float]]] = []
        while not self._stopping.wait(interval):
            gathered.append({"cpu": processors.sample(), "memory": memory(), "gpu": gpus.sample()})
            if len(gathered) < samples:
                continue
            try:
                for group, metrics in averages(gathered).items():
                    if metrics:
                        reporter.report(group, None, {f"{self._prefix or ''}{name}": metrics[name] for name in metrics})
            except RuntimeError:
                return  # closed, or refused for good
            gathered.clear()


def averages(samples: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Give the mean of every metric over the samples that have it."""
    found: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for group, metrics in sample.items():
            for name, value in metrics.items():
                found.setdefault(group, {}).setdefault(name, []).append(value)
    return {
        group: {name: sum(values) / len(values) for name, values in metrics.items()} for group, metrics in found.items()
    }


class Processors:
    """How much of the processors' time was used since the last look."""

    def __init__(self) -> None:
        self._before = self._times()

    def sample(self) -> dict[str, float]:
        """Give the share in percent."""
        now = self._times()
        if now is None or self._before is None:
            return {}
        total, idle = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        return {"cpu_util": 100.0 * (total - idle) / total} if total > 0 else {}

    @staticmethod
    def _times() -> tuple[int, int] | None:
        with contextlib.suppress(OSError, ValueError, IndexError), Path("/proc/stat").open() as file:
            fields = [int(word) for word in file.readline().split()[1:9]]
            return sum(fields), fields[3] + fields[4]
        return None


def memory() -> dict[str, float]:
    """Give the machine's memory in use and free, in GiB."""
    with contextlib.suppress(OSError, ValueError, KeyError), Path("/proc/meminfo").open() as file:
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in file}
        free = kibibytes["MemAvailable"] / (1 << 20)
        return {"memory_free_gib": free, "memory_used_gib": kibibytes["MemTotal"] / (1 << 20) - free}
    return {}


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpus:
    """NVIDIA's GPUs, through the library that comes with their driver; none where there is no driver."""

    def __init__(self) -> None:
        self._handles: list[ctypes.c_void_p] = []
        self._library: Any = None
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            count = ctypes.c_uint()
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
                for index in range(count.value):
                    handle = ctypes.c_void_p()
                    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
                        self._handles.append(handle)
                self._library = library

    def sample(self) -> dict[str, float]:
        """Give use in percent and memory in GiB of every GPU."""
        found: dict[str, float] = {}
        for index, handle in enumerate(self._handles):
            use, space = _Utilization(), _Memory()
            if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)) == 0:
                found[f"gpu{index}_util"] = float(use.gpu)
            if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(space)) == 0:
                found[f"gpu{index}_memory_used_gib"] = space.used / (1 << 30)
                found[f"gpu{index}_memory_free_gib"] = space.free / (1 << 30)
        return found


def host_prefix(machines: int) -> str | None:
    """Give what names begin with; None for a single machine."""
    return f"{socket.gethostname().split('.')[0]}/" if machines > 1 else None
