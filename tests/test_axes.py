"""The check of named axes, which spares calls that look like one before: what is wrong is found all the same."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from rankfall.norms import UnitNorm
from tests.axes import jaxtyped

CALLS: list[int] = []


@jaxtyped(typechecker=beartype)
def first(tokens: Float[Tensor, "n d"], count: int) -> Float[Tensor, "{count} d"]:
    CALLS.append(count)
    return tokens[: 1 + int(tokens[0, 0])]


@dataclass(frozen=True)
class Pair:
    left: Tensor
    right: float = 0.5
    size: int = 0


@jaxtyped(typechecker=beartype)
def of_pair(pair: Pair, tokens: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return tokens @ pair.left


@jaxtyped(typechecker=beartype)
def of_size(pair: Pair, tokens: Float[Tensor, "n d"]) -> Float[Tensor, "{pair.size} d"]:
    return tokens


def test_every_look_is_checked() -> None:
    tokens = torch.zeros(3, 2)
    for _ in range(2):
        assert first(tokens, 1).shape == (1, 2)
        with pytest.raises(TypeCheckError):
            first(tokens[0], 1)
        with pytest.raises(TypeCheckError):
            first(tokens.int(), 1)
        with pytest.raises(TypeCheckError):
            first(tokens, 2)
        with pytest.raises(TypeCheckError):
            first(tokens, count=1.0)


def test_a_result_of_another_shape_is_checked_where_arguments_look_alike() -> None:
    assert first(torch.zeros(4, 2), 1).shape == (1, 2)
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            first(torch.ones(4, 2), 1)
    CALLS.clear()
    first(torch.zeros(4, 2), 1)
    assert CALLS == [1], "what was seen runs once"


def test_what_is_inside_a_dataclass_counts() -> None:
    tokens = torch.zeros(3, 2)
    assert of_pair(Pair(torch.eye(2)), tokens).shape == (3, 2)
    with pytest.raises(TypeCheckError):
        of_pair(Pair(torch.ones(2, 3)), tokens)
    assert of_size(Pair(torch.eye(2), size=3), tokens).shape == (3, 2)
    with pytest.raises(TypeCheckError):
        of_size(Pair(torch.eye(2), size=2), tokens)


def test_what_has_no_look_is_checked_every_time() -> None:
    @jaxtyped(typechecker=beartype)
    def drawn(generator: object, like: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return torch.rand(like.shape[::-1])

    for _ in range(2):
        assert drawn(object(), torch.zeros(2, 2)).shape == (2, 2)
        with pytest.raises(TypeCheckError):
            drawn(object(), torch.zeros(2, 3))


def test_the_rooms_are_checked() -> None:
    tokens = torch.rand(3, 2)
    for _ in range(2):
        UnitNorm()(tokens)
        with pytest.raises(TypeCheckError):
            UnitNorm()(tokens[0])
