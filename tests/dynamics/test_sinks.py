"""Attention with a sink: sizes and directions against arbitrary precision, rates, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rankfall.catalogue import MASKS
from rankfall.dynamics.experiment import Experiment, run
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.sink_run import MOST_SINK, run_with_sink, sink_step
from rankfall.dynamics.sized import Sized
from rankfall.dynamics.step import Rule, random_tokens
from rankfall.dynamics.trajectory import Trajectory, run_layers
from rankfall.dynamics.weights import DrawnWeights, GivenWeights, WeightRecipe
from rankfall.errors import RequestError
from rankfall.masks import Explicit, MaskSchedule, parse_schedule
from rankfall.mechanism.heads import Heads
from rankfall.norms import UNIT_NORM, parse_norm
from rankfall.theory.sub_stochastic import causal_sink_rate, sink_rate

# log mu, absolute, over a hundred layers: as for attention without a sink.
TOLERANCE = 5e-11
MASK_EXAMPLES = [mask for kind in MASKS for mask in kind.examples()]


def errors(exact, tokens, heads, masks, sink, layers, digits) -> tuple[float, float, float]:
    """Largest error of log mu and of log unit relative mu, and the last log10 of the latter."""
    done = run_with_sink(tokens[None], GivenWeights((heads,)), masks, layers, sink, Rule(), measures=())
    assert done.exact
    unit: list[float] = []
    expected = exact(tokens, heads, masks, Rule(), layers, digits, sink, unit)
    sizes = done.log_mu[:, 0] - torch.tensor(expected, dtype=torch.float64)
    last = done.columns["log10_unit_relative_mu"][:, 0]
    unit_mu = last * math.log(10) + math.log(len(tokens)) / 2
    directions = unit_mu - torch.tensor(unit, dtype=torch.float64)
    return float(sizes.abs().max()), float(directions.abs().max()), float(last[-1])


@pytest.mark.parametrize("mask", MASK_EXAMPLES, ids=str)
def test_every_mask(exact, drawn, mask) -> None:
    tokens, heads = drawn(2)
    layers, digits = (5, 400) if mask.dense(len(tokens)).all() else (12, 60)
    for sink in (-3.0, 1.0):
        sizes, directions, _ = errors(exact, tokens, heads, MaskSchedule((mask,)), sink, layers, digits)
        assert max(sizes, directions) < TOLERANCE


@pytest.mark.parametrize(
    ("mask", "sink", "layers", "digits", "reached"),
    [
        ("causal", 0.0, 120, 90, -20),
        ("causal", 3.0, 60, 140, -1.5),
        ("ring:1", -3.0, 90, 90, -23),
        ("complete", -3.0, 6, 900, -60),
        ("causal+complete", 2.0, 8, 400, -25),
        ("star", -8.0, 60, 60, -15),
    ],
)
def test_far_below_rounding(exact, drawn, mask, sink, layers, digits, reached) -> None:
    """Under `ring:1`, where all tokens see equally many, mu itself falls as far as the directions' differences."""
    tokens, heads = drawn(1)
    sizes, directions, last = errors(exact, tokens, heads, parse_schedule(mask), sink, layers, digits)
    assert max(sizes, directions) < TOLERANCE
    assert last < reached


@pytest.mark.parametrize("temperature", [1 / 4, 1 / 32, 1 / 128])
@pytest.mark.parametrize("mask", ["complete", "star", "causal"])
def test_sharp_attention_is_right_or_refused(exact, drawn, mask, temperature) -> None:
    tokens, heads = drawn(4, n=6)
    heads = Heads(heads.query, heads.key, heads.value, scale=heads.rank**-0.5 / temperature)
    try:
        found = errors(exact, tokens, heads, parse_schedule(mask), 0.5, 3, 900)
    except RequestError as refusal:
        told = str(refusal)
    else:
        told = f"under {mask} so sharp" if max(found[:2]) < 1e-3 else f"wrong by {max(found[:2])}"
    assert f"under {mask} so sharp" in told


@pytest.mark.parametrize("rule", ["none", "unit+1.0", "pre", "dyt", "layer:0.1"])
def test_ordinary_route_is_softmax_with_one_more_key(exact, drawn, rule) -> None:
    """Where sizes and directions do not part, float64 follows as far as it goes, and says so."""
    tokens, heads = drawn(3)
    own = {
        "none": Rule(residual=0.5),
        "unit+1.0": Rule(UNIT_NORM, residual=1.0),
        "pre": Rule(UNIT_NORM, "pre", 1.0),
        "dyt": Rule(parse_norm("dyt:2.0")),
        "layer:0.1": Rule(parse_norm("layer:0.1")),
    }[rule]
    masks = parse_schedule("causal")
    done = run_with_sink(tokens[None], GivenWeights((heads,)), masks, 8, 1.0, own, measures=())
    assert not done.exact
    assert done.log_mu[:, 0].tolist() == pytest.approx(exact(tokens, heads, masks, own, 8, 60, 1.0), abs=1e-9)


