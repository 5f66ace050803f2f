"""Keep NumPy's and SciPy's BLAS to one thread for a while.

Several of our own threads call BLAS at once, beside a model that keeps all cores busy. If each call spread over all
cores too, most of their time would go into waiting for each other.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

PREFIXES = ("scipy_openblas", "openblas")
SUFFIXES = ("", "64_", "_64_")

Setter = Callable[[int], None]
Getter = Callable[[], int]


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """One BLAS thread inside, as many as before outside; does nothing where the library cannot be told."""
    libraries = _libraries()
    before = [get() for get, _ in libraries]
    for _, choose in libraries:
        choose(1)
    try:
        yield
    finally:
        for (_, choose), count in zip(libraries, before, strict=True):
            choose(count)


@cache
def _libraries() -> tuple[tuple[Getter, Setter], ...]:
    """Reader and writer of the thread count of every OpenBLAS that this process has loaded."""
    import numpy.linalg
    import scipy.linalg.cython_lapack

    assert numpy.linalg
    assert scipy.linalg.cython_lapack
    table = Path("/proc/self/maps")
    if not table.exists():
        return ()
    lines = (line.split(maxsplit=5) for line in table.read_text().splitlines())
    paths = sorted({line[5] for line in lines if len(line) > 5 and "openblas" in line[5]})
    found = (_functions(path) for path in paths if Path(path).exists())
    return tuple(one for one in found if one is not None)


def _functions(path: str) -> tuple[Getter, Setter] | None:
    library = ctypes.CDLL(path)
    for prefix in PREFIXES:
        for suffix in SUFFIXES:
            get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            choose = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            if get is not None and choose is not None:
                return get, choose
    return None
