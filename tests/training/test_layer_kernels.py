"""The fused feed-forward and projections, in Triton's interpreter: outputs and gradients against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfall.training import layer_seam
from rankfall.training.attention_seam import attend
from rankfall.training.cell import Cell
from rankfall.training.compiled import matmul_precision
from rankfall.training.kernels import cuts, layer
from rankfall.training.kernels.groups import grouped_heads
from rankfall.training.kernels.launch import precision
from rankfall.training.kernels.layer import gather, layer_misfit, project, rounded
from rankfall.training.parameters import layout
from rankfall.training.stack import Stack

pytest.importorskip("triton")

pytestmark = pytest.mark.usefixtures("_unwritten_memory_is_nan")

FLOAT32 = 3e-6
"""Allowed relative error in the Frobenius norm; sums of a few hundred products lose some of float32's 6e-8."""


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors as where TF32 is allowed."""
    for module in (cuts, layer):
        monkeypatch.setattr(module, "factors", lambda: torch.float16)


def fused_feed_forward(x: Tensor, *weights: Tensor) -> Tensor:
    return layer.feed_forward(x, *weights, rounded(*(weight.detach() for weight in weights)))


def plain_feed_forward(x: Tensor, rise: Tensor, rise_bias: Tensor, fall: Tensor, fall_bias: Tensor) -> Tensor:
    return (x @ rise + rise_bias[:, None]).relu() @ fall + fall_bias[:, None]


def plain_project(x: Tensor, *weights: Tensor) -> Tensor:
    return torch.stack([x @ w + b[:, None] for w, b in zip(weights[::2], weights[1::2], strict=True)])


def feed_forward_shapes(models: int, rows: int, width: int, hidden: int) -> list[tuple[int, ...]]:
    return [
        (models, rows, width), (models, width, hidden), (models, hidden), (models, hidden, width), (models, width),
    ]  # fmt: skip


def project_shapes(models: int, rows: int, width: int, columns: int) -> list[tuple[int, ...]]:
    return [(models, rows, width), *[(models, width, columns), (models, columns)] * 3]


def gather_shapes(models: int, rows: int, width: int, columns: int) -> list[tuple[int, ...]]:
    return [(models, rows, columns), (models, columns, width)]


OPERATORS = {
    "feed_forward": (fused_feed_forward, plain_feed_forward, feed_forward_shapes),
    "project": (project, plain_project, project_shapes),
    "gather": (gather, torch.matmul, gather_shapes),
}


def answers(function: Callable[..., Tensor], leaves: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    """The output and the gradients of all leaves."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight)]


def error(name: str, sizes: tuple[int, int, int, int]) -> float:
    """The largest relative error of output and gradients on random numbers."""
    ours, plain, shapes = OPERATORS[name]
    generator = torch.Generator().manual_seed(sum(sizes))
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes(*sizes)]
    weight = torch.randn(plain(*leaves).shape, generator=generator, dtype=torch.float64)
    expected = answers(plain, leaves, weight)
    found = answers(ours, [leaf.float() for leaf in leaves], weight.float())
    assert [x.shape for x in found] == [x.shape for x in expected]
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    models=st.integers(1, 2), rows=st.integers(1, 140), width=st.sampled_from([16, 32]), blocks=st.integers(1, 3)
)  # fmt: skip
@pytest.mark.parametrize("name", OPERATORS)
def test_random_shapes(name: str, models: int, rows: int, width: int, blocks: int) -> None:
    assert error(name, (models, rows, width, 16 * blocks)) < FLOAT32