def test_plain_step_agrees_with_sizes_and_directions(drawn) -> None:
    tokens, heads = drawn(5)
    plan = MaskPlan(parse_schedule("window:1"), 1, len(tokens))
    done = run_with_sink(
        tokens[None],
        GivenWeights((heads,)),
        parse_schedule("window:1"),
        1,
        2.0,
        Rule(),
        measures=(),
        keep_tokens=True,
    )
    stepped = sink_step(tokens[None], heads, plan, 0, 2.0, Rule())
    assert torch.allclose(done.kept[1], stepped, atol=1e-14)
    rounded = Sized.of(tokens[None], plan.reference()).tokens().tokens()
    assert torch.allclose(rounded[0], tokens, atol=1e-15)


@pytest.mark.parametrize("norm", ["unit", "layer", "rms"])
def test_a_norm_of_fixed_length_hides_the_sink(norm) -> None:
    start, rule = parse_norm(norm)(random_tokens([3], 6, 4)), Rule(parse_norm(norm))
    weights, masks = DrawnWeights(WeightRecipe(4), [3]), parse_schedule("causal")
    with_sink = run_with_sink(start, weights, masks, 40, 2.0, rule, measures=())
    without = run_layers(start, weights, masks, 40, rule, measures=())
    assert torch.equal(with_sink.log_mu, without.log_mu)
    plan = MaskPlan(masks, 1, 6)
    one, other = (sink_step(start, weights.at(0), plan, 0, sink, rule) for sink in (2.0, -60.0))
    assert torch.allclose(one, other, atol=1e-13)


@pytest.mark.parametrize(
    ("mask", "sink"),
    [
        ("causal", 2.0),
        ("window:2", -1.0),
        ("star", 1.0),
        ("prefix:3", 0.0),
        ("random:0.4:3", 2.0),
        ("causal+window:1", 2.0),
    ],
)
def test_measured_rate_is_the_predicted_one(mask, sink) -> None:
    (found,) = run(Experiment((parse_schedule(mask),), WeightRecipe(6), 8, 150, sink=sink, measures=(), checks=False))
    predicted = sink_rate(parse_schedule(mask), 8, sink)
    assert found.tail_rate == predicted.rate
    assert found.shrink_rate == predicted.leading
    assert found.rates[0].rate == pytest.approx(predicted.rate, rel=5e-3)
    assert found.followed == "log10_unit_relative_mu"
    sizes = [row["log10_mu"] - row["log10_relative_mu"] for row in found.records[-20:]]
    assert 10 ** ((sizes[-1] - sizes[0]) / 19) == pytest.approx(predicted.leading, rel=5e-3)
    assert not found.theorem.applies
    assert "rows of attention sum to one" in found.theorem.reason


def test_thirty_layers_at_a_strong_sink_leave_much() -> None:
    """Causal, s = 4: where without a sink differences are down to 1e-9, a tenth and more of them is left."""
    (found,) = run(Experiment((parse_schedule("causal"),), WeightRecipe(32), 64, 30, sink=4.0, measures=()))
    assert 0.05 < found.records[-1]["unit_relative_mu"] < 0.5
    (bare,) = run(Experiment((parse_schedule("causal"),), WeightRecipe(32), 64, 30, measures=()))
    assert bare.records[-1]["relative_mu"] < 1e-7
    assert causal_sink_rate(4.0) == pytest.approx(0.9823, abs=1e-4)


def test_tokens_that_keep_directions_of_their_own() -> None:
    """The root sees itself alone and shrinks fastest; the others align, and no rate is promised for all."""
    allowed = torch.ones(4, 4, dtype=torch.bool)
    allowed[0, 1:] = False
    mask = MaskSchedule((Explicit(allowed),))
    (found,) = run(Experiment((mask,), WeightRecipe(3, value="identity"), 4, 90, sink=0.0, measures=(), checks=False))
    assert found.tail_rate is None
    assert "directions of their own" in found.tail_reason
    assert found.records[-1]["unit_relative_mu"] == pytest.approx(found.records[60]["unit_relative_mu"], rel=1e-3)
    assert found.records[-1]["unit_relative_mu"] > 0.01


