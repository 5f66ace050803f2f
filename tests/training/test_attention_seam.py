"""The seam: every PyTorch way equals the reference mechanism, outputs and gradients, masked or not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.mechanism.attend import attend as reference
from rankfall.training.attention_seam import WAYS, attend


def projected(
    models: int, batch: int, tokens: int, context: int, heads: int, rank: int, value: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(models + 10 * tokens + 100 * rank)
    shapes = [(tokens, heads, rank), (context, heads, rank), (context, heads, value)]
    options = {"dtype": torch.float64, "generator": generator, "requires_grad": True}
    return [torch.randn(models, batch, *shape, **options) for shape in shapes]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.sampled_from(WAYS[1:]),
    st.integers(1, 3),
    st.integers(2, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
)  # fmt: skip
def test_every_way_is_the_same_attention(
    way: str, models: int, tokens: int, heads: int, rank: int, causal: bool
) -> None:
    q, k, v = projected(models, 2, tokens, tokens, heads, rank, rank + 1)
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril() if causal else None
    ours = attend(q, k, v, mask, 0.7, way=way)
    theirs = reference(*(x.transpose(2, 3) for x in (q, k, v)), mask, scale=0.7).transpose(2, 3)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    weight = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view(ours.shape)
    for mine, other in zip(
        torch.autograd.grad(ours, (q, k, v), weight), torch.autograd.grad(theirs, (q, k, v), weight), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("way", WAYS[1:])
def test_queries_may_outnumber_the_context(way: str) -> None:
    q, k, v = projected(2, 3, 6, 4, 2, 2, 2)
    assert attend(q, k, v, None, 1.0, way=way).shape == (2, 3, 6, 2, 2)


@pytest.mark.parametrize("way", WAYS[1:])
def test_huge_scores_do_not_overflow(way: str) -> None:
    q, k, v = (x.detach() * 1e4 for x in projected(1, 2, 5, 5, 2, 2, 2))
    assert attend(q.float(), k.float(), v.float(), None, 1.0, way=way).isfinite().all()
