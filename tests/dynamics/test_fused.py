"""Kernels that carry tokens through many layers, in Triton's interpreter, against the PyTorch route."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rankfall.dynamics import fused, kernels
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.step import Rule, random_tokens
from rankfall.dynamics.trajectory import Trajectory, run_layers
from rankfall.dynamics.weights import DrawnWeights, GivenWeights, WeightRecipe, Weights
from rankfall.errors import RequestError
from rankfall.masks import MaskSchedule, parse_mask
from rankfall.mechanism.heads import Heads
from rankfall.norms import parse_norm

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
power_of_e = pytest.importorskip("rankfall.dynamics.band_kernels").power_of_e

# The interpreter computes in NumPy, which warns of the logarithm of zero; kernels mean it.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CLOSE = 5e-15


@triton.jit
def exponentials(x: object, out: object, COUNT: tl.constexpr) -> None:
    places = tl.arange(0, COUNT)
    tl.store(out + places, power_of_e(tl.load(x + places)))


class AllRight(dict[object, bool]):
    """Kernels of every kind are taken as tried."""

    def __contains__(self, kind: object) -> bool:
        return True

    def __getitem__(self, kind: object) -> bool:
        return True


class Both:
    """A run by PyTorch and one by the kernels, and how far the latter went each time that they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.passed: list[int] = []
        advance = fused.FusedLayers.advance

        def count(own: fused.FusedLayers, layer: int, *rest: object) -> fused.Passed | None:
            done = advance(own, layer, *rest)
            self.passed.append(0 if done is None else done.reached - layer)
            return done

        monkeypatch.setattr(fused.FusedLayers, "advance", count)
        monkeypatch.setattr(fused, "_recent", fused.OrderedDict())
        monkeypatch.setattr(fused, "_tried", AllRight())

    def __call__(
        self, tokens: Tensor, weights: Weights, mask: str, layers: int, **options: object
    ) -> tuple[Trajectory, Trajectory]:
        options = {"measures": (), "ordinary": False} | options
        plain = run_layers(tokens, weights, parse_mask(mask), layers, **options)
        assert self.passed == [], "no kernel on a processor"
        self.patch.setattr(kernels, "trusted", {"cpu"})
        return plain, run_layers(tokens, weights, parse_mask(mask), layers, **options)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    torch.use_deterministic_algorithms(True)  # memory that a kernel forgets to write is then no number
    yield Both(monkeypatch)
    torch.use_deterministic_algorithms(False)


def same(plain: Trajectory, by_kernels: Trajectory, bound: float = CLOSE) -> None:
    """Logarithms relative to the larger of one and their size; a residual's largest entry is one."""
    assert plain.layers == by_kernels.layers
    for name in ("log10_mu", "log10_relative_mu"):
        torch.testing.assert_close(plain.columns[name], by_kernels.columns[name], rtol=bound, atol=bound)
    for name in ("common", "residual", "log_size", "log_ratio"):
        one, other = getattr(plain.final, name), getattr(by_kernels.final, name)
        torch.testing.assert_close(one, other, rtol=100 * bound, atol=100 * bound)
    assert bool((by_kernels.final.residual.abs().amax(dim=(-2, -1)) <= 1.0 + CLOSE).all())


@pytest.mark.parametrize(
    ("mask", "n", "layers", "thin"),
    [("complete", 5, 12, 1), ("complete", 17, 5, 5), ("causal", 9, 9, 2), ("star", 18, 3, 1), ("causal", 1, 3, 1)],
)
def test_a_short_sequence_in_one_program(both: Both, mask: str, n: int, layers: int, thin: int) -> None:
    """Samples at different sizes, so that each is at its own form; far below machine epsilon under `complete`."""
    tokens = random_tokens([0, 1], n, 5) * torch.tensor([1.0, 1e-3], dtype=torch.float64)[:, None, None]
    plain, found = both(tokens, DrawnWeights(WeightRecipe(5, value="gaussian"), [0, 1]), mask, layers, thin=thin)
    assert both.passed == [layers], "one launch and one look for all layers"
    same(plain, found)
    if (mask, layers) == ("complete", 12):
        assert float(found.columns["log10_mu"].min()) < -100_000


