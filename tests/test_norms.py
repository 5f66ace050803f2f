"""Norms: their defining property, what they declare, zero tokens, training, placement."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.catalogue import NORMS
from rankfall.errors import RequestError
from rankfall.norms import (
    DepthScaledLayerNorm,
    DynamicTanh,
    LayerNorm,
    NoNorm,
    Norm,
    RMSNorm,
    UnitNorm,
    parse_norm,
    place,
)
from rankfall.training.cell import Cell
from rankfall.training.encoder import encoder_for
from rankfall.training.parameters import layout
from tests.sampling import normal

F64 = torch.float64
EXAMPLES = [norm for kind in NORMS for norm in kind.examples()]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 1e3))
def test_scale_of_a_token_does_not_matter(seed: int, scale: float) -> None:
    tokens = normal(seed, 2, 4, 6)
    for norm in (UnitNorm(), LayerNorm(), RMSNorm()):
        assert torch.allclose(norm(tokens * scale), norm(tokens), atol=1e-12)


def test_defining_properties() -> None:
    tokens = normal(0, 3, 5, 8)
    assert torch.equal(NoNorm()(tokens), tokens)
    assert torch.allclose(UnitNorm()(tokens).norm(dim=-1), torch.ones(3, 5, dtype=F64))
    assert torch.allclose(RMSNorm()(tokens), UnitNorm()(tokens) * 8**0.5)
    expected = torch.nn.functional.layer_norm(tokens, (8,), eps=1e-5)
    assert torch.allclose(LayerNorm(epsilon=1e-5)(tokens), expected, atol=1e-12)
    expected = torch.nn.functional.rms_norm(tokens, (8,), eps=1e-5)
    assert torch.allclose(RMSNorm(epsilon=1e-5)(tokens), expected, atol=1e-12)


def test_gain_and_bias() -> None:
    tokens, gain, bias = normal(0, 4, 8), normal(1, 8), normal(2, 8)
    expected = torch.nn.functional.layer_norm(tokens, (8,), gain, bias, eps=0)
    assert torch.allclose(LayerNorm()(tokens, gain, bias), expected, atol=1e-12)
    assert torch.allclose(
        UnitNorm()(tokens, torch.tensor(3.0, dtype=F64)).norm(dim=-1), torch.full((4,), 3.0, dtype=F64)
    )


@pytest.mark.parametrize("norm", EXAMPLES, ids=str)
def test_plain_reference_says_the_same(norm: Norm) -> None:
    tokens = normal(5, 4, 6)
    expected = torch.tensor([norm.reference(row) for row in tokens.tolist()], dtype=F64)
    assert torch.allclose(norm(tokens), expected, atol=1e-14)


@pytest.mark.parametrize("norm", EXAMPLES, ids=str)
@pytest.mark.parametrize("width", [2, 6])
def test_length_centring_and_scaling_are_as_declared(norm: Norm, width: int) -> None:
    tokens = normal(6, 50, width)
    out, length, scaling = norm(tokens), norm.length(width), norm.scaling(width)
    lengths = out.norm(dim=-1)
    assert norm.identity == torch.equal(out, tokens)
    assert norm.centres == torch.allclose(out.mean(dim=-1), torch.zeros(50, dtype=F64), atol=1e-12)
    assert (length is not None) == torch.allclose(lengths, lengths[:1])
    if length is not None:
        assert torch.allclose(lengths, torch.full_like(lengths, length))
    if scaling is not None:
        inner = tokens - tokens.mean(dim=-1, keepdim=True) if norm.centres else tokens
        root = (inner.square().sum(dim=-1, keepdim=True) + scaling.epsilon).sqrt()
        assert torch.allclose(out, scaling.length * inner / root, atol=1e-13)


@pytest.mark.parametrize("norm", EXAMPLES, ids=str)
def test_zero_token_stays_zero_with_a_finite_gradient(norm: Norm) -> None:
    tokens = torch.zeros(2, 5, dtype=F64, requires_grad=True)
    out = norm(tokens)
    assert torch.equal(out, torch.zeros(2, 5, dtype=F64))
    out.sum().backward()
    assert torch.isfinite(tokens.grad).all()


@pytest.mark.parametrize("norm", EXAMPLES, ids=str)
def test_gradients(norm: Norm) -> None:
    assert torch.autograd.gradcheck(norm, (normal(3, 3, 4).requires_grad_(),))


@pytest.mark.parametrize("norm", EXAMPLES, ids=str)
def test_training_learns_what_the_norm_declares(norm: Norm) -> None:
    """The norm's gain and bias are in the layout, start at one and zero, and are used."""
    cell = Cell(dim=8, points=3, rank=8, multiplier=1, feed_forward=8, norm=str(norm), batch=2)
    weights = layout(cell)
    own = {slot.name: slot.shape for slot in weights.slots if "0.attention_norm" in slot.name}
    assert own == {f"0.attention_norm_{part}": (size,) for part, size in norm.gains(8).items()}
    views = weights.views(weights.initial(0)[None])
    out = encoder_for([cell])(views, normal(7, 1, 2, 3, 8), None)
    assert torch.isfinite(out).all()
    for name in own:
        views[name].add_(0.5)
    assert torch.equal(encoder_for([cell])(views, normal(7, 1, 2, 3, 8), None), out) == (not own)


