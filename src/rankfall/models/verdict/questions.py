"""The three questions of a verdict: do tokens become aligned, are distinctions lost, do a few tokens dominate?

Each is asked of the stream (the layer of all block outputs, before the final norm, where it is answered worst) and of
the output (what leaves the model, after the final norm), from numbers of every passage and beside every control.
"""

from __future__ import annotations

import math
import statistics

from rankfall.models.depth.rows import DepthRow, Measured, layers_named
from rankfall.models.thresholds import THRESHOLDS
from rankfall.models.verdict.asked import Asked, Choice, Number, at_output
from rankfall.models.verdict.findings import QUESTIONS, Finding, JudgedPlace, PlaceName, Status, finding, judged
from rankfall.models.verdict.judgement import Decision, collapse_margin, log, middle

# Tables by depth have means.
MEDIANS = " (medians over passages, here and below)"


def alignment(asked: Asked) -> Finding:
    """Share of the first direction of tokens scaled to length one; collapsed where nothing else is left."""
    t = THRESHOLDS

    def share(one: Measured) -> float:
        return one.values["unit"]["first_direction_share"]

    def beyond(row: DepthRow) -> list[float]:
        return [log(value / t.aligned_share) for value in asked.values(row, share)]

    def collapse(one: Measured) -> float:
        return collapse_margin(one.values["unit"]["relative_mu"], one.values["unit"]["energy_rank"])

    layers = tuple(row.layer for row in asked.ours.stream if statistics.median(beyond(row)) > 0)
    places = []
    for name, choice in _places(asked.highest(share)):
        row = choice(asked.ours)
        decisions = (
            asked.decide("collapsed", t.collapsed_relative_mu, asked.values(row, collapse)),
            asked.decide("aligned", t.aligned_share, beyond(row)),
        )
        numbers = {
            measure: asked.middle(row, _unit(measure))
            for measure in ("first_direction_share", "mean_abs_cosine", "relative_mu", "energy_rank")
        }
        places.append(judged(name, row, "not aligned", numbers, decisions, layers, asked.compared(choice, share)))
    start = asked.middle(asked.ours.embeddings, share).median
    said = [f"Of tokens scaled to length one the first direction holds {start:.0%} at the embeddings{MEDIANS}."]
    said += [_aligned_words(one) for one in places]
    names = ("aligned_share", "collapsed_relative_mu", "collapsed_energy_rank", "clear_factor")
    return finding("alignment", said, places, names)


def _aligned_words(one: JudgedPlace) -> str:
    share, cosine = one.numbers["first_direction_share"], one.numbers["mean_abs_cosine"]
    text = (
        f"{one.title}: {share.median:.0%} ({share.low:.0%} to {share.high:.0%}), above"
        f" {_held(one.decisions[1], '.0%')}{_layers_words(one)}; mean |cosine| {cosine.median:.2f}"
    )
    if one.status == "collapsed":
        mu, rank = one.numbers["relative_mu"], one.numbers["energy_rank"]
        text += (
            f"; tokens there differ by {mu.median:.2g} of their length and have an energy rank of {rank.median:.2g}"
        )
    return text + _controls_words(one, ".0%") + _open_words(one) + "."


def distinctions(asked: Asked) -> Finding:
    """Centred effective rank of equally many tokens of every passage: beside the embeddings, random weights, and what
    is possible."""
    t = THRESHOLDS

    def rank(one: Measured) -> float:
        return one.rarefied[asked.tokens]

    start = asked.values(asked.ours.embeddings, rank)

    def kept(row: DepthRow) -> list[float]:
        return [_over(now, then) for now, then in zip(asked.values(row, rank), start, strict=True)]

    def lost(row: DepthRow) -> list[float]:
        return [log(t.lost_share) - log(one) for one in kept(row)]

    layers = tuple(row.layer for row in asked.ours.stream if statistics.median(lost(row)) > 0)
    places = []
    for name, choice in _places(asked.lowest(rank)):
        row = choice(asked.ours)
        decisions = [asked.decide("lost", t.lost_share, lost(row))]
        random = [asked.values(one, rank) for one in asked.draws("random_weights", choice)]
        if random:
            fewest = [t.reduced_share * min(draws) for draws in zip(*random, strict=True)]
            ours = asked.values(row, rank)
            margins = [log(other) - log(own) for other, own in zip(fewest, ours, strict=True)]
            decisions.append(asked.decide("reduced", middle(fewest).median, margins, paired=True))
        numbers = {
            "centred_effective_rank": asked.middle(row, rank),
            "kept_share": middle(kept(row), asked.seed),
            "embeddings": middle(start, asked.seed),
        }
        # Without random weights nobody knows how much they would leave: all that can be said is that it is not lost.
        good: Status = "kept" if random else "not lost"
        places.append(judged(name, row, good, numbers, tuple(decisions), layers, asked.compared(choice, rank)))
    first = places[0].numbers["embeddings"].median
    said = [
        f"{asked.tokens} tokens of each passage, scaled to length one and centred, have an effective rank of"
        f" {first:.1f} at the embeddings, of at most {_possible(asked)}{MEDIANS}."
    ]
    said += [_distinct_words(one) for one in places]
    names = ("lost_share", "reduced_share", "clear_factor", "paired_clear_factor")
    return finding("distinctions", said, places, names)


