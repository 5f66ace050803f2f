"""Every named mask, and how an argument such as `window:4` becomes one."""

from __future__ import annotations

from dataclasses import MISSING, fields

from rankfall.attention.masks.base import Mask
from rankfall.attention.masks.block_diagonal import BlockDiagonal
from rankfall.attention.masks.causal import Causal
from rankfall.attention.masks.causal_window import CausalWindow
from rankfall.attention.masks.complete import Complete
from rankfall.attention.masks.dilated import Dilated
from rankfall.attention.masks.global_window import GlobalWindow
from rankfall.attention.masks.in_star import InStar
from rankfall.attention.masks.out_star import OutStar
from rankfall.attention.masks.prefix import Prefix
from rankfall.attention.masks.random_sparse import RandomSparse
from rankfall.attention.masks.ring import Ring
from rankfall.attention.masks.schedule import MaskSchedule
from rankfall.attention.masks.star import Star
from rankfall.attention.masks.window import Window
from rankfall.errors import RequestError

ALL_MASKS: tuple[type[Mask], ...] = (
    Complete,
    Causal,
    Window,
    CausalWindow,
    Dilated,
    GlobalWindow,
    Prefix,
    Star,
    OutStar,
    InStar,
    Ring,
    BlockDiagonal,
    RandomSparse,
)


def spelling(kind: type[Mask]) -> str:
    """How the mask is written as an argument, for example `dilated:WIDTH:STEP`."""
    return ":".join([kind.name, *(field.name.upper() for field in fields(kind))])


def parse_mask(text: str) -> Mask:
    """The mask that an argument such as `causal`, `window:4` or `random:0.2:7` names."""
    name, *values = text.strip().split(":")
    kinds = {kind.name: kind for kind in ALL_MASKS}
    if name not in kinds:
        known = ", ".join(spelling(kind) for kind in ALL_MASKS)
        raise RequestError(required=f"a mask among {known}", got=text, remedy="for example causal or window:4")
    kind = kinds[name]
    parameters = fields(kind)
    least = sum(field.default is MISSING for field in parameters)
    if not least <= len(values) <= len(parameters):
        raise RequestError(
            required=f"a mask written {spelling(kind)}", got=text, remedy=f"give {least} to {len(parameters)} numbers"
        )
    return kind(*(_number(field.type, value, kind, text) for field, value in zip(parameters, values, strict=False)))


def parse_schedule(text: str) -> MaskSchedule:
    """A schedule: masks joined by `+`, one per layer of a period, for example `window:4+dilated:4:4`."""
    return MaskSchedule(tuple(parse_mask(part) for part in text.split("+")))


def _number(kind_of_number: object, text: str, kind: type[Mask], whole: str) -> float | int:
    try:
        return float(text) if kind_of_number == "float" else int(text)
    except ValueError:
        raise RequestError(
            required=f"numbers in {spelling(kind)}", got=whole, remedy=f"write a {kind_of_number} instead of {text!r}"
        ) from None
