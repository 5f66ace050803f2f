"""The same dynamics in arbitrary precision, written as plainly as possible: what the split route must agree with."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

from rankfall.dynamics.step import Rule
from rankfall.masks import MaskSchedule
from rankfall.mechanism.heads import Heads
from rankfall.norms import UNIT_NORM


def _matrix(tensor: Tensor) -> list[list[mpmath.mpf]]:
    return [[mpmath.mpf(float(entry)) for entry in row] for row in tensor]


def _product(left: list, right: list) -> list:
    columns = list(zip(*right, strict=True))
    return [[mpmath.fdot(row, column) for column in columns] for row in left]


def _head(x: list, heads: Heads, h: int, allowed: list, sink: float | None) -> list:
    query = _product(x, _matrix(heads.query[h]))
    key = _product(x, _matrix(heads.key[h]))
    if heads.query_bias is not None:
        query = [[a + b for a, b in zip(row, _matrix(heads.query_bias)[h], strict=True)] for row in query]
    value = _product(x, _matrix(heads.value[h]))
    if heads.value_bias is not None:
        value = [[a + b for a, b in zip(row, _matrix(heads.value_bias)[h], strict=True)] for row in value]
    if heads.output is not None:
        value = _product(value, _matrix(heads.output[h]))
    scale = mpmath.mpf(heads.scale if heads.scale is not None else heads.rank**-0.5)
    out = []
    for i, seen in enumerate(allowed):
        places = [j for j, sees in enumerate(seen) if sees]
        weights = [mpmath.exp(scale * mpmath.fdot(query[i], key[j])) for j in places]
        total = mpmath.fsum(weights) + (0 if sink is None else mpmath.exp(mpmath.mpf(sink)))
        columns = list(zip(*(value[j] for j in places), strict=True))
        out.append([mpmath.fdot(weights, column) / total for column in columns])
    return out


def _sum(*matrices: list) -> list:
    return [[mpmath.fsum(entries) for entries in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def exact_log_mu(
    tokens: Tensor,
    heads: Heads,
    masks: MaskSchedule,
    rule: Rule,
    layers: int,
    digits: int,
    sink: float | None = None,
    beside: list[float] | None = None,
) -> list[float]:
    """log mu after 0, 1, ..., `layers` layers, by mpmath; in `beside` that of the tokens scaled to length one."""
    with mpmath.workdps(digits):
        x = _matrix(tokens)
        alpha = mpmath.mpf(rule.residual)
        found = [_log_mu(x)]
        _unit_too(x, beside)
        for layer in range(layers):
            allowed = masks.at(layer).dense(len(x)).tolist()
            norm = rule.at(layer).norm
            normed = x if rule.placement == "post" else [norm.reference(row) for row in x]
            mixed = _sum(*(_head(normed, heads, h, allowed, sink) for h in range(heads.heads)))
            if rule.placement == "peri":
                mixed = [norm.reference(row) for row in mixed]
            x = _sum([[alpha * entry for entry in row] for row in x], mixed)
            if rule.placement == "post":
                x = [norm.reference(row) for row in x]
            found.append(_log_mu(x))
            _unit_too(x, beside)
    return found


def _unit_too(x: list, beside: list[float] | None) -> None:
    if beside is not None:
        beside.append(_log_mu([UNIT_NORM.reference(row) for row in x]))


def _log_mu(x: list) -> float:
    means = [mpmath.fsum(column) / len(x) for column in zip(*x, strict=True)]
    total = mpmath.fsum((entry - mean) ** 2 for row in x for entry, mean in zip(row, means, strict=True))
    return float(mpmath.log(total) / 2)


@pytest.fixture
def exact() -> Callable[..., list[float]]:
    return exact_log_mu


@pytest.fixture
def drawn() -> Callable[..., tuple[Tensor, Heads]]:
    """Tokens and weights of five tokens in three dimensions, the values orthogonal."""

    def draw(seed: int, heads: int = 1, n: int = 5, d: int = 3) -> tuple[Tensor, Heads]:
        generator = torch.Generator().manual_seed(seed)
        options = {"generator": generator, "dtype": torch.float64}
        tokens = torch.randn(n, d, **options)
        query, key = torch.randn(2, heads, d, d, **options) / d**0.5
        value = torch.linalg.qr(torch.randn(heads, d, d, **options))[0] / heads
        return tokens, Heads(query, key, value)

    return draw