def _possible(asked: Asked) -> int:
    """The most that the rank could be: one less than the tokens, or the width."""
    return min(asked.tokens - 1, asked.width)


def _distinct_words(one: JudgedPlace) -> str:
    rank, kept = one.numbers["centred_effective_rank"], one.numbers["kept_share"]
    text = (
        f"{one.title}: {rank.median:.1f} ({rank.low:.1f} to {rank.high:.1f}), {kept.median:.0%} of the embeddings',"
        f" below {_held(one.decisions[0], '.0%')}{_layers_words(one)}"
    )
    text += _controls_words(one, ".1f")
    if len(one.decisions) == 1:
        text += "; not compared with random weights"
    for decision in one.decisions[1:]:
        text += (
            f"; below {THRESHOLDS.reduced_share:.0%} of every draw of random weights in {decision.held} of"
            f" {decision.passages} passages"
        )
    return text + _open_words(one) + "."


def domination(asked: Asked) -> Finding:
    """The share of the energy that massive tokens hold."""
    t = THRESHOLDS

    def energy(one: Measured) -> float:
        return one.sink_energy

    def beyond(row: DepthRow) -> list[float]:
        return [log(value) - log(t.dominated_share) for value in asked.values(row, energy)]

    layers = tuple(row.layer for row in asked.ours.stream if statistics.median(beyond(row)) > 0)
    places = []
    for name, choice in _places(asked.highest(energy)):
        row = choice(asked.ours)
        decisions = (asked.decide("dominated", t.dominated_share, beyond(row)),)
        sinks = [sink for one in row.per_text if one.text in asked.texts for sink in one.sinks]
        strongest = max(sinks, key=lambda sink: sink.energy_share, default=None)
        numbers = {
            "sink_energy": asked.middle(row, energy),
            "sinks": asked.middle(row, lambda one: float(len(one.sinks))),
            "raw_energy_rank": asked.middle(row, lambda one: one.values["raw"]["energy_rank"]),
            "unit_energy_rank": asked.middle(row, _unit("energy_rank")),
        }
        controls = asked.compared(choice, energy)
        places.append(judged(name, row, "not dominated", numbers, decisions, layers, controls, strongest))
    said = [_sink_words(one) for one in places]
    names = ("dominated_share", "massive_norm_ratio", "massive_energy_share", "clear_factor")
    return finding("domination", said, places, names)


def _sink_words(one: JudgedPlace) -> str:
    energy, sink = one.numbers["sink_energy"], one.sink
    if sink is None:
        where = one.title if one.place == "output" else "Stream"
        some = any(max(other.draws) > 0 for other in one.controls)
        compared = _controls_words(one, ".0%", "share of the energy in the controls") if some else ""
        return f"{where}: no massive token{compared or ', nor in any control' * bool(one.controls)}."
    text = (
        f"{one.title}: massive tokens hold a median {energy.median:.1%} ({energy.low:.1%} to {energy.high:.1%}) of"
        f" the energy, above {_held(one.decisions[0], '.0%')}{_layers_words(one)}; the strongest is"
        f" token {sink.position} ({sink.token!r}) of passage {sink.text + 1}, {sink.norm_ratio:.1f} times as long"
        f" as the median token, {sink.coordinate_share:.0%} of it in coordinate {sink.coordinate}"
    )
    if one.status == "dominated":
        raw, unit = one.numbers["raw_energy_rank"], one.numbers["unit_energy_rank"]
        text += f"; energy rank there: {raw.median:.1f} raw, {unit.median:.1f} with tokens of length one"
    return text + _controls_words(one, ".1%") + _open_words(one) + "."


def _held(one: Decision, form: str) -> str:
    return f"{one.threshold:{form}} in {one.held} of {one.passages} passages"


def _layers_words(one: JudgedPlace) -> str:
    """At which layers of the stream the median passage is beyond the threshold."""
    if one.place == "output":
        return ""
    return (
        f", in the median passage at {layers_named(one.layers)}"
        if one.layers
        else ", in the median passage at no layer"
    )


def answers(asked: Asked) -> tuple[Finding, ...]:
    """All three; each "too little text", where that is so."""
    if asked.too_little is not None:
        return tuple(Finding(question, "too little text", (asked.too_little,)) for question in QUESTIONS)
    return alignment(asked), distinctions(asked), domination(asked)


def _places(worst: Choice) -> list[tuple[PlaceName, Choice]]:
    return [("stream", worst), ("output", at_output)]


def _controls_words(one: JudgedPlace, form: str, named: str = "controls") -> str:
    told = ", ".join(other.told(form) for other in one.controls)
    return f"; {named}: {told}" if told else ""


def _open_words(one: JudgedPlace) -> str:
    """What is open, by name: all where the answer depends, else only what is worse than the answer."""
    if one.status == "depends":
        return "".join(f"; {other.reason}" for other in one.decisions if other.holds is None)
    worse = one.worse
    if worse is None:
        return ""
    return f"; {one.partly if 0 < worse.held < worse.passages else worse.reason}"


def _unit(measure: str) -> Number:
    return lambda one: one.values["unit"][measure]


def _over(now: float, then: float) -> float:
    return now / then if then > 0 else math.inf if now > 0 else 1.0