def test_heads_of_low_rank_and_no_scores(both: Both) -> None:
    tokens = random_tokens([0, 1], 6, 5)
    same(*both(tokens, DrawnWeights(WeightRecipe(5, rank=2), [0, 1], [0.2, 3.0]), "causal", 3))
    both.passed.clear()
    both.patch.setattr(kernels, "trusted", set())
    same(*both(tokens, DrawnWeights(WeightRecipe(5, "zero"), [0, 1]), "causal", 3))
    assert both.passed == [3]


@pytest.mark.parametrize(
    ("mask", "n", "thin"),
    [
        ("window:2", 39, 1),
        ("causal-window:3", 38, 4),
        ("dilated:2:2", 75, 3),
        ("window:9", 53, 3),
        ("window:16", 70, 1),
        ("causal-window:32", 99, 3),
        ("window:20", 85, 4),
    ],
)
@pytest.mark.parametrize("query_key", ["random", "zero"])
def test_layers_along_a_band(both: Both, mask: str, n: int, thin: int, query_key: str) -> None:
    """With d a tile's width or not; every layer exact, or those that are recorded; bands as wide as a block of 32,
    narrower and wider."""
    d = 16 if thin == 3 else 5
    seeds = [0, 1] if thin == 1 else [0]
    tokens, weights = random_tokens(seeds, n, d), DrawnWeights(WeightRecipe(d, query_key, "gaussian"), seeds)
    plain, found = both(tokens, weights, mask, 3, thin=thin)
    assert both.passed == [3]
    same(plain, found)


def test_exponentials_of_what_is_not_positive() -> None:
    """To the last digit or the one beside it, as far as they are normal numbers; what is no number stays none."""
    ends = [0.0, -0.0, -1e-300, -1e-17, -707.9, -708.0, -708.1, -746.0, -1e12, -1e300, -torch.inf, torch.nan]
    spread = -torch.logspace(-9, 2.85, 4096 - len(ends), dtype=torch.float64)
    x = torch.cat([torch.tensor(ends, dtype=torch.float64), spread])
    out = torch.empty_like(x)
    exponentials[(1,)](x, out, len(x))
    right = x.exp().where(x >= -708.0, 0.0)
    assert out[:3].tolist() == [1.0, 1.0, 1.0]
    assert bool(out[x.isnan()].isnan().all())
    torch.testing.assert_close(out[~x.isnan()], right[~x.isnan()], rtol=3.4e-16, atol=0.0)


def test_many_blocks_and_pairs_that_are_closed(both: Both) -> None:
    """Blocks are gathered in steps; a mask that leaves holes in its band goes by its words."""
    both.patch.setattr(fused, "MOST_PARTS", 2)
    both.patch.setattr(fused, "FOLDED", 16)
    both.patch.setattr("rankfall.dynamics.mixing.Mixer.filled", False)
    tokens, weights = random_tokens([0], 150, 4), DrawnWeights(WeightRecipe(4), [0])
    same(*both(tokens, weights, "window:2", 2, thin=2))
    assert both.passed == [2]


@pytest.mark.parametrize(("mask", "n"), [("complete", 5), ("window:2", 38)])
def test_looks_in_between_change_nothing(both: Both, mask: str, n: int) -> None:
    """Also where no layer is recorded between two of them."""
    both.patch.setattr(fused, "MOST_LAYERS", 2)
    same(*both(random_tokens([0], n, 4), DrawnWeights(WeightRecipe(4), [0]), mask, 5, thin=4))
    assert both.passed == [2, 2, 1]


