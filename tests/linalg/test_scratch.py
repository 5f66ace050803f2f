"""Scratch memory is handed out again, grows when it must, and is never shared between names."""

from __future__ import annotations

import numpy as np

from rankfall.linalg.scratch import Scratch


def test_the_same_memory_for_the_same_name_and_no_larger_a_matrix() -> None:
    scratch = Scratch()
    first = scratch.matrix("a", 4, 6)
    assert np.shares_memory(first, scratch.matrix("a", 5, 3))
    assert not np.shares_memory(first, scratch.matrix("b", 4, 6))
    assert not np.shares_memory(first, scratch.matrix("a", 5, 6))


def test_matrices_are_float64_in_row_order() -> None:
    scratch = Scratch()
    scratch.matrix("a", 9, 9)
    smaller = scratch.matrix("a", 3, 5)
    assert smaller.shape == (3, 5)
    assert smaller.dtype == np.float64
    assert smaller.flags.c_contiguous