def test_batch_is_the_same_as_one_by_one() -> None:
    seeds, temperatures = (0, 1, 2), (0.02, 1.0, 1.0)

    def ran(places: tuple[int, ...], mask: str) -> Trajectory:
        own = [seeds[place] for place in places]
        weights = DrawnWeights(WeightRecipe(4), own, [temperatures[place] for place in places])
        return run_with_sink(
            random_tokens(own, 5, 4), weights, parse_schedule(mask), 5, 1.0, Rule(), measures=(), ordinary=False
        )

    for mask in ("complete", "causal"):
        together = ran((0, 1, 2), mask)
        for place in range(3):
            for name, column in ran((place,), mask).columns.items():
                torch.testing.assert_close(together.columns[name][:, place], column[:, 0], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("norm", "residual"), [("none", 0.0), ("unit", 0.0), ("layer", 0.3)])
def test_several_heads_see_the_sink_each_by_itself(norm: str, residual: float) -> None:
    """Against a sum written out over heads; a norm of fixed length does not hide what they lose."""
    recipe, masks = WeightRecipe(6, heads=3), parse_schedule("causal")
    rule = Rule(parse_norm(norm), "post", residual)
    start, weights = random_tokens([0], 5, 6), DrawnWeights(recipe, [0])
    done = run_with_sink(start, weights, masks, 4, 0.5, rule, keep_tokens=True)
    assert not done.exact
    assert done.kept is not None
    heads, x = weights.at(0), start[0].double()
    scale = heads.scale if isinstance(heads.scale, float) else heads.rank**-0.5 if heads.scale is None else None
    allowed = torch.ones(5, 5).tril().bool()
    for layer in range(4):
        total = torch.zeros_like(x)
        for head in range(3):
            query, key, value = (getattr(heads, part)[0, head] for part in ("query", "key", "value"))
            factor = float(heads.scale.flatten()[0]) if scale is None else scale
            grown = (factor * (x @ query) @ (x @ key).T).exp() * allowed
            total += grown / (grown.sum(dim=-1, keepdim=True) + math.exp(0.5)) @ (x @ value)
        x = rule.norm(total + residual * x)
        torch.testing.assert_close(done.kept[layer + 1, 0], x, rtol=1e-9, atol=1e-12)
    without = run_layers(start, weights, masks, 4, rule, keep_tokens=True)
    assert without.kept is not None
    assert float((without.kept[-1] - done.kept[-1]).abs().max()) > 1e-3


def test_several_heads_have_the_rate_of_one() -> None:
    """Scores vanish with the tokens: all heads then average alike, and of identity values the sum is the identity."""
    experiment = Experiment(
        (parse_schedule("causal"),), WeightRecipe(8, "random", "identity", 4), tokens=8, layers=24, sink=0.0
    )
    (report,) = run(experiment)
    assert report.tail_rate == pytest.approx(causal_sink_rate(0.0))
    assert report.rates[0] is not None
    assert report.rates[0].rate == pytest.approx(2 / 3, rel=0.02)
    (other,) = run(replace(experiment, recipe=WeightRecipe(8, "random", "orthogonal", 4)))
    assert other.tail_rate is None
    assert other.tail_reason == "with a sink only known for one head, or identity values"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"value": "gaussian"}, "only known for orthogonal values"),
        ({"rule": Rule(residual=1.0)}, "no residual connection"),
        ({"rule": Rule(UNIT_NORM, "pre")}, "no residual connection, and no norm or one of fixed length"),
    ],
)
def test_where_no_tail_is_known(change, match) -> None:
    recipe = WeightRecipe(4, value=change.get("value", "orthogonal"))
    (found,) = run(Experiment((parse_schedule("causal"),), recipe, 5, 20, change.get("rule", Rule()), sink=1.0))
    assert found.tail_rate is None
    assert found.shrink_rate is None
    assert match in found.tail_reason


def test_directions_under_the_strongest_sink_are_those_under_a_strong_one() -> None:
    start, masks = random_tokens([0], 4, 4), parse_schedule("causal")
    of = DrawnWeights(WeightRecipe(4), [0])
    strong, strongest = (run_with_sink(start, of, masks, 12, sink, Rule()).columns for sink in (60.0, MOST_SINK))
    for name in ("log10_unit_relative_mu", "effective_rank", "mean_abs_cosine"):
        assert torch.allclose(strong[name], strongest[name], rtol=1e-6), name


def test_refusals() -> None:
    start, masks = random_tokens([0], 4, 4), parse_schedule("causal")
    heads = DrawnWeights(WeightRecipe(4), [0]).at(0)
    biased = GivenWeights((replace(heads, query_bias=torch.zeros_like(heads.query[..., 0, :])),))
    with pytest.raises(RequestError, match="heads without biases or an output map"):
        run_with_sink(start, biased, masks, 2, 1.0, Rule())
    for sink in (math.inf, 1e7, 1e300):
        with pytest.raises(RequestError, match="the sink's logit"):
            run_with_sink(start, DrawnWeights(WeightRecipe(4), [0]), masks, 2, sink, Rule())
