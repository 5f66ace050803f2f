"""Named axes are checked at run time in the core rooms, for every call that any test makes."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from jaxtyping import install_import_hook

CHECKED_ROOMS = ["rankfall.linalg", "rankfall.attention", "rankfall.measures"]
install_import_hook(CHECKED_ROOMS, "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
