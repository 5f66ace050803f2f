"""Named axes checked at run time, once for arguments of the same look.

Training and dynamics call the same few functions thousands of times with tensors of the same shapes, and the checks
took as long as the work. A call is not checked again where types, shapes and whole numbers of its arguments were seen
before and its result looks as it did then. Arguments without a look, such as a generator, are checked every time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from types import FunctionType, NoneType
from typing import Any

import jaxtyping
import numpy as np
import torch
from jaxtyping import config

BY_VALUE = frozenset({int, bool, str, NoneType, torch.dtype, torch.device, type})
MANY = frozenset({tuple, list})

fully_checked = jaxtyping.jaxtyped


class UnlikeError(Exception):
    """Nothing short tells whether two such arguments are of one shape."""


def look(one: Any) -> Hashable:
    """What the check of an argument can depend on."""
    kind = type(one)
    if isinstance(one, (torch.Tensor, np.ndarray)):
        return kind, one.shape, one.dtype
    if kind in BY_VALUE:
        return kind, one
    if kind is float:
        return kind
    if kind in MANY:
        return kind, tuple(map(look, one))
    if is_dataclass(kind):
        return kind, tuple(look(getattr(one, name)) for name in _names(kind))
    raise UnlikeError


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def jaxtyped(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """In the place of jaxtyping's decorator, which checks every call."""

    def decorate(one: Any) -> Any:
        checked = fully_checked(one, typechecker=typechecker)
        if not isinstance(one, FunctionType):
            return checked
        results: dict[Hashable, set[Hashable]] = {}

        @wraps(one)
        def call(*arguments: Any, **options: Any) -> Any:
            if config.jaxtyping_disable:
                return one(*arguments, **options)
            try:
                given = look(arguments), tuple((name, look(value)) for name, value in options.items())
            except UnlikeError:
                return checked(*arguments, **options)
            if given in results:
                result = one(*arguments, **options)
                if look_or_none(result) in results[given]:
                    return result
            result = checked(*arguments, **options)
            if (seen := look_or_none(result)) is not None:
                results.setdefault(given, set()).add(seen)
            return result

        return call

    return decorate


def look_or_none(one: Any) -> Hashable | None:
    try:
        return look(one)
    except UnlikeError:
        return None