def test_placement() -> None:
    tokens, norm = normal(4, 3, 4), UnitNorm()
    layer = torch.tanh
    assert torch.equal(place(norm, layer, tokens, "post", 0.5), norm(0.5 * tokens + layer(tokens)))
    assert torch.equal(place(norm, layer, tokens, "pre", 0.5), 0.5 * tokens + layer(norm(tokens)))
    assert torch.equal(place(norm, layer, tokens, "peri", 0.5), 0.5 * tokens + norm(layer(norm(tokens))))


@pytest.mark.parametrize("norm", EXAMPLES, ids=str)
def test_secants_are_those_of_the_norm(norm: Norm) -> None:
    """Where a norm has them: differences of 1e-290 too, saturated coordinates, and the derivative at no step."""
    start = torch.tensor([0.0, 0.3, -1.0, 40.0, 1e-300, 2.0, -30.0], dtype=F64)
    steps = torch.tensor([0.5, -2.0, 1e-290, -1.0, 1e-300, 0.0, 60.0], dtype=F64)
    found = norm.secants(start, steps)
    if found is None:
        return
    with mpmath.workdps(700):
        for a, b, secant in zip(start.tolist(), steps.tolist(), found.tolist(), strict=True):
            step = mpmath.mpf(b) if b else mpmath.mpf(10) ** -350
            ends = norm.reference([mpmath.mpf(a), mpmath.mpf(a) + step])
            assert secant == pytest.approx(float((ends[1] - ends[0]) / step), rel=1e-13)


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_every_rank_is_an_equilibrium_under_tanh(alpha: float) -> None:
    """W = pinv(A X) artanh(X) / alpha holds any independent tokens inside the cube where they are."""
    tokens = 0.9 * torch.tanh(normal(10, 4, 6))
    causal = torch.ones(4, 4, dtype=F64).tril()
    mixed = causal / causal.sum(dim=1, keepdim=True) @ tokens
    value = torch.linalg.pinv(mixed) @ torch.atanh(tokens) / alpha
    assert torch.allclose(DynamicTanh(alpha)(mixed @ value), tokens, atol=1e-12)
    assert torch.linalg.matrix_rank(tokens) == 4


def test_depth_scales_layer_norm() -> None:
    tokens, norm = normal(8, 3, 6), DepthScaledLayerNorm()
    for layer in (1, 4, 9):
        assert torch.allclose(norm.at(layer)(tokens), LayerNorm()(tokens) / layer**0.5, atol=1e-14)
    assert norm.at(3).at(2) == norm.at(4)
    assert [one for one in EXAMPLES if one.by_depth != (one.at(2) != one)] == []


def test_peri_has_a_norm_behind_each_branch() -> None:
    """x + gain' norm(branch(gain norm(x))): with the gains behind both branches at zero nothing is added."""
    cell = Cell(dim=8, points=3, rank=8, multiplier=1, feed_forward=8, norm="rms", placement="peri", batch=2)
    weights = layout(cell)
    views = weights.views(weights.initial(0)[None])
    behind = [name for name in views if name.startswith("0.after_")]
    assert sorted(behind) == ["0.after_attention_norm_gain", "0.after_feed_forward_norm_gain"]
    inputs = normal(9, 1, 2, 3, 8)
    moved = encoder_for([cell])(views, inputs, None)
    for name in behind:
        views[name].zero_()
    still = encoder_for([cell])(views, inputs, None)
    assert torch.allclose(still, RMSNorm()(inputs), atol=1e-12)
    assert not torch.allclose(moved, still, atol=1e-2)


def test_training_takes_the_norm_of_each_layer() -> None:
    """Two layers after which tokens have the length of the second: sqrt(8 / 2)."""
    cell = Cell(dim=8, points=3, rank=8, layers=2, multiplier=1, feed_forward=8, norm="layer-scaled", batch=2)
    weights = layout(cell)
    out = encoder_for([cell])(weights.views(weights.initial(0)[None]), normal(9, 1, 2, 3, 8), None)
    assert torch.allclose(out.norm(dim=-1), torch.full((1, 2, 3), 2.0, dtype=F64), atol=1e-12)


@pytest.mark.parametrize("norm", EXAMPLES, ids=str)
def test_argument_reads_back(norm: Norm) -> None:
    assert parse_norm(str(norm)) == norm


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rms:-1", "the rms norm's epsilon to be a finite number of at least 0; got -1.0"),
        ("layer:nan", "the layer norm's epsilon to be a finite number of at least 0; got nan"),
        ("layer-scaled:inf", "the layer-scaled norm's epsilon to be a finite number"),
        ("layer-scaled:0:0", "the layer-scaled norm's depth to be a whole number of at least 1; got 0"),
        ("dyt:0", "alpha to be a finite number above 0; got 0.0"),
    ],
)
def test_numbers_that_no_norm_has_are_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_norm(text)


def test_an_unknown_name_is_refused() -> None:
    assert str(LayerNorm()) == "layer"
    assert str(LayerNorm(1e-5)) == "layer:1e-05"
    with pytest.raises(RequestError, match=r"a norm among none, unit, layer\[:EPSILON\].*; got batch"):
        parse_norm("batch")