@pytest.mark.parametrize(
    ("mask", "n", "measures", "passed"),
    [("complete", 5, (), [3, 3, 3]), ("window:2", 38, ("effective_rank",), [3, 1])],
)
def test_plain_float64_is_followed_beside(
    both: Both, mask: str, n: int, measures: tuple[str, ...], passed: list[int]
) -> None:
    """Until it goes wrong, log mu of every layer is told, whatever is recorded."""
    both.patch.setattr(fused, "MOST_TOLD", 3)
    tokens, weights = random_tokens([0, 1], n, 4), DrawnWeights(WeightRecipe(4), [0, 1])
    plain, found = both(tokens, weights, mask, sum(passed), thin=4, measures=measures, ordinary=True)
    assert both.passed == passed
    same(plain, found)
    for one, other in zip(plain.floors, found.floors, strict=True):
        assert (one.layer, one.reached) == (other.layer, other.reached)
        assert one.log10_mu == pytest.approx(other.log10_mu, rel=1e-12)
    assert all(floor.reached for floor in found.floors) == (mask == "complete")


def test_which_bands_are_filled() -> None:
    for mask, n in (("window:2", 75), ("causal-window:3", 70), ("dilated:2:2", 131)):
        assert MaskPlan(parse_mask(mask), 1, n).at(0)[0].mixer.filled
    mixer = MaskPlan(parse_mask("window:2"), 1, 75).at(0)[0].mixer
    mixer.__dict__["_allowed"] = mixer._allowed.clone()
    mixer._allowed[0, 1, 0, 2] = False
    assert not mixer.filled
    assert not MaskPlan(parse_mask("causal"), 1, 9).at(0)[0].mixer.filled


