"""Norms on queries and keys, replaced by what is linear in them.

A norm divides each vector by its length, which no probe with unit vectors can see past. Dividing by a number does not
change a rank, so during a probe the norm is replaced by its measured gain and bias, and by its centring where it
centres: ranks come out right, the scale then depends on the token and is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.audit.trace.modules import is_norm
from rankfall.errors import require

# Large against any epsilon inside the norm, small against overflow.
PATTERN_SIZE = 1e4


@contextlib.contextmanager
def linear_norms(module: nn.Module) -> Iterator[list[str]]:
    """Inside this context every norm within the module is linear; yields the names of those that ran."""
    ran: list[str] = []
    handles = []

    def replace(name: str, norm: nn.Module) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], __: Any) -> Tensor:
            ran.append(name)
            return linear_part(norm, args[0])

        return norm.register_forward_hook(hook)

    for name, inner in module.named_modules():
        if is_norm(inner):
            handles.append(replace(name, inner))
    try:
        yield ran
    finally:
        for handle in handles:
            handle.remove()


def linear_part(norm: nn.Module, given: Tensor) -> Tensor:
    """gain * (x - mean x) + bias, or without the mean where the norm does not centre.

    Measured, not read from parameters: f(p) for a pattern p of +-size with mean zero is gain * sign(p) + bias.
    """
    width = given.shape[-1]
    require(
        width % 2 == 0,
        required="a norm over an even number of coordinates",
        got=width,
        remedy="its gain cannot be measured with a pattern of mean zero",
    )
    sign = torch.ones_like(given[..., :1, :]).expand_as(given).clone()
    sign[..., 1::2] = -1
    up, down = norm.forward(PATTERN_SIZE * sign), norm.forward(-PATTERN_SIZE * sign)
    gain, bias = (up - down) / 2 * sign, (up + down) / 2
    shifted = norm.forward(PATTERN_SIZE * (sign + 1))
    centres = torch.allclose(shifted, up, rtol=1e-3, atol=float(1e-3 * gain.abs().max()))
    linear = given - given.mean(dim=-1, keepdim=True) if centres else given
    return gain * linear + bias
