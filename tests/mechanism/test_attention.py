"""What attention must do, whatever its weights: properties, gradients, the banded route, errors."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling import normal
from tests.tolerance import ROUNDING

from rankfall.errors import RequestError
from rankfall.masks import (
    BlockDiagonal,
    Causal,
    CausalWindow,
    Complete,
    Dilated,
    GlobalWindow,
    Mask,
    Prefix,
    Star,
    Window,
)
from rankfall.mechanism.attend import attend, attention_weights, hardmax_weights, pays, softmax_weights, weigh
from rankfall.mechanism.checks import check_finite
from rankfall.mechanism.generalised import GeneralisedHead, generalised_attention
from rankfall.mechanism.heads import Heads, attention, bilinear_forms, value_forms

F64 = torch.float64
BANDED: list[Mask] = [Window(3), CausalWindow(5), Dilated(2, 3), BlockDiagonal(7), Window(20), CausalWindow(33)]


def heads_of(seed: int, **sizes) -> Heads:
    generator = torch.Generator().manual_seed(seed)
    return Heads.random(**{"heads": 4, "width": 6, "rank": 3, "dtype": F64, "generator": generator, **sizes})


def by_hand(heads: Heads, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The definition, one head and one token at a time."""
    out = torch.zeros(tokens.shape[0], heads.out_width, dtype=tokens.dtype)
    for h in range(heads.heads):
        g = h * heads.groups // heads.heads
        for i, asking in enumerate(tokens):
            seen = [j for j in range(len(tokens)) if mask[i, j]]
            q = asking @ heads.query[h]
            exponents = torch.stack([q @ (tokens[j] @ heads.key[g]) for j in seen]) / heads.rank**0.5
            weights = exponents.exp() / exponents.exp().sum()
            mixed = sum(w * (tokens[j] @ heads.value[g]) for w, j in zip(weights, seen, strict=True))
            out[i] += mixed @ heads.output[h]
    return out


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(1, 7),
    groups=st.sampled_from([1, 2, 4]),
    rank=st.integers(1, 6),
    value_rank=st.integers(1, 6),
)
def test_equals_the_definition(seed: int, n: int, groups: int, rank: int, value_rank: int) -> None:
    heads = heads_of(seed, groups=groups, rank=rank, value_rank=value_rank)
    tokens = normal(seed, n, 6)
    mask = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask |= torch.eye(n, dtype=torch.bool)
    assert torch.allclose(attention(heads, tokens, mask=mask), by_hand(heads, tokens, mask), atol=1e-12)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), kind=st.sampled_from(["softmax", "hardmax"]))
def test_permutation_equivariance_under_the_complete_mask(seed: int, kind) -> None:
    heads, tokens = heads_of(seed), normal(seed, 2, 8, 6)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    moved = attention(heads, tokens[:, order], mask=Complete(), kind=kind)
    assert torch.allclose(moved, attention(heads, tokens, mask=Complete(), kind=kind)[:, order], atol=1e-12)


