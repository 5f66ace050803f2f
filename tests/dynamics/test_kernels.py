"""The fused kernels of split tokens, in Triton's interpreter, against the PyTorch route."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.sampling import normal
from torch import Tensor

from rankfall.dynamics import kernels, self_check
from rankfall.dynamics.decisions import noting
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.split import Split, normal_form, split
from rankfall.dynamics.split_attention import DigitsLostError, split_step
from rankfall.dynamics.step import random_tokens
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.masks import parse_mask

pytest.importorskip("triton")

# The interpreter computes in NumPy, which warns of the logarithm of zero; kernels mean it.
pytestmark = [
    pytest.mark.usefixtures("_unwritten_memory_is_nan"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

CLOSE = 5e-15


@contextmanager
def interpreted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "trusted", {"cpu"})
        yield


def same(one: Split, other: Split, bound: float = CLOSE) -> None:
    """Residuals and common parts have largest entries of order one, logarithms may be large."""
    for name in ("common", "residual", "log_size", "log_ratio"):
        a, b = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(a, b, rtol=bound, atol=bound, equal_nan=True)


def drawn(batch: int, n: int, d: int, root: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n + d)
    common, residual = (
        torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((batch, d), (batch, n, d))
    )
    log_size, log_ratio = (torch.randn(batch, generator=generator, dtype=torch.float64) for _ in range(2))
    reference = torch.full((batch, n), 1 / n, dtype=torch.float64)
    if root:
        reference = torch.zeros_like(reference)
        reference[:, n // 2] = 1.0
    return [common, residual, log_size, log_ratio - 3.0, reference]


@pytest.mark.parametrize(
    ("batch", "n", "d", "root"), [(1, 5, 3, False), (3, 200, 17, True), (2, 70, 32, False), (2, 3, 130, True)]
)
def test_normal_form(batch: int, n: int, d: int, root: bool) -> None:
    given = drawn(batch, n, d, root)
    plain = normal_form(*(one.clone() for one in given))
    with interpreted():
        fused = normal_form(*(one.clone() for one in given))
    same(fused, plain)
    assert fused.residual.abs().amax(dim=(-2, -1)).tolist() == [1.0] * batch


def test_normal_form_of_the_edges() -> None:
    """Equal tokens, zero tokens, a common part that cancels, a tiny residual, none, what is not a number."""
    common, residual, log_size, log_ratio, reference = drawn(6, 4, 3, root=True)
    residual[0] = 0.7
    residual[1], common[1] = 0.0, 0.0
    common[2] = -log_ratio[2].exp() * residual[2, 2]
    log_ratio[3] = -600.0
    log_ratio[4] = -torch.inf
    residual[5, 1, 2] = torch.nan
    given = (common, residual, log_size, log_ratio, reference)
    plain = normal_form(*(one.clone() for one in given))
    with interpreted():
        fused = normal_form(*(one.clone() for one in given))
    same(fused.take(slice(0, 5)), plain.take(slice(0, 5)))
    assert fused.common[2].tolist() == [0.0] * 3
    assert bool(fused.log_ratio[5].isnan())
    assert bool(fused.residual[5].isnan().all())


@pytest.mark.parametrize(
    ("mask", "n"), [("window:4", 203), ("causal-window:7", 150), ("dilated:3:2", 203), ("causal", 20), ("star", 40)]
)
@pytest.mark.parametrize("query_key", ["random", "zero"])
def test_a_layer_by_one_kernel(mask: str, n: int, query_key: str) -> None:
    batch, d = 2, 12
    plan = MaskPlan(parse_mask(mask), batch, n)
    weights = DrawnWeights(WeightRecipe(d, query_key, "gaussian"), range(batch), [0.3, 2.0]).at(0)
    state = split(random_tokens(range(batch), n, d), plan.reference())
    for _ in range(2):
        plain = split_step(state, weights, plan.at(0))
        with interpreted():
            assert plan.at(0)[0].mixer.by_kernel(state.residual)
            fused = split_step(state, weights, plan.at(0))
            told = fused.log_spread()
        same(fused, plain)
        torch.testing.assert_close(told, plain.log_spread(), rtol=CLOSE, atol=CLOSE)
        state = plain


def test_sharp_attention_is_seen_by_the_kernel() -> None:
    """Every token attends to the first: then all rows agree, and another form must be taken, or nothing is left."""
    plan = MaskPlan(parse_mask("causal"), 1, 6)
    tokens = normal(0, 1, 6, 4)
    tokens[0, 0] = 30.0
    heads = DrawnWeights(WeightRecipe(4), [0]).at(0)
    heads = replace(heads, query=torch.eye(4, dtype=torch.float64)[None, None], key=heads.query * 0 + 1.0)
    state = split(tokens.abs() + 5.0, plan.reference())
    with noting() as plainly:
        plain = split_step(state, heads, plan.at(0))
    with interpreted(), noting() as by_kernel:
        fused = split_step(state, heads, plan.at(0))
    assert plainly.answers[:2] == by_kernel.answers[:2] == [False, True]
    same(fused, plain)


def test_groups_that_join_in_one_layer_of_a_band_are_refused() -> None:
    """By the processor's route and by the kernel, which both ask twice: are scores negligible, are digits lost."""
    recipe, tokens, mask = WeightRecipe(4), random_tokens([7], 38, 4), parse_mask("window:2")
    weights = DrawnWeights(recipe, [7], [1e-4])
    start = run_layers(tokens, weights, mask, 31, measures=(), ordinary=False).final
    groups = MaskPlan(mask, 1, 38).at(0)

    def answers() -> list[bool]:
        with noting() as noted:
            before = split_step(start, weights.at(0), groups)
            with pytest.raises(DigitsLostError):
                split_step(before, weights.at(0), groups)
        return noted.answers

    assert answers() == [False, False, False, True]
    with interpreted():
        assert groups[0].mixer.by_kernel(start.residual)
        assert not groups[0].mixer.blocks.whole
        assert answers() == [False, False, False, True]


