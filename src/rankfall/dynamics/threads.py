"""Small problems on one thread: handing a few thousand numbers to several costs more than computing with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

# Token numbers per thread below which a second thread does not pay.
NUMBERS_PER_THREAD = 65_536


@contextlib.contextmanager
def fitting_threads(numbers: int) -> Iterator[None]:
    """Use as many of the allowed threads as the number of entries pays for; the setting is restored afterwards."""
    allowed = torch.get_num_threads()
    torch.set_num_threads(max(1, min(allowed, numbers // NUMBERS_PER_THREAD)))
    try:
        yield
    finally:
        torch.set_num_threads(allowed)
