"""The fused kernels, in Triton's interpreter: outputs and gradients against float64, whatever the shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfall.store.store import Store
from rankfall.training import attention_seam
from rankfall.training.attention_seam import attend, choose
from rankfall.training.cell import Cell
from rankfall.training.kernels import launch as choice
from rankfall.training.kernels.launch import Launch, backward, forward, launch_for, misfit
from rankfall.training.kernels.operator import small_heads
from rankfall.training.plan import make_plan, stack_bytes
from rankfall.training.stack import Stack
from rankfall.training.sweep import slower

pytest.importorskip("triton")

pytestmark = pytest.mark.usefixtures("_unwritten_memory_is_nan")

FLOAT32, BFLOAT16 = 3e-6, 2e-2
"""Allowed relative error in the Frobenius norm; sums of a few hundred products lose some of float32's 6e-8."""
SCALE = 0.6


def drawn(
    models: int, batch: int, tokens: int, context: int, heads: int, rank: int, value: int, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor]:
    """q, k, v, their biases and the gradient of the output, float64 numbers that the type can hold."""
    generator = torch.Generator().manual_seed(tokens + 100 * rank)
    shapes = [
        (models, batch, tokens, heads, rank),
        (models, batch, context, heads, rank),
        (models, batch, context, heads, value),
        (models, heads * rank),
        (models, heads * rank),
        (models, heads * value),
        (models, batch, tokens, heads, value),
    ]
    *leaves, weight = (torch.randn(*shape, generator=generator).to(dtype).double() for shape in shapes)
    return leaves, weight


def errors(
    leaves: list[Tensor], weight: Tensor, mask: Tensor | None, biased: bool, dtype: torch.dtype, launch: Launch | None
) -> list[float]:
    """Relative errors of the output and of each gradient but that of the key's bias, which is zero (see below)."""
    kept = [leaf.clone().requires_grad_() for leaf in leaves[: 6 if biased else 3]]
    truth = attend(*kept[:3], mask, SCALE, tuple(kept[3:]) or None, way="products")
    expected = [truth.detach(), *torch.autograd.grad(truth, kept, weight)]
    q, k, v, *biases = (leaf.detach().to(dtype) for leaf in kept)
    given_biases = (biases[0], biases[1], biases[2]) if biased else None
    ahead, back = launch or launch_for(q, k, v, "forward"), launch or launch_for(q, k, v, "backward")
    found = [
        forward(q, k, v, given_biases, mask, SCALE, ahead),
        *backward(weight.to(dtype), q, k, v, given_biases, mask, SCALE, back),
    ]
    assert [x.shape for x in found] == [x.shape for x in expected]
    compared = [i for i in range(len(found)) if i != 5]
    return [float((found[i].double() - expected[i]).norm() / expected[i].norm()) for i in compared]


def causal(tokens: int, context: int) -> Tensor:
    return torch.ones(tokens, context, dtype=torch.bool).tril()


@pytest.mark.parametrize("rank", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("tokens", [4, 16, 20, 70])
def test_every_rank_and_length(tokens: int, rank: int) -> None:
    heads = 3 if rank < 16 and tokens < 70 else 1
    leaves, weight = drawn(1, 2, tokens, tokens, heads, rank, rank, torch.float32)
    assert max(errors(leaves, weight, None, True, torch.float32, None)) < FLOAT32


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    models=st.integers(1, 2), batch=st.integers(1, 3), tokens=st.integers(1, 18), context=st.integers(1, 18),
    heads=st.integers(1, 5), rank=st.integers(1, 6), value=st.integers(1, 6),
    masked=st.booleans(), biased=st.booleans(),
)  # fmt: skip
def test_random_shapes(
    models: int, batch: int, tokens: int, context: int, heads: int, rank: int, value: int, masked: bool, biased: bool
) -> None:
    leaves, weight = drawn(models, batch, tokens, max(2, context), heads, rank, value, torch.float32)
    mask = causal(tokens, max(2, context)) if masked else None
    if mask is not None and tokens == 1:
        mask = None  # one key allowed to one query: its weight is one and the gradients of q and k are zero
    assert max(errors(leaves, weight, mask, biased, torch.float32, None)) < 3 * FLOAT32


