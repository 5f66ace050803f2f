"""Attention with a sink: its spectrum against arbitrary precision on every mask, its rate against products."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from rankfall.catalogue import MASKS
from rankfall.errors import RequestError
from rankfall.masks import Explicit, MaskSchedule, parse_mask, parse_schedule
from rankfall.theory.sub_stochastic import alignment_rate, causal_sink_rate, sink_attention, sink_rate
from rankfall.theory.uniform_attention import other_eigenvalues, tail_rate

MASK_EXAMPLES = [mask for kind in MASKS for mask in kind.examples()]
SINKS = (-3.0, 0.0, 2.5)


def two_largest(mask, n: int, sinks: tuple[float, ...]) -> tuple[float, float]:
    """Moduli of the leading eigenvalues, by mpmath from the definition, with digits enough for Jordan chains."""
    allowed = mask.dense(n).tolist()
    with mpmath.workdps(15 * n):
        matrix = mpmath.matrix(n, n)
        for i, row in enumerate(allowed):
            total = sum(1 / (sum(row) + mpmath.e ** mpmath.mpf(sink)) for sink in sinks) / len(sinks)
            for j, sees in enumerate(row):
                matrix[i, j] = total if sees else 0
        moduli = sorted((abs(value) for value in mpmath.eig(matrix, left=False, right=False)), reverse=True)
        return float(moduli[0]), float(moduli[1])


@pytest.mark.parametrize("mask", MASK_EXAMPLES, ids=str)
def test_rate_is_the_ratio_of_the_leading_eigenvalues(mask) -> None:
    n = 6
    for sinks in ((-3.0,), (2.5,), (1.0, -2.0, 4.0)):
        first, second = two_largest(mask, n, sinks)
        found = sink_rate(mask, n, sinks)
        assert found.leading == pytest.approx(first, rel=1e-12)
        assert found.rate == pytest.approx(second / first, abs=1e-12)
        given = alignment_rate(sink_attention(mask, n, sinks))
        assert given.leading == pytest.approx(first, rel=1e-9)
        assert given.rate == pytest.approx(second / first, abs=1e-6)
        assert given.everywhere == found.everywhere


@pytest.mark.parametrize("mask", MASK_EXAMPLES, ids=str)
def test_without_a_sink_it_is_the_second_eigenvalue(mask) -> None:
    found = sink_rate(mask, 9, -math.inf)
    assert found.leading == pytest.approx(1, abs=1e-14)
    assert found.rate == pytest.approx(tail_rate(mask, 9), abs=1e-12)


@pytest.mark.parametrize(("sink", "rate"), [(0, 0.667), (2, 0.893), (4, 0.982)])
def test_causal_in_closed_form(sink, rate) -> None:
    assert causal_sink_rate(sink) == pytest.approx((1 + math.exp(sink)) / (2 + math.exp(sink)), rel=1e-15)
    assert causal_sink_rate(sink) == pytest.approx(rate, abs=5e-4)
    assert causal_sink_rate((sink, sink)) == pytest.approx(causal_sink_rate(sink), rel=1e-14)
    several = (sink, -1.0, 3.5)
    assert causal_sink_rate(several) == pytest.approx(sink_rate(parse_mask("causal"), 5, several).rate, rel=1e-14)
    for n in (2, 3, 40, 200):
        found = sink_rate(parse_mask("causal"), n, sink)
        assert found.rate == pytest.approx(causal_sink_rate(sink), rel=1e-14)
        assert found.leading == pytest.approx(1 / (1 + math.exp(sink)), rel=1e-14)
        assert found.everywhere


def test_regular_masks_do_not_see_the_sink() -> None:
    """Where all tokens see equally many, a sink only shrinks: the ratio stays."""
    for name in ("ring:1", "ring:2", "complete"):
        for sink in (-5.0, 0.0, 7.0):
            assert sink_rate(parse_mask(name), 9, sink).rate == pytest.approx(
                tail_rate(parse_mask(name), 9), abs=1e-12
            )


def test_a_strong_sink_leaves_the_graph() -> None:
    """s to infinity: e^s U_s tends to the mask itself, and the rate to that of its adjacency matrix."""
    for name in ("window:1", "star", "causal", "global-window:1:1"):
        adjacency = parse_mask(name).dense(8).double().numpy()
        found = sink_rate(parse_mask(name), 8, 800.0)
        assert found.rate == pytest.approx(alignment_rate(adjacency).rate, abs=1e-9)
        assert found.leading == 0.0 or found.leading < 1e-300
    path = sink_rate(parse_mask("window:1"), 8, 800.0).rate
    assert path == pytest.approx((1 + 2 * math.cos(2 * math.pi / 9)) / (1 + 2 * math.cos(math.pi / 9)), rel=1e-12)


def test_the_leading_class_need_not_be_the_root() -> None:
    """Token 1 sees itself, three others see it and each other: 1/2 against 3/5, and token 1 keeps its direction."""
    allowed = torch.ones(4, 4, dtype=torch.bool)
    allowed[0, 1:] = False
    found = sink_rate(Explicit(allowed), 4, 0.0)
    assert found.leading == pytest.approx(3 / 5)
    assert found.rate == pytest.approx(5 / 6)
    assert not found.everywhere
    weak = sink_rate(Explicit(allowed), 4, -4.0)
    assert weak.leading == pytest.approx(1 / (1 + math.exp(-4)))
    assert weak.everywhere


@pytest.mark.parametrize("name", ["causal", "window:2", "star", "prefix:3", "global-window:1:1", "random:0.4:3"])
@pytest.mark.parametrize("sink", SINKS)
def test_products_approach_rank_one_at_this_rate(name, sink) -> None:
    """sigma_2 / sigma_1 of the product of so many layers, by mpmath, and the spread of its rows' directions."""
    n, mask = 6, parse_mask(name)
    found = sink_rate(mask, n, sink)
    layers = 150, 300
    with mpmath.workdps(300):
        operator = mpmath.matrix(sink_attention(mask, n, sink).tolist())
        apart = []
        for power in layers:
            product = operator**power
            whole = mpmath.mnorm(product, "f")
            first = [product[i, :] / mpmath.mnorm(product[i, :], "f") for i in range(n)]
            apart.append((max(mpmath.mnorm(one - first[0], "f") for one in first), whole))
    if not found.everywhere:
        assert float(apart[1][0]) > 0.1
        return
    steps = layers[1] - layers[0]
    rate = float(mpmath.root(apart[1][0] / apart[0][0], steps))
    assert rate == pytest.approx(found.rate, rel=0.02)
    assert float(mpmath.root(apart[1][1] / apart[0][1], steps)) == pytest.approx(found.leading, rel=0.02)


