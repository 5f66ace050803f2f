"""BLAS is kept to one thread and set free again."""

from __future__ import annotations

import numpy as np
import pytest

from rankfall.linalg.threads import _libraries, single_threaded_blas


def test_one_thread_inside_and_as_before_outside() -> None:
    before = [get() for get, _ in _libraries()]
    with single_threaded_blas():
        assert all(get() == 1 for get, _ in _libraries())
        assert np.linalg.norm(np.eye(3) @ np.eye(3)) == pytest.approx(np.sqrt(3))
    assert [get() for get, _ in _libraries()] == before


def test_restored_after_a_failure() -> None:
    before = [get() for get, _ in _libraries()]
    with pytest.raises(ZeroDivisionError), single_threaded_blas():
        raise ZeroDivisionError
    assert [get() for get, _ in _libraries()] == before