@pytest.mark.parametrize(
    "launch",
    [
        Launch("lanes", 2, 4),
        Launch("lanes", 8, 1),
        Launch("tiles", 2, 2),
        Launch("tiles", 4, 1),
        Launch("long", block=16),
        Launch("long", block=64),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_however_the_work_is_cut(launch: Launch, masked: bool) -> None:
    # one program for each head of each sequence, or several in one with a rest
    batch, heads = (2, 2) if launch.family == "long" else (3, 3)
    leaves, weight = drawn(2, batch, 6, 6, heads, 2, 2, torch.float32)
    mask = causal(6, 6) if masked else None
    assert max(errors(leaves, weight, mask, True, torch.float32, launch)) < FLOAT32


@pytest.mark.parametrize(("tokens", "rank"), [(6, 1), (6, 8), (20, 4)])
def test_bfloat16(tokens: int, rank: int) -> None:
    leaves, weight = drawn(1, 2, tokens, tokens, 2, rank, rank, torch.bfloat16)
    assert max(errors(leaves, weight, causal(tokens, tokens), True, torch.bfloat16, None)) < BFLOAT16


@pytest.mark.parametrize(("tokens", "rank"), [(6, 2), (6, 8), (20, 4)])
def test_a_key_bias_moves_nothing(tokens: int, rank: int) -> None:
    """It adds the same number to all scores of a query; its gradient is rounding error of a sum of such size."""
    leaves, weight = drawn(1, 2, tokens, tokens, 2, rank, rank, torch.float32)
    q, k, v, *biases = (leaf.float() for leaf in leaves)
    launch = launch_for(q, k, v, "backward")
    grads = backward(weight.float(), q, k, v, (biases[0], biases[1], biases[2]), None, SCALE, launch)
    assert grads[4].abs().max() < 1e-5 * grads[1].abs().sum(dim=(1, 2)).max()


@pytest.mark.parametrize(("tokens", "rank"), [(6, 1), (6, 4), (20, 4)])
def test_any_strides(tokens: int, rank: int) -> None:
    """Projections packed side by side, and a head-major tensor, which has to be copied."""
    packed = torch.randn(2, 3, tokens, 3, 4 * rank)
    q, k, v = (x.unflatten(-1, (4, rank)) for x in packed.unbind(dim=3))
    head_major = v.transpose(2, 3).contiguous().transpose(2, 3)
    for values in (v, head_major):
        ours = attend(q, k, values, None, SCALE, way="kernel")
        torch.testing.assert_close(ours, attend(q, k, v, None, SCALE, way="products"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("tokens", "rank"), [(6, 2), (6, 8), (70, 4)])
def test_huge_scores_do_not_overflow(tokens: int, rank: int) -> None:
    q, k, v = (1e4 * torch.randn(1, 2, tokens, 2, rank) for _ in range(3))
    out = attend(q, k, v, None, 1.0, way="kernel")
    torch.testing.assert_close(out, attend(q, k, v, None, 1.0, way="products"), rtol=1e-3, atol=1e-1)


@pytest.mark.parametrize("biased", [False, True])
def test_it_is_a_lawful_operator(biased: bool) -> None:
    leaves, _ = drawn(1, 2, 5, 5, 2, 2, 2, torch.float32)
    inputs = [leaf.float().requires_grad_() for leaf in leaves]
    biases = inputs[3:] if biased else [None] * 3
    torch.library.opcheck(small_heads, (*inputs[:3], *biases, causal(5, 5), SCALE))


def test_training_through_the_kernel_has_the_same_losses_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(dim=8, points=4, rank=rank, batch=3, steps=100, feed_forward=8, mask="causal") for rank in (2, 8)]
    stack = Stack(cells)
    stack.batches.fill(0)
    inputs, targets = stack.batches.at(torch.zeros(1, dtype=torch.int64))
    weights = {name: weight.detach().requires_grad_() for name, weight in stack._weights.items()}

    def learned(way: str) -> list[Tensor]:
        monkeypatch.setattr(attention_seam, "choose", lambda q, k, v: way)
        losses = stack.loss(weights, inputs, targets)
        # The key's bias moves nothing: its gradient is rounding error.
        asked = [weight for name, weight in weights.items() if not name.endswith("key_bias")]
        return [losses.detach(), *torch.autograd.grad(losses.sum(), asked)]

    for ours, theirs in zip(learned("kernel"), learned("products"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


# ---- when it does not fit


def test_the_kernel_is_for_gpus() -> None:
    q = torch.randn(1, 2, 4, 2, 1)
    assert choose(q, q, q) == "fused"


@pytest.mark.parametrize(
    ("dtype", "tokens", "rank", "reason"),
    [
        (torch.float64, 16, 8, "float32 and bfloat16, not in float64"),
        (torch.float32, 257, 8, "up to 256 tokens and rank 64, not 257 and 8"),
        (torch.float32, 16, 65, "not 16 and 65"),
    ],
)
def test_a_misfit_says_why(dtype: torch.dtype, tokens: int, rank: int, reason: str) -> None:
    found = misfit("cpu", dtype, tokens, rank)
    assert found is not None
    assert reason in found


def test_what_fits_has_no_reason() -> None:
    assert misfit("cpu", torch.float32, 256, 64) is None


def test_without_triton_or_gpu_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "HAS_TRITON", False)
    assert misfit("cpu", torch.float32, 16, 8) == "Triton is not installed"
    monkeypatch.setattr(choice, "INTERPRETED", False)
    assert misfit("cpu", torch.float32, 16, 8) == "it runs on GPUs only"


def test_one_note_says_why_a_sweep_goes_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = [Cell(dim=8, points=4, rank=2, steps=100, seed=seed, dtype="float64") for seed in (0, 1)]
    monkeypatch.setattr(choice, "HAS_TRITON", True)
    plan = make_plan(cells, Store(tmp_path), memory=1 << 40, device="cpu", max_stack=1)
    assert slower(plan, "cpu") == []
    (found,) = slower(plan, "cuda")
    assert found == (
        "2 of 2 cells train without the fused attention kernel: it computes in float32 and bfloat16, not in float64"
    )


def test_scores_take_no_memory_where_the_kernel_goes() -> None:
    single, double = (Cell(rank=1, multiplier=64, dtype=dtype) for dtype in ("float32", "float64"))
    # Numbers of float64 take twice as much; the rest is weights, sixteen for each query of rank one, kept twice.
    assert 4 * stack_bytes([single], "cuda") < stack_bytes([double], "cuda")
