"""What a measure is, and measuring: one number per token matrix, with its definition and all that is declared of it.

EFFECTIVE_RANK(tokens)    one measure of tokens (..., n, d), tensor or array
measure(tokens)           all of them by name
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, final, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankfall.catalogue import MEASURES
from rankfall.errors import require
from rankfall.measures.profile import Profile
from rankfall.mechanism.checks import check_finite, check_tokens

Array = npt.NDArray[Any]

Invariance = Literal["permutation", "rotation", "scale", "translation"]
"""Reordering tokens; an orthogonal map of every token; one factor for all; one vector added to all."""

Range = Callable[[int, int], tuple[float, float]]
"""Least and greatest value for n tokens of width d."""

# Samples are measured in groups of so many numbers: memory stays flat, and is reused instead of allocated anew.
NUMBERS_AT_ONCE = 1 << 21


@final
@dataclass(frozen=True, eq=False, repr=False)
class Measure:
    """A named function of tokens. `degree` is the power with which it grows when all tokens are scaled; `simulated`
    says whether a simulation records it at every layer when nothing else is asked for."""

    name: str
    definition: str
    function: Callable[[Profile], Tensor]
    reference: Callable[[Array], float]
    range: Range
    invariances: frozenset[Invariance]
    degree: int = 0
    simulated: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "__doc__", f"{self.definition[0].upper()}{self.definition[1:]}, of tokens (..., n, d)."
        )

    def __repr__(self) -> str:
        return f"<measure {self.name}: {self.definition}>"

    def of(self, profile: Profile) -> Tensor:
        """The measure of the tokens at their true size."""
        return self.function(profile) * profile.size**self.degree

    @overload
    def __call__(self, tokens: Tensor) -> Tensor: ...
    @overload
    def __call__(self, tokens: Array) -> Any: ...
    def __call__(self, tokens: Any) -> Any:
        """In float64, one number for each matrix of (..., n, d) tokens: a tensor of a tensor, else NumPy's."""
        return _measured(tokens, [self])[self.name]


@overload
def measure(tokens: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]: ...
@overload
def measure(tokens: Array, names: Iterable[str] | None = None) -> dict[str, Any]: ...
def measure(tokens: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The named measures of (..., n, d) tokens, each in float64 and of the batch axes' shape.

    By default all of them, and `most`, the most that each of the ranks can be: min(n, d).
    """
    if names is not None:
        return _measured(tokens, [MEASURES[name] for name in names])
    found = _measured(tokens, list(MEASURES))
    most = float(min(np.shape(tokens)[-2:]))
    return found | {"most": found["rank"] * 0 + most}


def _measured(given: Any, chosen: list[Measure]) -> dict[str, Any]:
    tokens = as_tokens(given)
    samples = tokens.reshape(-1, *tokens.shape[-2:])
    columns: dict[str, list[Tensor]] = {one.name: [] for one in chosen}
    for some in samples.split(max(1, NUMBERS_AT_ONCE // (tokens.shape[-2] * tokens.shape[-1]))):
        profile = Profile(some)
        for one in chosen:
            columns[one.name].append(one.of(profile))
    found = {name: torch.cat(parts).reshape(tokens.shape[:-2]) for name, parts in columns.items()}
    return found if isinstance(given, Tensor) else {name: value.numpy()[()] for name, value in found.items()}


def as_tokens(given: Any) -> Tensor:
    """Finite floating-point tokens (..., n, d), from a tensor or from what NumPy takes for an array of numbers."""
    if not isinstance(given, Tensor):
        array = np.asarray(given)
        require(
            array.dtype.kind in "fiub",
            required="tokens that are real numbers",
            got=f"dtype {array.dtype}",
            remedy="give a tensor or an array of shape (..., n, d)",
        )
        given = torch.tensor(array if array.dtype in (np.float16, np.float32) else array.astype(np.float64))
    whole = not given.is_floating_point() and not given.is_complex()
    tokens: Tensor = given.detach().double() if whole else given.detach()
    check_tokens(tokens)
    check_finite(tokens)
    return tokens
