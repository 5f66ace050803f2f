"""Every norm by name."""

from __future__ import annotations

from rankfall.attention.norms.base import Norm
from rankfall.attention.norms.layer import LayerNorm
from rankfall.attention.norms.none import NoNorm
from rankfall.attention.norms.rms import RMSNorm
from rankfall.attention.norms.unit import UnitNorm
from rankfall.errors import RequestError

ALL_NORMS: tuple[type[Norm], ...] = (NoNorm, UnitNorm, LayerNorm, RMSNorm)


def parse_norm(name: str) -> Norm:
    """The norm of that name, with its defaults."""
    for kind in ALL_NORMS:
        if kind.name == name:
            return kind()
    known = ", ".join(kind.name for kind in ALL_NORMS)
    raise RequestError(required=f"a norm among {known}", got=name, remedy="for example unit")