def test_a_run_far_below_machine_epsilon() -> None:
    tokens, weights = random_tokens([0], 70, 4), DrawnWeights(WeightRecipe(4, "zero"), [0])
    run = partial(
        run_layers, tokens, weights, parse_mask("causal-window:2"), 24, measures=(), ordinary=False, thin=24
    )
    plain = run()
    with interpreted(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankfall.dynamics.stepper.Stepper._stretch", lambda *_: None)
        fused = run()
    torch.testing.assert_close(fused.log_mu, plain.log_mu, rtol=CLOSE, atol=CLOSE)


@pytest.fixture
def doubted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The processor as a device whose kernels nobody has tried yet."""
    monkeypatch.setattr(self_check, "_is_suited", lambda device: True)
    monkeypatch.setattr(self_check, "TRIED", (("window:1", 70), ("causal", 4)))
    monkeypatch.setattr(self_check, "LAYERS", 1)
    monkeypatch.setattr(kernels, "trusted", set())
    self_check.trust.cache_clear()
    yield monkeypatch
    self_check.trust.cache_clear()


def test_kernels_are_taken_where_they_are_right(doubted: pytest.MonkeyPatch) -> None:
    assert self_check.trust("cpu")
    assert kernels.trusted == {"cpu"}


@pytest.mark.parametrize("wrong", ["normal", "spread", "crash"])
def test_kernels_that_are_wrong_are_not_taken(doubted: pytest.MonkeyPatch, wrong: str) -> None:
    if wrong == "crash":
        doubted.setattr("rankfall.dynamics.split.normal", lambda *_: 1 / 0)
    else:
        right = getattr(kernels, wrong)
        off = {"normal": lambda found: (found[0] * (1 + 1e-9), *found[1:]), "spread": lambda found: found + 1e-9}
        doubted.setattr(f"rankfall.dynamics.split.{wrong}", lambda *given: off[wrong](right(*given)))
    assert not self_check.trust("cpu")
    assert kernels.trusted == set()


def test_a_processor_takes_no_kernels() -> None:
    run_layers(random_tokens([0], 70, 4), DrawnWeights(WeightRecipe(4), [0]), parse_mask("window:2"), 2)
    assert "cpu" not in kernels.trusted
