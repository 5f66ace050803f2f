"""Norms: their defining property, their invariances, zero tokens, placement."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.catalogue import NORMS
from rankfall.errors import RequestError
from rankfall.norms import LayerNorm, NoNorm, RMSNorm, UnitNorm, parse_norm, place

F64 = torch.float64


def tokens_of(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 1e3))
def test_scale_of_a_token_does_not_matter(seed: int, scale: float) -> None:
    tokens = tokens_of(seed, 2, 4, 6)
    for norm in (UnitNorm(), LayerNorm(), RMSNorm()):
        assert torch.allclose(norm(tokens * scale), norm(tokens), atol=1e-12)


def test_defining_properties() -> None:
    tokens = tokens_of(0, 3, 5, 8)
    assert torch.equal(NoNorm()(tokens), tokens)
    assert torch.allclose(UnitNorm()(tokens).norm(dim=-1), torch.ones(3, 5, dtype=F64))
    assert torch.allclose(RMSNorm()(tokens), UnitNorm()(tokens) * 8**0.5)
    expected = torch.nn.functional.layer_norm(tokens, (8,), eps=1e-5)
    assert torch.allclose(LayerNorm(epsilon=1e-5)(tokens), expected, atol=1e-12)
    expected = torch.nn.functional.rms_norm(tokens, (8,), eps=1e-5)
    assert torch.allclose(RMSNorm(epsilon=1e-5)(tokens), expected, atol=1e-12)


def test_gain_and_bias() -> None:
    tokens, gain, bias = tokens_of(0, 4, 8), tokens_of(1, 8), tokens_of(2, 8)
    expected = torch.nn.functional.layer_norm(tokens, (8,), gain, bias, eps=0)
    assert torch.allclose(LayerNorm()(tokens, gain, bias), expected, atol=1e-12)
    assert torch.allclose(
        UnitNorm()(tokens, torch.tensor(3.0, dtype=F64)).norm(dim=-1), torch.full((4,), 3.0, dtype=F64)
    )


@pytest.mark.parametrize("kind", NORMS, ids=lambda kind: kind.name)
def test_zero_token_stays_zero_with_a_finite_gradient(kind) -> None:
    tokens = torch.zeros(2, 5, dtype=F64, requires_grad=True)
    out = kind()(tokens)
    assert torch.equal(out, torch.zeros(2, 5, dtype=F64))
    out.sum().backward()
    assert torch.isfinite(tokens.grad).all()


@pytest.mark.parametrize("kind", NORMS, ids=lambda kind: kind.name)
def test_gradients(kind) -> None:
    assert torch.autograd.gradcheck(kind(), (tokens_of(3, 3, 4).requires_grad_(),))


def test_placement() -> None:
    tokens, norm = tokens_of(4, 3, 4), UnitNorm()
    layer = torch.tanh
    assert torch.equal(place(norm, layer, tokens, "post", 0.5), norm(0.5 * tokens + layer(tokens)))
    assert torch.equal(place(norm, layer, tokens, "pre", 0.5), 0.5 * tokens + layer(norm(tokens)))


def test_names() -> None:
    assert [parse_norm(kind.name) for kind in NORMS] == [kind() for kind in NORMS]
    with pytest.raises(RequestError, match=r"a norm among none, unit, layer\[:EPSILON\], rms\[:EPSILON\]; got batch"):
        parse_norm("batch")