def test_schedule_by_its_period() -> None:
    schedule = parse_schedule("causal+window:1")
    first, second = (sink_attention(schedule.at(layer), 6, 1.0) for layer in (0, 1))
    values = np.sort(np.abs(np.linalg.eigvals(second @ first)))[::-1]
    found = sink_rate(schedule, 6, 1.0)
    assert found.rate == pytest.approx(math.sqrt(values[1] / values[0]), rel=1e-9)
    assert found.leading == pytest.approx(math.sqrt(values[0]), rel=1e-9)
    assert sink_rate(MaskSchedule((parse_mask("causal"), parse_mask("complete"))), 6, 1.0).rate == 0


def test_heads_average() -> None:
    """Two causal heads, sinks 0 and log 3: weights 1/2 (1/(i+1) + 1/(i+3)), exactly."""
    ours = sink_attention(parse_mask("causal"), 4, (0.0, math.log(3)))
    for i in range(4):
        expected = (Fraction(1, i + 2) + Fraction(1, i + 4)) / 2
        assert ours[i, : i + 1].tolist() == pytest.approx([float(expected)] * (i + 1), rel=1e-14)


def test_large_masks_stay_exact_and_refusals() -> None:
    assert sink_rate(parse_mask("causal-window:1"), 500, 1.5).rate == pytest.approx(causal_sink_rate(1.5), rel=1e-14)
    assert sink_rate(parse_mask("causal"), 1, 0.0).rate == 0
    assert len(other_eigenvalues(parse_mask("causal"), 1)) == 0
    with pytest.raises(RequestError, match="square matrix without negative entries"):
        alignment_rate(np.array([[1.0, -1.0], [0.0, 1.0]]))
    for wrong in (math.nan, math.inf, ()):
        with pytest.raises(RequestError, match="a sink's logit"):
            sink_rate(parse_mask("causal"), 3, wrong)
    assert alignment_rate(np.zeros((3, 3))).rate == 0
