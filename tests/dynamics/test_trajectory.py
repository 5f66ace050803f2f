"""The simulator: batches, records, rates known in closed form, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rankfall.catalogue import MASKS
from rankfall.dynamics.rate import measured_rate
from rankfall.dynamics.step import Rule, counterexample_tokens, random_tokens
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, GivenWeights, WeightRecipe
from rankfall.errors import RequestError
from rankfall.masks import parse_mask, parse_schedule
from rankfall.mechanism.heads import Heads
from rankfall.norms import UnitNorm
from rankfall.theory.uniform_attention import tail_rate


def test_batch_is_the_same_as_one_by_one() -> None:
    """Masks, seeds and temperatures in one program change nothing for any sample."""
    masks = [kind.examples()[-1] for kind in MASKS]
    seeds, temperatures = list(range(len(masks))), [0.5 + 0.25 * k for k in range(len(masks))]
    recipe = WeightRecipe(4, heads=2, per_layer=True)
    together = run_layers(random_tokens(seeds, 9, 4), DrawnWeights(recipe, seeds, temperatures), masks, 30)
    for place, mask in enumerate(masks):
        weights = DrawnWeights(recipe, [seeds[place]], [temperatures[place]])
        alone = run_layers(random_tokens([seeds[place]], 9, 4), weights, mask, 30)
        torch.testing.assert_close(
            together.columns["log10_mu"][:, place], alone.columns["log10_mu"][:, 0], rtol=1e-9, atol=1e-9
        )
        assert together.floors[place].layer == pytest.approx(alone.floors[0].layer, abs=1)


@pytest.mark.parametrize(
    "name", ["causal", "window:3", "star", "out-star", "prefix:3", "ring:2", "global-window:1:1"]
)
def test_uniform_attention_falls_with_its_second_eigenvalue(name) -> None:
    done = run_layers(
        random_tokens([0], 10, 4),
        DrawnWeights(WeightRecipe(4, "zero"), [0]),
        parse_mask(name),
        500,
        measures=(),
        ordinary=False,
    )
    fit = measured_rate(done.layers, done.log_mu[:, 0].tolist())
    assert fit.rate == pytest.approx(tail_rate(parse_mask(name), 10), rel=1e-6)
    assert fit.law == "exponential"
    assert fit.r_squared > 0.999999


def test_sparse_and_banded_averaging_agree_with_dense() -> None:
    """200 tokens take the band and the sparse matrix, a stack of explicit masks neither."""
    from rankfall.masks import Explicit

    weights, start = DrawnWeights(WeightRecipe(3), [0]), random_tokens([0], 200, 3)
    for name in ("window:4", "dilated:3:2", "causal-window:5", "star"):
        quick = run_layers(start, weights, parse_mask(name), 120, measures=(), ordinary=False)
        stacked = [Explicit(parse_mask(name).dense(200)), Explicit(torch.ones(200, 200).tril().bool())]
        slow = run_layers(
            start.repeat(2, 1, 1), DrawnWeights(WeightRecipe(3), [0, 0]), stacked, 120, measures=(), ordinary=False
        )
        torch.testing.assert_close(quick.log_mu[:, 0], slow.log_mu[:, 0], rtol=1e-9, atol=1e-9)


def test_records_thinned_and_tokens_kept() -> None:
    weights = DrawnWeights(WeightRecipe(3), [0])
    done = run_layers(random_tokens([0], 5, 3), weights, parse_mask("causal"), 25, thin=10, keep_tokens=True)
    assert done.layers == (0, 10, 20, 25)
    assert done.kept.shape == (4, 1, 5, 3)
    record = done.records()[-1]
    assert record["layer"] == 25
    assert record["mu"] == pytest.approx(10 ** record["log10_mu"])
    assert record["rank"] >= 1
    assert record["residual_effective_rank"] >= record["residual_energy_rank"] >= 1
    whole = run_layers(random_tokens([0], 5, 3), weights, parse_mask("causal"), 25)
    assert whole.records()[20]["log10_mu"] == done.records()[2]["log10_mu"]


def test_ordinary_route_is_right_down_to_rounding() -> None:
    done = run_layers(random_tokens([0], 12, 8), DrawnWeights(WeightRecipe(8), [0]), parse_mask("causal"), 120)
    floor = done.floors[0]
    assert floor.reached
    assert -16.5 < floor.log10_mu < -12
    assert done.columns["log10_mu"][-1] < -30
    short = run_layers(random_tokens([0], 12, 8), DrawnWeights(WeightRecipe(8), [0]), parse_mask("causal"), 5)
    assert not short.floors[0].reached
    assert short.floors[0].layer == 5


def test_measures_of_collapsed_tokens_need_no_decomposition() -> None:
    names = (
        "rank",
        "effective_rank",
        "energy_rank",
        "first_direction_share",
        "max_singular_value",
        "min_singular_value",
        "largest_token_share",
    )
    done = run_layers(
        random_tokens([0], 6, 3),
        DrawnWeights(WeightRecipe(3), [0]),
        parse_mask("causal"),
        200,
        measures=names,
        thin=200,
    )
    last = done.records()[-1]
    length = float(torch.linalg.vector_norm(done.final.tokens()[0, 0]))
    assert (last["rank"], last["min_singular_value"]) == (1, 0)
    assert [last[name] for name in names[1:4]] == pytest.approx([1, 1, 1])
    assert last["largest_token_share"] == pytest.approx(1 / 6)
    assert last["max_singular_value"] == pytest.approx(math.sqrt(6) * length)


def test_counterexample_keeps_rank_two_for_every_seed() -> None:
    seeds = list(range(12))
    done = run_layers(
        counterexample_tokens(seeds, 2, 2),
        DrawnWeights(WeightRecipe(2, "zero", "counterexample"), seeds),
        parse_mask("causal"),
        500,
        Rule(UnitNorm()),
        thin=500,
    )
    assert done.columns["rank"][-1].tolist() == [2.0] * 12
    # The rank-2 point is (-1/w, -sqrt(1 - 1/w^2)) beside (0, 1) with w = 2: mu^2 = |x_1 - x_2|^2 / 2 = 1 + sqrt(3)/2.
    assert done.columns["mu"][-1].square() == pytest.approx([1 + math.sqrt(0.75)] * 12, abs=0.01)


def test_without_a_root_nothing_collapses() -> None:
    done = run_layers(
        random_tokens([0], 6, 3), DrawnWeights(WeightRecipe(3), [0]), parse_mask("block-diagonal:3"), 300
    )
    fit = measured_rate(done.layers, done.log_mu[:, 0].tolist())
    assert fit.law == "none"
    assert float(done.columns["log10_mu"][-1]) > -2


def test_uniform_complete_attention_makes_tokens_equal_at_once() -> None:
    done = run_layers(random_tokens([0], 6, 3), DrawnWeights(WeightRecipe(3, "zero"), [0]), parse_mask("complete"), 4)
    assert done.columns["log10_mu"][1:].tolist() == [[-math.inf]] * 4
    assert measured_rate(done.layers, done.log_mu[:, 0].tolist()).law == "equal"


def test_contracting_values_stay_exact() -> None:
    """mu at 10^-1200 and tokens at 10^-600: sizes are logarithms too."""
    heads = DrawnWeights(WeightRecipe(3), [0]).at(0)
    small = GivenWeights((replace(heads, value=0.5 * heads.value),))
    options = {"measures": (), "thin": 500, "ordinary": False}
    done = run_layers(random_tokens([0], 5, 3), small, parse_mask("causal"), 2000, **options)
    assert float(done.columns["log10_mu"][-1]) < -1200
    for column, expected in (("log10_mu", -2 * math.log10(2)), ("log10_relative_mu", -math.log10(2))):
        slope = float(done.columns[column][-1] - done.columns[column][-2]) / 500
        assert slope == pytest.approx(expected, abs=1e-6)


def test_schedules_and_given_layers() -> None:
    schedule = parse_schedule("window:1+dilated:2:2")
    done = run_layers(random_tokens([0], 8, 3), DrawnWeights(WeightRecipe(3), [0]), schedule, 200, measures=())
    fit = measured_rate(done.layers, done.log_mu[:, 0].tolist())
    assert fit.rate == pytest.approx(tail_rate(schedule, 8), rel=1e-2)
    layers = tuple(DrawnWeights(WeightRecipe(3), [seed]).at(0) for seed in (0, 1))
    given = run_layers(random_tokens([0], 5, 3), GivenWeights(layers), parse_mask("causal"), 4, measures=())
    assert torch.isfinite(given.log_mu).all()


def eye(d: int, factor: float = 1.0) -> Heads:
    one = torch.eye(d, dtype=torch.float64)[None]
    return Heads(one, one, factor * one)


def test_refusals() -> None:
    tokens, causal = random_tokens([0], 4, 3), parse_mask("causal")
    rectangular = replace(eye(3), value=torch.ones(1, 3, 2, dtype=torch.float64))
    with pytest.raises(RequestError, match="a square value map"):
        run_layers(tokens, GivenWeights((rectangular,)), causal, 2)
    zero = tokens.clone()
    zero[0, 2] = 0
    with pytest.raises(RequestError, match=r"no zero token under the unit norm.*token 2"):
        run_layers(zero, GivenWeights((eye(3),)), causal, 2, Rule(UnitNorm()))
    broken = tokens.clone()
    broken[0, 1, 1] = math.nan
    with pytest.raises(RequestError, match="finite tokens"):
        run_layers(broken, GivenWeights((eye(3),)), causal, 2)
    with pytest.raises(RequestError, match="finite value weights"):
        run_layers(tokens, GivenWeights((eye(3, math.inf),)), causal, 2)
    with pytest.raises(RequestError, match="stay representable"):
        run_layers(tokens, GivenWeights((eye(3, 1e30),)), causal, 40, ordinary=False)
    with pytest.raises(RequestError, match="a batch of token matrices"):
        run_layers(tokens[0], GivenWeights((eye(3),)), causal, 2)
    with pytest.raises(RequestError, match="a placement among"):
        Rule(UnitNorm(), "middle")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="a finite residual"):
        Rule(residual=math.nan)


def test_two_opposite_tokens_under_a_norm_are_refused() -> None:
    """Their uniform mean is the zero vector, which no norm can scale."""
    tokens = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    weights = DrawnWeights(WeightRecipe(2, "zero", "identity"), [0])
    with pytest.raises(RequestError, match="a zero token"):
        run_layers(tokens, weights, parse_mask("complete"), 1, Rule(UnitNorm()), ordinary=False)


def test_one_token_has_nothing_to_lose() -> None:
    done = run_layers(random_tokens([0], 1, 3), DrawnWeights(WeightRecipe(3), [0]), parse_mask("causal"), 3)
    assert done.columns["log10_mu"].flatten().tolist() == [-math.inf] * 4
