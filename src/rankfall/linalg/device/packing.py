"""Several tensors as one, so that a single copy takes them to the host."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.linalg.lapack import Vector

Shapes = Mapping[str, tuple[int, ...]]


def packed(parts: Mapping[str, Tensor]) -> Float[Tensor, total]:
    """All numbers of all parts, one after the other, in float64."""
    return torch.cat([part.to(torch.float64).flatten() for part in parts.values()])


def unpacked(numbers: Vector, shapes: Shapes) -> dict[str, Vector]:
    """The parts again, given their shapes in the order in which they were packed."""
    parts, start = {}, 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        parts[name] = numbers[start:end].reshape(shape)
        start = end
    return parts
