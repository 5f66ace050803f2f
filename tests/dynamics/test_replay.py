"""Layers repeated under an assumption: the same numbers as layer by layer, whatever the layers choose on the way."""

from __future__ import annotations

import pytest
import torch

from rankfall.dynamics import replay
from rankfall.dynamics.decisions import NotAssumableError, assuming, decide, noting, require_looking
from rankfall.dynamics.step import Rule, random_tokens
from rankfall.dynamics.trajectory import Trajectory, run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.masks import parse_mask, parse_schedule
from rankfall.norms import parse_norm


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Layers are repeated on the processor as well, without a graph."""
    monkeypatch.setattr(replay, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(replay, "_recent", replay.OrderedDict())
    return monkeypatch


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The layers that every call of `advance` passed without a look."""
    passed: list[int] = []
    advance = replay.Replays.advance

    def count(self: replay.Replays, layer: int, *rest: object) -> replay.PassedLayers | None:
        done = advance(self, layer, *rest)
        passed.append(0 if done is None else done.reached - layer)
        return done

    monkeypatch.setattr(replay.Replays, "advance", count)
    return passed


def equal(one: Trajectory, other: Trajectory) -> None:
    assert one.layers == other.layers
    for name, column in one.columns.items():
        assert torch.equal(column, other.columns[name]), name
    assert torch.equal(one.final.residual, other.final.residual)
    assert torch.equal(one.final.log_ratio, other.final.log_ratio)


RULES = {
    "bare": Rule(),
    "unit": Rule(parse_norm("unit")),
    "layer, pre, residual": Rule(parse_norm("layer"), "pre", 1.0),
}


@pytest.mark.parametrize(
    ("mask", "rule", "thin"),
    [
        ("causal", "bare", 1),
        ("causal", "unit", 3),
        ("window:3", "unit", 1),
        ("window:3", "bare", 70),
        ("complete", "bare", 3),
        ("complete", "layer, pre, residual", 1),
        ("causal+window:2", "unit", 3),
    ],
)
def test_the_same_numbers_as_layer_by_layer(replaying: pytest.MonkeyPatch, mask: str, rule: str, thin: int) -> None:
    tokens, weights = random_tokens([0, 1], 12, 6), DrawnWeights(WeightRecipe(6, heads=2), [0, 1])
    arguments = (tokens, weights, parse_schedule(mask), 70, RULES[rule])
    # a stretch, where there is one, computes in another order; it has tests of its own
    replaying.setattr("rankfall.dynamics.stepper.Stepper._stretch", lambda *_: None)
    passed = counted(replaying)
    repeated = run_layers(*arguments, measures=(), thin=thin, ordinary=False)
    if "+" in mask or (mask, rule) == ("complete", "bare"):
        assert passed == [], "masks that change, and what a stretch knows better"
    else:
        assert max(passed) >= 16, "looks further ahead after success"
    replaying.setattr(replay, "DEVICES", ())
    equal(repeated, run_layers(*arguments, measures=(), thin=thin, ordinary=False))


def test_a_wrong_assumption_costs_nothing_but_time(replaying: pytest.MonkeyPatch) -> None:
    """Tokens grow until scores come back into sight: in the midst of a program, of several, and again and again."""
    tokens = 1e-9 * random_tokens([0], 9, 4)
    weights = DrawnWeights(WeightRecipe(4, value="gaussian"), [3])
    heads = weights.at(0)
    heads = type(heads)(heads.query, heads.key, 3.0 * heads.value)

    class Grown:
        def at(self, layer: int) -> object:
            return heads

    replaying.setattr("rankfall.dynamics.stepper.Stepper._stretch", lambda *_: None)
    passed = counted(replaying)
    arguments = (tokens, Grown(), parse_mask("causal"), 60, Rule())
    repeated = run_layers(*arguments, measures=(), ordinary=False)
    assert any(count % replay.UNROLLED for count in passed), passed
    replaying.setattr(replay, "DEVICES", ())
    equal(repeated, run_layers(*arguments, measures=(), ordinary=False))


def test_the_next_run_of_the_same_begins_without_a_look(replaying: pytest.MonkeyPatch) -> None:
    tokens, weights = random_tokens([0], 40, 6), DrawnWeights(WeightRecipe(6), [0])

    passed = counted(replaying)
    runs = [run_layers(tokens, weights, parse_mask("window:3"), 4, measures=(), ordinary=False)]
    assert sum(passed) == 0, "four layers are not worth a capture"
    passed.clear()
    runs.append(run_layers(tokens, weights, parse_mask("window:3"), 4, measures=(), ordinary=False))
    assert passed == [4]
    equal(*runs)
    run_layers(tokens, weights, parse_mask("window:2"), 4, measures=(), ordinary=False)
    assert sum(passed[1:]) == 0, "another mask is another run"
    run_layers(tokens, DrawnWeights(WeightRecipe(6), [0]), parse_mask("window:3"), 4, measures=(), ordinary=False)
    assert sum(passed[1:]) == 0, "and so are other weights"
    for width in range(2, 2 + replay.MOST_RECENT):
        run_layers(tokens, weights, parse_mask(f"window:{width}"), 2, measures=(), ordinary=False)
    assert len(replay._recent) == replay.MOST_RECENT


def test_decisions_are_noted_and_assumed() -> None:
    yes, no = torch.tensor(True), torch.tensor(False)
    with noting() as noted:
        assert (decide(yes), decide(no)) == (True, False)
    assert noted.answers == [True, False]
    with assuming((True, False)) as assumed:
        assert (decide(yes), decide(no)) == (True, False)
        with pytest.raises(NotAssumableError, match="more questions"):
            decide(yes)
        with pytest.raises(NotAssumableError, match="by different forms"):
            require_looking("samples by different forms")
    assert bool(assumed.held())
    for wrong in ((False, False), (True, True)):
        with assuming(wrong) as assumed:
            assert (decide(yes), decide(no)) == wrong
        assert not bool(assumed.held())
    assert decide(yes) is True, "outside, a decision looks"
    require_looking("samples by different forms")