@pytest.mark.parametrize("name", OPERATORS)
def test_however_many_shares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a large GPU the hidden axis and the rows that are summed over are cut."""
    monkeypatch.setattr(cuts, "_processors", lambda device: 64)
    assert error(name, (1, 130, 16, 128)) < FLOAT32


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("size", [1.0, 2.0**-30, 2.0**30])
@pytest.mark.usefixtures("half")
def test_ten_bits_are_enough_for_small_integers(name: str, size: float) -> None:
    """Exactly, whatever the size of the gradient: it is scaled into the range of float16, block by block."""
    ours, plain, shapes = OPERATORS[name]
    generator = torch.Generator().manual_seed(0)

    def drawn(shape: Sequence[int]) -> Tensor:
        return torch.randint(-1, 2, tuple(shape), generator=generator).double()

    leaves = [drawn(shape) for shape in shapes(2, 70, 16, 32)]
    weight = drawn(plain(*leaves).shape) * size
    weight[..., 64:, :] *= 2.0**-8  # another scale for other rows
    expected = answers(plain, leaves, weight)
    found = answers(ours, [leaf.float() for leaf in leaves], weight.float())
    for ours_, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(ours_.double(), truth, rtol=1e-6, atol=1e-6 * float(truth.abs().max()))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.usefixtures("half")
def test_a_gradient_that_is_zero_or_not_finite_stays_so() -> None:
    leaves = [torch.randn(shape) for shape in feed_forward_shapes(1, 5, 16, 16)]
    assert all(float(x.abs().max()) == 0 for x in answers(fused_feed_forward, leaves, torch.zeros(1, 5, 16))[1:])
    for bad in (torch.inf, torch.nan):
        weight = torch.zeros(1, 5, 16)
        weight[0, 2, 3] = bad
        found = answers(fused_feed_forward, leaves, weight)
        assert not found[1].isfinite().all()
        assert not found[4].isfinite().all()


@pytest.mark.parametrize("name", OPERATORS)
def test_they_are_lawful_operators(name: str) -> None:
    operator = layer.feed_forward if name == "feed_forward" else OPERATORS[name][0]
    leaves = [torch.randn(shape, requires_grad=True) for shape in OPERATORS[name][2](1, 6, 16, 16)]
    extra = [rounded(*(leaf.detach() for leaf in leaves[1:]))] if name == "feed_forward" else []
    torch.library.opcheck(operator, (*leaves, *extra))


@pytest.mark.parametrize("masked", [False, True])
def test_heads_of_several_ranks_from_one_tensor(masked: bool) -> None:
    projected = torch.randn(3, 4, 2, 5, 8, dtype=torch.float64, requires_grad=True)
    groups = [(1, 8, 1), (2, 2, 4), (1, 1, 8)]
    mask = torch.ones(5, 5, dtype=torch.bool).tril() if masked else None

    def plain(projected: Tensor) -> Tensor:
        parts, first = [], 0
        for models, heads, rank in groups:
            q, k, v = projected[:, first : first + models].unflatten(-1, (heads, rank))
            parts.append(attend(q, k, v, mask, rank**-0.5, way="products").flatten(-2))
            first += models
        return torch.cat(parts)

    weight = torch.randn(4, 2, 5, 8, dtype=torch.float64)
    expected = answers(plain, [projected], weight)
    flat = [number for group in groups for number in group]
    found = answers(lambda x: grouped_heads(x, mask, flat), [projected.float()], weight.float())
    for ours, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=1e-4, atol=1e-5)
    torch.library.opcheck(grouped_heads, (projected.detach().float().requires_grad_(), mask, flat))


def training_gradients(cells: list[Cell], way: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    monkeypatch.setattr(layer_seam, "choose", lambda x, columns: way)
    stack = Stack(cells)
    stack.batches.fill(0)
    inputs, targets = stack.batches.at(torch.zeros(1, dtype=torch.int64))
    losses = stack.loss(stack._weights, inputs, targets)
    # The key's bias moves nothing: its gradient is rounding error.
    asked = {name: weight for name, weight in stack._weights.items() if not name.endswith("key_bias")}
    grads = torch.autograd.grad(losses.sum(), list(asked.values()))
    return {"loss": losses.detach(), **dict(zip(asked, grads, strict=True))}


@pytest.mark.parametrize("recipe", ["published", "stable"])
def test_training_through_the_kernels_has_the_same_losses_and_gradients(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        Cell(dim=16, points=4, rank=rank, multiplier=2, layers=2, batch=3, steps=100, feed_forward=32, recipe=recipe)
        for rank in (2, 2, 16)
    ]
    ours, theirs = (training_gradients(cells, way, monkeypatch) for way in ("kernel", "products"))
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("changes", [{"task": "nearest"}, {"value_rank": 8}])
def test_heads_of_other_shapes_go_on_as_before(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries without keys, and values of another width, are not of one tensor: only the feed-forward is fused."""
    cells = [Cell(dim=16, points=4, rank=4, batch=3, steps=100, feed_forward=16, **changes)]
    ours, theirs = (training_gradients(cells, way, monkeypatch) for way in ("kernel", "products"))
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-4, atol=1e-6)