@pytest.mark.parametrize("mask", ["causal", "window:2"])
def test_states_are_kept_where_more_is_measured(both: Both, mask: str) -> None:
    tokens, weights = random_tokens([0, 1], 38 if mask == "window:2" else 7, 4), DrawnWeights(WeightRecipe(4), [0, 1])
    plain, found = both(tokens, weights, mask, 5, thin=2, measures=("effective_rank",), keep_tokens=True)
    assert both.passed == [5]
    same(plain, found)
    torch.testing.assert_close(plain.kept, found.kept, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(plain.columns["effective_rank"], found.columns["effective_rank"], rtol=1e-11, atol=0)


def test_a_form_that_the_kernels_do_not_know_ends_them_in_front_of_it(both: Both) -> None:
    """Attention so sharp that scores of different rows have nothing in common, in some layers of one sample."""
    tokens, weights = 2 * random_tokens([0, 1], 6, 4), DrawnWeights(WeightRecipe(4), [0, 1], [1.0, 0.02])
    same(*both(tokens, weights, "complete", 6), 1e-14)
    assert both.passed == [0, 3, 0, 0]


def test_as_exact_as_arbitrary_precision(both: Both, exact: Callable[..., list[float]]) -> None:
    """Sharp attention amplifies rounding; the kernels lose no more to it than PyTorch does."""
    tokens, weights = 2 * random_tokens([1], 5, 3), DrawnWeights(WeightRecipe(3), [1], [0.05])
    one = weights.at(0)
    heads = Heads(one.query[0], one.key[0], one.value[0], scale=float(one.scale.flatten()[0]))
    right = exact(tokens[0], heads, MaskSchedule((parse_mask("complete"),)), Rule(), 5, 80)
    plain, found = both(tokens, weights, "complete", 5)
    assert both.passed == [5]
    off = [(one.log_mu[:, 0] - torch.tensor(right, dtype=torch.float64)).abs() for one in (plain, found)]
    assert bool((off[1] <= 4 * off[0] + 1e-14 * torch.tensor(right).abs().clamp_min(1.0)).all())


def test_where_the_mean_is_most_of_a_layer_every_layer_is_made_exact(both: Both) -> None:
    """Long tokens, all alike, of which everyone sees one."""
    tokens = random_tokens([0], 75, 4)
    tokens[0, 4::9] = 10.0 * tokens[0, 4]
    heads = DrawnWeights(WeightRecipe(4), [0]).at(0)
    toward = GivenWeights((replace(heads, query=heads.key, value=torch.eye(4, dtype=torch.float64)[None, None]),))
    modes: list[object] = []
    run = fused.FusedLayers._along_a_band

    def noted(own: fused.FusedLayers, *rest: object) -> fused.Run:
        modes.append(rest[-1])
        return run(own, *rest)

    both.patch.setattr(fused.FusedLayers, "_along_a_band", noted)
    same(*both(tokens, toward, "window:5", 3, thin=3))
    assert modes[-2:] == [False, True]
    assert both.passed == [3]


def test_groups_that_join_in_one_layer_of_a_band_are_refused_as_ever(both: Both) -> None:
    """The kernels end in front of the layer in which digits are lost, and the next route refuses it."""
    weights, mask = DrawnWeights(WeightRecipe(4), [7], [1e-4]), parse_mask("window:2")
    options = {"measures": (), "ordinary": False}
    tokens = run_layers(random_tokens([7], 38, 4), weights, mask, 30, keep_tokens=True, **options).kept[-1]
    with pytest.raises(RequestError, match="in layer 3 all tokens join others") as plainly:
        both(tokens, weights, "window:2", 6)
    both.patch.setattr(kernels, "trusted", {"cpu"})
    with pytest.raises(RequestError) as by_kernels:
        run_layers(tokens, weights, mask, 6, **options)
    assert str(plainly.value) == str(by_kernels.value)
    assert both.passed == [2, 0]


@pytest.mark.parametrize("mask", ["causal", "window:2"])
def test_tokens_that_grow_too_large_are_refused_as_ever(both: Both, mask: str) -> None:
    tokens = random_tokens([0], 38 if mask == "window:2" else 5, 4)
    heads = DrawnWeights(WeightRecipe(4, "zero"), [0]).at(0)
    grown = GivenWeights((replace(heads, value=1e50 * heads.value),))
    with pytest.raises(RequestError) as plainly:
        both(tokens, grown, mask, 4)
    both.patch.setattr(kernels, "trusted", {"cpu"})
    with pytest.raises(RequestError) as by_kernels:
        run_layers(tokens, grown, parse_mask(mask), 4, measures=(), ordinary=False)
    assert str(plainly.value) == str(by_kernels.value)
    assert both.passed[0] == 2


def test_other_layers_are_left_to_others(both: Both) -> None:
    tokens = random_tokens([0], 5, 4)
    both(tokens, DrawnWeights(WeightRecipe(4, per_layer=True), [0]), "causal", 2)
    both(tokens, DrawnWeights(WeightRecipe(4), [0]), "causal", 2, rule=Rule(parse_norm("unit")))
    both(tokens, DrawnWeights(WeightRecipe(4, heads=2), [0]), "causal", 2)
    assert both.passed == []


def test_the_next_run_of_the_same_prepares_nothing(both: Both) -> None:
    both.patch.setattr(fused, "_tried", {})
    tokens, weights = random_tokens([0], 5, 4), DrawnWeights(WeightRecipe(4), [0])
    both(tokens, weights, "causal", 2)
    (kept,) = fused._recent.values()
    run_layers(tokens, weights, parse_mask("causal"), 2, measures=(), ordinary=False)
    assert list(fused._recent.values()) == [kept]
    assert list(fused._tried.values()) == [True]
    for seed in range(1, 1 + fused.MOST_RECENT):
        other = DrawnWeights(WeightRecipe(4), [seed])
        run_layers(tokens, other, parse_mask("causal"), 2, measures=(), ordinary=False)
    assert kept not in fused._recent.values()
    assert len(fused._recent) == fused.MOST_RECENT


@pytest.mark.parametrize("wrong", ["off", "crash"])
def test_kernels_that_are_wrong_are_not_taken(both: Both, wrong: str) -> None:
    run = fused.FusedLayers._whole

    def off(own: fused.FusedLayers, *rest: object) -> fused.Run:
        done, spreads, (*states, end) = run(own, *rest)
        return done, spreads, [*states, replace(end, residual=end.residual + (1e-9 if wrong == "off" else 1 / 0))]

    both.patch.setattr(fused.FusedLayers, "_whole", off)
    both.patch.setattr(fused, "_tried", {})
    tokens, weights = random_tokens([0], 5, 4), DrawnWeights(WeightRecipe(4), [0])
    same(*both(tokens, weights, "causal", 3))
    assert set(both.passed) == {0}
    assert list(fused._tried.values()) == [False]
