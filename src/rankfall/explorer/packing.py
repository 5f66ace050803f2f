"""Many numbers in few letters: whole numbers of 16 bits, little-endian, in base 64. The scripts unpack them."""

from __future__ import annotations

import base64

import torch
from torch import Tensor

LARGEST = 32767
# Of 16 bits without a sign the last value says that there is no number.
SHARES, NONE = 65534, 65535


def packed_places(points: Tensor) -> str:
    """Coordinates in [-1, 1], to one part in 32767: a screen has fewer dots."""
    whole = (points.clamp(-1, 1) * LARGEST).round().to(torch.int16)
    return _letters(whole)


def packed_shares(shares: Tensor, allowed: Tensor, top: float) -> str:
    """Numbers in [0, top], to one part in 65534; those not allowed are marked."""
    whole = (shares.clamp(0, top) * (SHARES / top)).round().to(torch.int32).masked_fill(~allowed, NONE)
    return _letters(whole.to(torch.uint16))


def _letters(values: Tensor) -> str:
    array = values.contiguous().numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()
