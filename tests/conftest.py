"""Named axes are checked at run time in the core rooms, in every test (but one of masks).

GPU kernels run in Triton's interpreter, which has to be asked for before Triton is first imported.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import jaxtyping
    from jaxtyping import config, install_import_hook

    from tests import axes

CHECKED_ROOMS = ("linalg", "masks", "norms", "mechanism", "measures")


def checked_modules() -> list[str]:
    package = Path(importlib.util.find_spec("rankfall").origin).parent
    missing = [room for room in CHECKED_ROOMS if not (package / room).exists()]
    assert not missing, f"nothing would be checked in {missing}"
    folders = (package / room for room in CHECKED_ROOMS)
    files = [path for room in folders for path in (room.rglob("*.py") if room.is_dir() else [room])]
    return [".".join(["rankfall", *path.relative_to(package).with_suffix("").parts]) for path in files]


jaxtyping.jaxtyped = axes.jaxtyped
install_import_hook(checked_modules(), "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402


def pytest_collection_finish() -> None:
    """Libraries and tests stay to the end: what frees memory in between need not go through them each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Otherwise some libraries complain at the end of what is never freed."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def _unchecked_axes() -> Iterator[None]:
    """For a test that makes a few calls a hundred thousand times: there the checks take most of the time."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def _unwritten_memory_is_nan() -> Iterator[None]:
    """An element that a kernel forgets to write then shows; for tests of kernels."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
