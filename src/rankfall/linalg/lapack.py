"""LAPACK routines called so that other threads run meanwhile.

SciPy's own Python wrappers of these hold the interpreter lock; the same compiled routines are published as C
pointers for other languages (`scipy.linalg.cython_lapack`), and calling those through ctypes lets go of it. That is
what allows measuring one layer while the model computes the next.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Columns that dsytrd gathers into one matrix product; 16 and 24 were the fastest of 8 to 64 at 512 rows.
BLOCK = 16

# Bisection ends at neighbouring floats; what is smaller than the pivot counts as it.
BISECTION_TOLERANCE = 4 * float(np.finfo(np.float64).eps)
SMALLEST_PIVOT = float(np.finfo(np.float64).tiny)


@cache
def _routine(name: str, arguments: int) -> Any:
    from scipy.linalg import cython_lapack

    published: Any = cython_lapack.__pyx_capi__
    capsule = published[name]
    read_name = ctypes.pythonapi.PyCapsule_GetName
    read_name.restype, read_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    read_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    read_pointer.restype, read_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * arguments))
    return signature(read_pointer(capsule, read_name(capsule)))


def tridiagonalise(symmetric: Matrix) -> tuple[Vector, Vector]:
    """Diagonal and off-diagonal of Q^T A Q, where Q leaves the first coordinate alone. Overwrites A.

    A is float64 in column order; only its lower triangle is read.
    """
    size = symmetric.shape[0]
    if not (symmetric.flags.f_contiguous and symmetric.dtype == np.float64):
        raise TypeError("dsytrd needs a float64 matrix in column order")
    diagonal, off, reflectors = np.empty(size), np.empty(max(size - 1, 1)), np.empty(max(size - 1, 1))
    work = np.empty(BLOCK * size)
    n, room, info = ctypes.c_int(size), ctypes.c_int(work.size), ctypes.c_int(0)
    by = ctypes.byref
    _routine("dsytrd", 10)(
        ctypes.c_char_p(b"L"),
        by(n),
        symmetric.ctypes.data,
        by(n),
        diagonal.ctypes.data,
        off.ctypes.data,
        reflectors.ctypes.data,
        work.ctypes.data,
        by(room),
        by(info),
    )
    _succeeded("dsytrd", info.value)
    return diagonal, off[: size - 1]


def tridiagonal_eigenvalues(diagonal: Vector, off: Vector) -> Vector:
    """Eigenvalues of a symmetric tridiagonal matrix, smallest first (square-root-free QL, O(n^2))."""
    values = np.array(diagonal, dtype=np.float64)
    scratch = np.array(off, dtype=np.float64) if off.size else np.zeros(1)
    n, info = ctypes.c_int(values.size), ctypes.c_int(0)
    _routine("dsterf", 4)(ctypes.byref(n), values.ctypes.data, scratch.ctypes.data, ctypes.byref(info))
    _succeeded("dsterf", info.value)
    return values


def solve_lower(lower: Matrix, given: Vector, transposed: bool = False) -> Vector:
    """x with L x = given, or L^T x = given. L is float64 in column order, and its diagonal has no zero."""
    size = lower.shape[0]
    if not (lower.flags.f_contiguous and lower.dtype == np.float64):
        raise TypeError("dtrtrs needs a float64 matrix in column order")
    solution = np.array(given, dtype=np.float64)
    n, one, info = ctypes.c_int(size), ctypes.c_int(1), ctypes.c_int(0)
    by = ctypes.byref
    _routine("dtrtrs", 10)(
        ctypes.c_char_p(b"L"),
        ctypes.c_char_p(b"T" if transposed else b"N"),
        ctypes.c_char_p(b"N"),
        by(n),
        by(one),
        lower.ctypes.data,
        by(n),
        solution.ctypes.data,
        by(n),
        by(info),
    )
    _succeeded("dtrtrs", info.value)
    return solution


def tridiagonal_eigenvalue(diagonal: Vector, off: Vector, index: int, low: float, high: float) -> float:
    """The eigenvalue with `index` smaller ones, known to lie between `low` and `high` (bisection, O(n) a step)."""
    squares = np.square(off) if off.size else np.zeros(1)
    found, error, info = ctypes.c_double(), ctypes.c_double(), ctypes.c_int(0)
    by = ctypes.byref
    _routine("dlarrk", 11)(
        by(ctypes.c_int(diagonal.size)),
        by(ctypes.c_int(index + 1)),
        by(ctypes.c_double(low)),
        by(ctypes.c_double(high)),
        diagonal.ctypes.data,
        squares.ctypes.data,
        by(ctypes.c_double(SMALLEST_PIVOT)),
        by(ctypes.c_double(BISECTION_TOLERANCE)),
        by(found),
        by(error),
        by(info),
    )
    _succeeded("dlarrk", info.value)
    return found.value


def tridiagonal_counts(diagonal: Vector, off: Vector, low: float, high: float) -> tuple[int, int]:
    """How many eigenvalues are at most `low`, and how many at most `high` (two Sturm counts in one pass, O(n)).

    A pivot that is exactly zero miscounts; it cannot be zero for both bounds.
    """
    between, below, up_to, info = (ctypes.c_int(0) for _ in range(4))
    by = ctypes.byref
    _routine("dlarrc", 11)(
        ctypes.c_char_p(b"T"),
        by(ctypes.c_int(diagonal.size)),
        by(ctypes.c_double(low)),
        by(ctypes.c_double(high)),
        diagonal.ctypes.data,
        (off if off.size else np.zeros(1)).ctypes.data,
        by(ctypes.c_double(SMALLEST_PIVOT)),
        by(between),
        by(below),
        by(up_to),
        by(info),
    )
    _succeeded("dlarrc", info.value)
    return below.value, up_to.value


def tridiagonal_pivots(diagonals: Matrix, off: Vector) -> Matrix | None:
    """Pivots of several matrices with the same off-diagonal, one a row; their product is the determinant.

    Overwrites the diagonals. None when one of the matrices is not positive definite. All are factored as one matrix
    that falls into blocks, in a single call.
    """
    rows, size = diagonals.shape
    joined = np.zeros((rows, size))
    joined[:, : size - 1] = off
    n, info = ctypes.c_int(rows * size), ctypes.c_int(0)
    _routine("dpttrf", 4)(ctypes.byref(n), diagonals.ctypes.data, joined.ctypes.data, ctypes.byref(info))
    return diagonals if info.value == 0 else None


def _succeeded(routine: str, info: int) -> None:
    if info != 0:
        raise ArithmeticError(f"LAPACK's {routine} gave up with info {info}")