def test_weights_of_a_stack_are_read_where_they_lie() -> None:
    weights = Stack([Cell(dim=16, points=4, rank=4, batch=3, steps=100, feed_forward=16)] * 2)._weights
    parts = [weights[f"0.{name}"] for name in ("rise", "rise_bias", "fall", "fall_bias")]
    row = cuts.in_a_row(*parts)
    assert row.data_ptr() == parts[0].data_ptr()
    assert torch.equal(row, torch.cat([part.flatten(1) for part in parts], dim=1))
    assert torch.equal(cuts.in_a_row(*(part.clone() for part in parts)), row)


def test_gradients_that_lie_side_by_side_are_joined_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pieces as tensors, not as weights, and the same numbers."""
    found = layout(Cell(dim=16, rank=4, feed_forward=16))
    sizes = [slot.size for slot in found.slots]
    apart = [torch.randn(3, *slot.shape) for slot in found.slots]
    flat = torch.cat([part.flatten(1) for part in apart], dim=1)
    together = [piece.view(3, *slot.shape) for slot, piece in zip(found.slots, flat.split(sizes, dim=1), strict=True)]
    expected = found.join(apart)
    counts = []
    real = torch.cat
    monkeypatch.setattr(torch, "cat", lambda pieces, dim: counts.append(len(pieces)) or real(pieces, dim=dim))
    assert torch.equal(found.join(together), expected)
    gaps = sum(slot.size % 4 != 0 for slot in found.slots)
    assert counts == [2 * gaps]


# ---- when they do not fit


class Unable:
    """A step that cannot be captured while it goes through the kernels."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self.tries = stack, 0

    def __call__(self) -> str:
        self.tries += 1
        if self._stack.encoder.fused:
            raise RuntimeError("out of resources\nand more")
        return "captured"


def test_training_goes_on_without_kernels_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_seam, "choose", lambda x, columns: "kernel")
    stack = Stack([Cell(dim=16, points=4, rank=4, batch=3, steps=100, feed_forward=16)])
    capture = Unable(stack)
    monkeypatch.setattr(stack.program, "_capture", capture)
    with pytest.warns(UserWarning, match="without the fused kernels, which failed here: out of resources$"):
        assert stack.program._captured() == "captured"
    assert capture.tries == 2
    monkeypatch.setattr(cuts, "_kernel", None)  # a call of any kernel would fail now
    stack.run_steps(1)


def test_what_fails_without_kernels_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack([Cell(dim=16, points=4, rank=4, batch=3, steps=100, feed_forward=16)])
    stack.encoder = dataclasses.replace(stack.encoder, fused=False)

    def fail() -> None:
        raise RuntimeError("no such GPU")

    monkeypatch.setattr(stack.program, "_capture", fail)
    with pytest.raises(RuntimeError, match="no such GPU"):
        stack.program._captured()


def test_too_little_memory_is_not_a_failure_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack([Cell(dim=16, points=4, rank=4, batch=3, steps=100, feed_forward=16)])

    def fail() -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(stack.program, "_capture", fail)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        stack.program._captured()
    assert stack.encoder.fused


def test_factors_have_ten_bits_where_tf32_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuts.factors() == torch.float32
    monkeypatch.delenv("TRITON_INTERPRET")
    with matmul_precision(tf32=True):
        assert (precision(), cuts.factors()) == ("tf32", torch.float16)
    with matmul_precision(tf32=False):
        assert (precision(), cuts.factors()) == ("tf32x3", torch.float32)


def test_kernels_are_for_gpus() -> None:
    assert layer_seam.choose(torch.randn(1, 4, 16), 16) == "products"


@pytest.mark.parametrize(
    ("dtype", "width", "columns", "reason"),
    [
        (torch.float64, 16, 16, "it computes in float32, not in float64"),
        (torch.float32, 24, 16, "it takes widths of 16, 32 and 64, not 24"),
        (torch.float32, 64, 40, "it takes multiples of 16 columns, not 40"),
    ],
)
def test_a_misfit_says_why(dtype: torch.dtype, width: int, columns: int, reason: str) -> None:
    assert layer_misfit("cpu", dtype, width, columns) == reason


def test_what_fits_has_no_reason() -> None:
    assert layer_misfit("cpu", torch.float32, 64, 2048) is None


def test_without_triton_or_gpu_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "HAS_TRITON", False)
    assert layer_misfit("cpu", torch.float32, 64, 2048) == "Triton is not installed"
    monkeypatch.setattr(layer, "INTERPRETED", False)
    assert layer_misfit("cpu", torch.float32, 64, 2048) == "it runs on GPUs only"