@pytest.mark.parametrize("mask", [Causal(), CausalWindow(2), CausalWindow(40)], ids=str)
@pytest.mark.parametrize("n", [8, 120])
def test_causality(mask: Mask, n: int) -> None:
    heads, tokens = heads_of(1), normal(1, n, 6)
    changed = tokens.clone()
    changed[n // 2 :] += 1
    before, after = attention(heads, tokens, mask=mask), attention(heads, changed, mask=mask)
    assert torch.equal(before[: n // 2], after[: n // 2])
    assert not torch.allclose(before[n // 2 :], after[n // 2 :])


@pytest.mark.parametrize("mask", [None, Causal(), Window(2), Star(), Prefix(3), GlobalWindow(1, 1)], ids=str)
@pytest.mark.parametrize("kind", ["softmax", "hardmax"])
@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_weights_are_row_stochastic_and_masked(mask, kind, dtype) -> None:
    query, key = normal(2, 2, 4, 9, 3, dtype=dtype), normal(3, 2, 2, 9, 3, dtype=dtype)
    weights = attention_weights(query, key, mask, kind=kind)
    assert weights.shape == (2, 4, 9, 9)
    assert weights.dtype == dtype
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(-1).double(), torch.ones(2, 4, 9, dtype=F64), atol=ROUNDING[dtype])
    if mask is not None:
        assert (weights.masked_select(~mask.dense(9)) == 0).all()


def test_hardmax_splits_ties_evenly() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    assert hardmax_weights(scores).tolist() == [[0, 0.5, 0.5, 0], [0.25] * 4]
    allowed = torch.tensor([[True, True, False, True], [True, False, False, True]])
    assert hardmax_weights(scores, allowed).tolist() == [[0, 1, 0, 0], [0.5, 0, 0, 0.5]]


def test_hardmax_is_the_limit_of_softmax() -> None:
    scores = normal(4, 5, 7)
    assert torch.allclose(softmax_weights(scores * 1e4), hardmax_weights(scores), atol=1e-12)


def test_scale_per_head_and_temperature() -> None:
    query, key, value = (normal(seed, 3, 5, 2) for seed in (5, 6, 7))
    scale = torch.tensor([0.0, 1.0, 7.0], dtype=F64)
    together = attend(query, key, value, scale=scale)
    for head in range(3):
        alone = attend(query[head, None], key[head, None], value[head, None], scale=float(scale[head]))
        assert torch.allclose(together[head, None], alone, atol=1e-14)
    assert torch.allclose(together[0], value[0].mean(0).expand(5, 2), atol=1e-14)


def test_score_bias_is_added_after_the_scale() -> None:
    query, key, value = (normal(seed, 3, 5, 2) for seed in (5, 6, 7))
    bias = normal(8, 3, 5, 5)
    expected = torch.softmax(query @ key.mT * 0.3 + bias, -1) @ value
    assert torch.allclose(attend(query, key, value, scale=0.3, score_bias=bias), expected, atol=1e-14)
    forbidden = torch.zeros(5, 5, dtype=F64).masked_fill(~Window(1).dense(5), -torch.inf)
    assert torch.allclose(
        attend(query, key, value, score_bias=forbidden), attend(query, key, value, Window(1)), atol=1e-14
    )


def test_biases_are_an_extra_coordinate() -> None:
    """A layer with biases equals one without them on tokens with a constant coordinate."""
    bare = heads_of(9, heads=2, width=7, rank=3, value_rank=4)
    trimmed = Heads(
        *(weight[:, :6] for weight in (bare.query, bare.key, bare.value)),
        output=bare.output[..., :6],
        query_bias=bare.query[:, 6],
        key_bias=bare.key[:, 6],
        value_bias=bare.value[:, 6],
        output_bias=torch.arange(6, dtype=F64),
    )
    tokens = normal(9, 2, 5, 6)
    constant = torch.cat([tokens, torch.ones(2, 5, 1, dtype=F64)], -1)
    expected = attention(bare, constant)[..., :6] + torch.arange(6, dtype=F64)
    assert torch.allclose(attention(trimmed, tokens), expected, atol=1e-13)


def test_cross_attention_and_weights_with_a_model_axis() -> None:
    stacked = Heads(*(normal(seed, 3, 2, 6, 2) for seed in (1, 2, 3)), output=normal(4, 3, 2, 2, 6))
    tokens, context = normal(5, 3, 4, 6), normal(6, 3, 9, 6)
    together = attention(stacked, tokens, context)
    for model in range(3):
        one = Heads(stacked.query[model], stacked.key[model], stacked.value[model], output=stacked.output[model])
        assert torch.allclose(together[model], attention(one, tokens[model], context[model]), atol=1e-13)


@pytest.mark.parametrize("mask", [None, Causal(), Window(1)], ids=str)
def test_gradients(mask) -> None:
    heads = heads_of(10, heads=2, width=3, rank=2, value_rank=1)
    tokens = normal(10, 4, 3).requires_grad_()

    def run(tokens, query, key, value, output):
        return attention(Heads(query, key, value, output), tokens, mask=mask)

    inputs = (tokens, *(w.requires_grad_() for w in (heads.query, heads.key, heads.value, heads.output)))
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("mask", BANDED, ids=str)
@pytest.mark.parametrize("n", [97, 200])
@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_banded_equals_dense_forward_and_backward(mask: Mask, n: int, dtype: torch.dtype) -> None:
    banded = [normal(seed, 2, heads, n, 5, dtype=dtype).requires_grad_() for seed, heads in ((1, 4), (2, 2), (3, 2))]
    dense = [x.detach().clone().requires_grad_() for x in banded]
    out, expected = attend(*banded, mask), attend(*dense, mask.dense(n))
    push = normal(4, *out.shape, dtype=dtype)
    out.backward(push)
    expected.backward(push)
    for ours, theirs in [(out, expected), *((a.grad, b.grad) for a, b in zip(banded, dense, strict=True))]:
        assert torch.allclose(ours, theirs, atol=10 * ROUNDING[dtype], rtol=10 * ROUNDING[dtype])


def test_banded_route_is_taken_and_holds_no_square_matrix() -> None:
    n = 4096
    assert pays(Window(16).band(n), n)
    assert not pays(Window(16).band(64), 64)
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    query, key, value = (normal(seed, 1, n, 8, dtype=torch.float32) for seed in (1, 2, 3))
    with Watch():
        attend(query, key, value, Window(16))
    assert largest <= n * 4 * 33


def test_banded_with_scale_per_head_and_hardmax() -> None:
    n = 150
    query, key, value = (normal(seed, 3, n, 4) for seed in (1, 2, 3))
    scale = torch.tensor([0.1, 1.0, 5.0], dtype=F64)
    for kind, mask in itertools.product(("softmax", "hardmax"), (Window(4), Dilated(2, 2))):
        banded = attend(query, key, value, mask, scale=scale, kind=kind)
        assert torch.allclose(banded, attend(query, key, value, mask.dense(n), scale=scale, kind=kind), atol=1e-12)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), width=st.integers(2, 12), rank=st.integers(1, 12), groups=st.sampled_from([1, 2]))
def test_bilinear_spectrum_from_the_factors(seed: int, width: int, rank: int, groups: int) -> None:
    rank = min(rank, width)
    heads = heads_of(seed, heads=2, groups=groups, width=width, rank=rank)
    forms = bilinear_forms(heads)
    full = torch.linalg.svdvals(forms.dense())
    assert torch.allclose(forms.singular_values(), full[..., :rank], atol=1e-12)
    assert (full[..., rank:] < 1e-12).all()
    assert torch.allclose(forms.trace(), forms.dense().diagonal(dim1=-2, dim2=-1).sum(-1), atol=1e-12)


def test_scores_come_from_the_bilinear_form() -> None:
    heads, tokens = heads_of(3), normal(3, 5, 6)
    form = bilinear_forms(heads).dense()
    weights = torch.softmax(tokens @ form.mT @ tokens.T / heads.rank**0.5, -1)
    # form is K Q^T, so row i of tokens Q K^T tokens^T belongs to the query.
    expected = (weights @ tokens @ value_forms(heads)).sum(0)
    assert torch.allclose(attention(heads, tokens), expected, atol=1e-12)


def test_spectrum_never_forms_the_square_matrix() -> None:
    width = 4096
    heads = heads_of(0, heads=1, width=width, rank=2, dtype=torch.float32)
    assert bilinear_forms(heads).singular_values().shape == (1, 2)


def test_standard_head_is_a_generalised_one() -> None:
    heads = heads_of(2, heads=1, rank=3)
    points, queries = normal(1, 5, 6), normal(2, 4, 6)

    def mixing(projected: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        return torch.softmax(query @ heads.query[0] @ projected.mT / 3**0.5, -1)

    general = generalised_attention([GeneralisedHead(heads.key[0], mixing, value_forms(heads)[0])], points, queries)
    assert torch.allclose(general, attention(heads, queries, points), atol=1e-13)


def test_generalised_head_off_the_simplex_is_refused() -> None:
    head = GeneralisedHead(
        torch.eye(6, dtype=F64)[:, :1], lambda projected, query: query @ torch.ones(6, 5, dtype=F64)
    )
    with pytest.raises(RequestError, match="non-negative weights that sum to one"):
        generalised_attention([head], normal(1, 5, 6), normal(2, 4, 6))


W = torch.ones


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Heads.random(0, 6, 2), "heads to be a whole number of at least 1; got 0"),
        (lambda: Heads(W(0, 6, 2), W(1, 6, 2), W(1, 6, 2)), "at least one head"),
        (lambda: Heads(W(1, 6, 7), W(1, 6, 7), W(1, 6, 2)), r"rank r between 1 and the width d.*lower r"),
        (lambda: Heads(W(1, 6, 2), W(1, 6, 3), W(1, 6, 2)), "of one rank r"),
        (lambda: Heads(W(3, 6, 2), W(2, 6, 2), W(2, 6, 2)), "whole number of query heads"),
        (lambda: Heads(W(2, 6, 2), W(2, 6, 2), W(2, 5, 2)), "value of shape"),
        (lambda: Heads(W(2, 6, 2), W(2, 6, 2), W(2, 6, 2), W(2, 3, 6)), r"output of shape \(..., h, v, o\)"),
        (lambda: Heads(W(2, 6, 2), W(2, 6, 2), W(2, 6, 2), query_bias=W(2, 3)), "query_bias of shape"),
        (lambda: attention(heads_of(0), normal(0, 0, 6)), "at least one token"),
        (lambda: attention(heads_of(0), normal(0, 4, 5)), r"tokens of width 6.*got shape \(4, 5\)"),
        (lambda: attention(heads_of(0), normal(0, 4, 6) / 0), r"finite tokens; got -?inf at index \(0, 0\)"),
        (lambda: attention(heads_of(0), normal(0, 4, 6) * torch.nan), "finite tokens; got nan"),
        (lambda: attention(heads_of(0), torch.ones(4, 6, dtype=torch.int64)), "floating-point dtype"),
        (lambda: attention(heads_of(0), torch.ones(6)), r"shape \(..., n, d\); got shape \(6,\)"),
        (lambda: attention(heads_of(0), normal(0, 4, 6), normal(0, 3, 6), Causal()), "as many queries as keys"),
        (lambda: attend(W(2, 4, 3), W(2, 4, 2), W(2, 4, 2)), "queries and keys of one rank r"),
        (lambda: attend(W(2, 4, 3), W(2, 4, 3), W(2, 5, 2)), "as many values as keys"),
        (lambda: attend(W(3, 4, 3), W(2, 4, 3), W(2, 4, 2)), "choose h as a multiple of g"),
        (lambda: attend(W(3, 4, 3), W(3, 4, 3), W(3, 4, 2), scale=W(2)), "one for each of the 3 heads"),
        (lambda: attend(W(3, 4, 3), W(3, 4, 3), W(3, 4, 2), W(4, 4) < 0), "no self-loop at token 0"),
        (lambda: bilinear_forms(Heads(W(1, 6, 2), W(1, 5, 2), W(1, 5, 2))), "of one width"),
    ],
)
def test_refusals(make, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()


def test_unknown_kind_is_refused_by_name() -> None:
    unchecked = weigh.__wrapped__  # below the run-time check of types, which only tests install
    with pytest.raises(RequestError, match="softmax, hardmax; got sparsemax"):
        unchecked(torch.ones(2, 2), None, "sparsemax")


def test_numbers_whose_sum_overflows_are_finite() -> None:
    huge = torch.full((4, 4), 1e308, dtype=torch.float64)
    assert not torch.isfinite(huge.sum())
    check_finite(huge)
    # Infinities that cancel are found all the same.
    with pytest.raises(RequestError, match=r"finite tokens; got inf at index \(0, 1\)"):
        check_finite(torch.tensor([[0.0, torch.inf], [-torch.inf, 0.0]]))


@pytest.mark.parametrize("heads", [1, 64])
def test_random_weights_keep_the_size_of_tokens(heads: int, generator: torch.Generator) -> None:
    """Variances 1/d, 1/c, 1/c and 1/(v H), to four standard errors of a variance: at most 11 percent."""
    width, rank, value_rank = 96, 64, 32
    drawn = Heads.random(heads, width, rank, value_rank=value_rank, generator=generator, dtype=F64)
    assert drawn.output is not None
    for weight, variance in (
        (drawn.query, 1 / width),
        (drawn.key, 1 / width),
        (drawn.value, 1 / width),
        (drawn.output, 1 / (value_rank * heads)),
    ):
        assert weight.numel() >= 3_000
        tolerance = 4 * (2 / weight.numel()) ** 0.5
        assert float(weight.var(correction=0)) == pytest.approx(variance, rel=tolerance)
