"""The figures as a table for people: one block for each operation, one line for each size, one column a backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from instep.bench.case import Figure, spell_size

SIZE_WIDTH = 10
TIME_WIDTH = 10
RATE_WIDTH = 9
RATIO_WIDTH = 8
GAP = "  "


def headings(operation: str, backends: Sequence[str]) -> Iterator[str]:
    """The two lines above an operation's figures."""
    yield operation
    names = [f"{'size':>{SIZE_WIDTH}}"]
    units = [f"{'bytes':>{SIZE_WIDTH}}"]
    for position, backend in enumerate(backends):
        width = TIME_WIDTH + 2 * RATE_WIDTH + (RATIO_WIDTH if position else 0)
        names.append(f"{backend:>{width}}")
        ratio = f"{'ratio':>{RATIO_WIDTH}}" if position else ""
        units.append(f"{'time':>{TIME_WIDTH}}{'algbw':>{RATE_WIDTH}}{'busbw':>{RATE_WIDTH}}{ratio}")
    yield GAP.join(names)
    yield GAP.join(units)


def line(backends: Sequence[str], figures: Sequence[Figure]) -> str:
    """One size: times, bandwidths, and each backend's time as a multiple of the first one's."""
    by_backend = {figure.backend: figure for figure in figures}
    first = by_backend.get(backends[0])
    cells = [f"{spell_size(figures[0].case.size_bytes):>{SIZE_WIDTH}}"]
    for position, backend in enumerate(backends):
        figure = by_backend.get(backend)
        width = TIME_WIDTH + 2 * RATE_WIDTH + (RATIO_WIDTH if position else 0)
        if figure is None:
            cells.append(f"{'-':>{width}}")
            continue
        ratio = ""
        if position:
            ratio = f"{figure.time_s / first.time_s:>{RATIO_WIDTH - 1}.2f}x" if first else f"{'':>{RATIO_WIDTH}}"
        cells.append(
            f"{spell_time(figure.time_s):>{TIME_WIDTH}}"
            f"{figure.algorithm_gb_s:>{RATE_WIDTH}.2f}{figure.bus_gb_s:>{RATE_WIDTH}.2f}{ratio}"
        )
    return GAP.join(cells)


def spell_time(seconds: float) -> str:
    """Microseconds up to a thousand, milliseconds beyond, three or four digits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
