"""The least entropy of bounded logits: attained, never undercut, and right at its ends."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.errors import RequestError
from rankfall.masks import parse_mask
from rankfall.theory.entropy_floor import entropy_floor, row_entropy_floors

F64 = torch.float64


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=F64)


def entropy(logits: torch.Tensor) -> float:
    log_weights = torch.log_softmax(logits, dim=-1)
    return -float((log_weights.exp() * log_weights).sum())


@pytest.mark.parametrize("keys", [2, 3, 16, 500])
@pytest.mark.parametrize("norm", [0.0, 0.3, 2.0, 9.0, 40.0])
def test_one_logit_above_equal_others_attains_it(keys, norm) -> None:
    logits = torch.full((keys,), -norm / math.sqrt(keys * (keys - 1)), dtype=F64)
    logits[0] = norm * math.sqrt((keys - 1) / keys)
    assert float(logits.norm()) == pytest.approx(norm, abs=1e-12)
    assert float(entropy_floor(number(keys), number(norm))) == pytest.approx(entropy(logits), rel=1e-10, abs=1e-14)
    assert row_entropy_floors(logits[None]).tolist() == pytest.approx([entropy(logits)], rel=1e-9, abs=1e-14)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), keys=st.integers(2, 12), size=st.floats(0.01, 30), power=st.floats(0.3, 4))
def test_no_logits_undercut_it(seed, keys, size, power) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(keys, generator=generator, dtype=F64)
    logits = logits.sign() * logits.abs() ** power
    logits = size * (logits - logits.mean()) / logits.norm()
    floor = float(entropy_floor(number(keys), (logits - logits.mean()).norm()))
    assert entropy(logits) >= floor - 1e-12


def test_descent_does_not_get_below_it() -> None:
    """Gradient steps on a hundred rows of eight logits, each kept centred and at norm 3."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100, 8, generator=generator, dtype=F64).requires_grad_()

    def entropies() -> torch.Tensor:
        centred = logits - logits.mean(dim=-1, keepdim=True)
        log_weights = torch.log_softmax(3 * centred / centred.norm(dim=-1, keepdim=True), dim=-1)
        return -(log_weights.exp() * log_weights).sum(dim=-1)

    for _ in range(400):
        (slope,) = torch.autograd.grad(entropies().sum(), logits)
        logits = (logits - slope).detach().requires_grad_()
    reached, floor = entropies().detach(), float(entropy_floor(number(8), number(3)))
    assert float(reached.min()) >= floor - 1e-12
    assert float(reached.min()) == pytest.approx(floor, abs=1e-6)


def test_groups_of_large_logits_have_more_entropy() -> None:
    """The step of the proof that is not calculus by hand: k logits above T - k others, best at k = 1."""
    for keys in (3, 8, 61, 400):
        for norm in (1e-3, 0.1, 1.0, 4.0, 25.0, 90.0):
            found = []
            for k in range(1, keys):
                gap = norm * math.sqrt(keys / (k * (keys - k)))
                logits = torch.zeros(keys, dtype=F64)
                logits[k:] = -gap
                found.append(entropy(logits))
            # Below the rounding of log T the order is noise.
            assert all(b >= a - 1e-13 * keys for a, b in pairwise(found))


def test_ends_and_refusals() -> None:
    assert float(entropy_floor(number(7), number(0))) == pytest.approx(math.log(7), rel=1e-15)
    assert float(entropy_floor(number(1), number(5))) == 0
    assert float(entropy_floor(number(9), number(math.inf))) == 0
    falling = entropy_floor(number(5), torch.linspace(0, 50, 200, dtype=F64))
    assert bool((falling.diff() < 0).all())
    with pytest.raises(RequestError, match="at least one key"):
        entropy_floor(number(0), number(1))


@pytest.mark.parametrize("name", ["complete", "causal", "window:2"])
def test_rows_between_their_floors_and_their_ceiling(name) -> None:
    """By weights, by the spectral norm of all rows, by each row's own: each below the next, all below the entropy."""
    generator = torch.Generator().manual_seed(1)
    options = {"generator": generator, "dtype": F64}
    tokens, form = torch.randn(10, 6, **options), torch.randn(6, 6, **options) / 3
    allowed = parse_mask(name).dense(10)
    choosing = allowed.sum(dim=-1) > 1
    logits, allowed = (tokens @ form @ tokens.T)[choosing], allowed[choosing]
    keys = allowed.sum(dim=-1).double()
    mean = torch.where(allowed, logits, 0.0).sum(dim=-1) / keys
    spectral = torch.linalg.matrix_norm(torch.where(allowed, logits - mean[:, None], 0.0), ord=2)
    longest, whole = tokens.norm(dim=-1).max(), torch.linalg.matrix_norm(tokens, 2)
    by_weights = torch.linalg.matrix_norm(form, 2) * longest * whole
    measured = torch.tensor([entropy(row[seen]) for row, seen in zip(logits, allowed, strict=True)], dtype=F64)
    own = row_entropy_floors(logits, allowed)
    rising = [entropy_floor(keys, by_weights), entropy_floor(keys, spectral), own, measured, keys.log()]
    assert all(bool((low < high).all()) for low, high in pairwise(rising))


def test_rows_without_a_choice_have_none() -> None:
    allowed = torch.tensor([[True, True], [False, False], [True, False]])
    assert row_entropy_floors(torch.zeros(3, 2, dtype=F64), allowed).tolist() == pytest.approx([math.log(2), 0, 0])


def test_all_heads_at_once() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = 4 * torch.randn(3, 9, 9, generator=generator, dtype=F64)
    allowed = parse_mask("causal").dense(9).expand(3, 9, 9)
    found = row_entropy_floors(logits, allowed)
    for head, row in ((0, 8), (2, 3)):
        seen = logits[head, row, : row + 1]
        expected = entropy_floor(number(row + 1), (seen - seen.mean()).norm())
        assert float(found[head, row]) == pytest.approx(float(expected), rel=1e-12)
    by_hand = (logits[0] - logits[0].mean(dim=-1, keepdim=True)).norm(dim=-1)
    assert torch.allclose(row_entropy_floors(logits[0]), entropy_floor(number(9), by_hand), rtol=1e-12, atol=0)
