"""The three questions of a verdict: do tokens become aligned, are distinctions lost, do a few tokens dominate?

Each is asked of the stream (the layer of all block outputs, before the final norm, where it is answered worst) and of
the output (what leaves the model, after the final norm), from numbers of every passage and beside every control.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, final

from rankfall.models.controls import Control
from rankfall.models.depth.massive import MassiveToken
from rankfall.models.depth.rows import DepthRow, Measured
from rankfall.models.judgement import Decision, Middle, decide, log, middle
from rankfall.models.thresholds import THRESHOLDS, Thresholds

Status = Literal[
    "not aligned", "aligned", "collapsed", "kept", "not lost", "reduced", "lost", "not dominated", "dominated",
    "depends", "too little text",
]  # fmt: skip
PlaceName = Literal["stream", "output"]
Number = Callable[[Measured], float]
Choice = Callable[["Stretch"], DepthRow]

# From good to bad; an answer that depends stands between.
SEVERITY: tuple[Status, ...] = (
    "not aligned", "kept", "not lost", "not dominated", "too little text", "depends", "reduced", "aligned",
    "dominated", "lost", "collapsed",
)  # fmt: skip

# Tables by depth have means.
MEDIANS = " (medians over passages, here and below)"


@final
@dataclass(frozen=True)
class Compared:
    """The same number of one control at the same place, of a stream at its own worst layer: each draw's median over
    passages, and in how many passages ours is above or below all draws."""

    control: str
    median: float
    draws: tuple[float, ...]
    layers: tuple[int, ...]
    above_all: int
    below_all: int

    def told(self, form: str) -> str:
        """The control in words; with several draws their spread."""
        name = self.control.replace("_", " ")
        if len(self.draws) == 1:
            return f"{name} {self.median:{form}}"
        low, high = min(self.draws), max(self.draws)
        return f"{name} {self.median:{form}} ({low:{form}} to {high:{form}} over {len(self.draws)} draws)"


@final
@dataclass(frozen=True)
class JudgedPlace:
    """One place, what was found there, and every decision that led to its status.

    `layers` are the layers of the stream at which the condition of the question holds in the median passage.
    """

    place: PlaceName
    layer: int
    module: str
    part: str
    title: str
    status: Status
    numbers: Mapping[str, Middle]
    decisions: tuple[Decision, ...]
    layers: tuple[int, ...] = ()
    controls: tuple[Compared, ...] = ()
    sink: MassiveToken | None = None

    @property
    def decision(self) -> Decision:
        """The one that decided: the first that holds, else the first that is open, else the last."""
        return _deciding(self.decisions)

    @property
    def worse(self) -> Decision | None:
        """An open answer that is worse than the one that holds."""
        worse = self.decisions[: self.decisions.index(self.decision)]
        return next((one for one in worse if one.holds is None), None)

    @property
    def partly(self) -> str:
        """That worse answer in words, where some passages give it: `collapsed in 2 of 4 passages`."""
        one = self.worse
        return f"{one.condition} in {one.held} of {one.passages} passages" if one is not None and one.held else ""

    def record(self) -> dict[str, Any]:
        """The place as `--json` prints it."""
        return {
            "place": self.place,
            "layer": self.layer,
            "module": self.module,
            "part": self.part,
            "status": self.status,
            "numbers": {name: one.record() for name, one in self.numbers.items()},
            "decisions": [one.record() for one in self.decisions],
            "layers": list(self.layers),
            "controls": [asdict(one) for one in self.controls],
            "sink": None if self.sink is None else asdict(self.sink),
        }


@final
@dataclass(frozen=True)
class Finding:
    """The answer to one question: the worse of its places' statuses, a sentence of each place after one about where
    tokens start, and all that they rest on."""

    question: str
    status: Status
    sentences: tuple[str, ...]
    places: tuple[JudgedPlace, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)

    def at(self, place: PlaceName) -> JudgedPlace | None:
        """What was found in the stream or at the output."""
        return next((one for one in self.places if one.place == place), None)

    def record(self) -> dict[str, Any]:
        """The finding as `--json` prints it."""
        return {
            "question": self.question,
            "asks": QUESTIONS[self.question],
            "status": self.status,
            "text": self.text,
            "sentences": list(self.sentences),
            "places": [one.record() for one in self.places],
            "thresholds": dict(self.thresholds),
        }


QUESTIONS = {
    "alignment": "Do tokens become aligned?",
    "distinctions": "Are distinctions between tokens lost?",
    "domination": "Do a few tokens dominate?",
}


@final
@dataclass(frozen=True)
class Stretch:
    """The rows that are judged: the embeddings; what every block gave, the last before the final norm, where there is
    one; and what leaves the model."""

    embeddings: DepthRow
    stream: tuple[DepthRow, ...]
    output: DepthRow

    @classmethod
    def of(cls, rows: Sequence[DepthRow]) -> Stretch:
        """From the rows of one run."""
        boundaries = [row for row in rows if row.part == "boundary"]
        before = {row.layer: row for row in rows if row.part == "before_final_norm"}
        stream = [before.get(row.layer, row) for row in boundaries[1:]] or boundaries[-1:]
        return cls(boundaries[0], tuple(stream), boundaries[-1])


@final
class Asked:
    """The rows of an audit and of its controls as the questions need them: which passages are long enough, and the
    number of tokens to which they are rarefied."""

    def __init__(
        self, rows: Sequence[DepthRow], controls: Sequence[Control], thresholds: Thresholds, seed: int = 0
    ) -> None:
        self.thresholds, self.seed = thresholds, seed
        self.ours = Stretch.of(rows)
        self.controls = [(one.name, Stretch.of(one.rows)) for one in controls if one.rows]
        passages = self.ours.output.per_text
        self.lengths = {one.text: one.tokens for one in passages}
        self.texts = [text for text, count in self.lengths.items() if count >= thresholds.fewest_tokens]
        sizes = [set(one.rarefied) for one in passages if one.text in self.texts]
        self.tokens = max(set.intersection(*sizes), default=0) if sizes else 0
        self.width = max((one.width for one in passages), default=0)

    @property
    def too_little(self) -> str | None:
        """Why nothing can be judged, if so."""
        t = self.thresholds
        if len(self.texts) >= t.fewest_passages and self.tokens:
            return None
        lengths = sorted(self.lengths.values())
        got = f"passages of {_listed(lengths)} tokens"
        if len(lengths) == 1:
            got = f"one passage of {lengths[0]} token{'' if lengths[0] == 1 else 's'}"
        return (
            f"too little text to judge: {got}, and an answer needs at least {t.fewest_passages} passages of at least"
            f" {t.fewest_tokens} tokens"
        )

    def values(self, row: DepthRow, number: Number) -> list[float]:
        """Of the passages that are judged, in order."""
        return [number(one) for one in row.per_text if one.text in self.texts]

    def middle(self, row: DepthRow, number: Number) -> Middle:
        """The median over passages, with its interval."""
        return middle(self.values(row, number), self.seed)

    def typical(self, row: DepthRow, number: Number) -> float:
        """The median over passages, as a logarithm."""
        return statistics.median(log(one) for one in self.values(row, number))

    def highest(self, number: Number) -> Choice:
        """The layer of a stream at which the median passage has most of it."""
        return lambda run: max(run.stream, key=lambda row: self.typical(row, number))

    def lowest(self, number: Number) -> Choice:
        """The layer of a stream at which the median passage has least of it."""
        return lambda run: min(run.stream, key=lambda row: self.typical(row, number))

    def decide(self, condition: str, threshold: float, margins: Sequence[float], *, paired: bool = False) -> Decision:
        """Under this verdict's thresholds; `paired`: the threshold of a passage is a control's number of it."""
        clear = self.thresholds.paired_clear_factor if paired else self.thresholds.clear_factor
        return decide(condition, threshold, margins, clear_factor=clear, seed=self.seed)

    def draws(self, name: str, choice: Choice) -> list[DepthRow]:
        """The chosen place in every draw of a control; of a stream, in the draws measured at most layers, because
        fewer layers cannot tell which is the worst."""
        runs = [run for control, run in self.controls if control == name]
        most = max((len(run.stream) for run in runs), default=0)
        return [choice(run) for run in runs if choice is at_output or len(run.stream) == most]

    def compared(self, choice: Choice, number: Number) -> tuple[Compared, ...]:
        """Ours beside every control, in the order in which they ran."""
        ours = self.values(choice(self.ours), number)
        found = []
        for name in dict.fromkeys(control for control, _ in self.controls):
            rows = self.draws(name, choice)
            draws = [self.values(row, number) for row in rows]
            medians = tuple(middle(one).median for one in draws)
            by_passage = list(zip(ours, zip(*draws, strict=True), strict=True))
            above = sum(value > max(others) for value, others in by_passage)
            below = sum(value < min(others) for value, others in by_passage)
            layers = tuple(row.layer for row in rows)
            found.append(Compared(name, statistics.median(medians), medians, layers, above, below))
        return tuple(found)


def too_little_text(rows: Sequence[DepthRow], thresholds: Thresholds = THRESHOLDS) -> str | None:
    """Why nothing can be judged from these rows, if so."""
    return Asked(rows, (), thresholds).too_little


def at_output(run: Stretch) -> DepthRow:
    """The other place: what leaves the model."""
    return run.output


def alignment(asked: Asked) -> Finding:
    """Share of the first direction of tokens scaled to length one; collapsed where nothing else is left."""
    t = asked.thresholds

    def share(one: Measured) -> float:
        return one.values["unit"]["first_direction_share"]

    def beyond(row: DepthRow) -> list[float]:
        return [log(value / t.aligned_share) for value in asked.values(row, share)]

    def collapse(one: Measured) -> float:
        unit = one.values["unit"]
        return max(
            log(t.collapsed_relative_mu) - log(unit["relative_mu"]),
            log(t.collapsed_energy_rank) - log(unit["energy_rank"]),
        )

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
        places.append(_judged(name, row, "not aligned", numbers, decisions, layers, asked.compared(choice, share)))
    start = asked.middle(asked.ours.embeddings, share).median
    said = [f"Of tokens scaled to length one the first direction holds {start:.0%} at the embeddings{MEDIANS}."]
    said += [_aligned_words(one) for one in places]
    names = ("aligned_share", "collapsed_relative_mu", "collapsed_energy_rank", "clear_factor")
    return _finding("alignment", said, places, t, names)


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
    t = asked.thresholds

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
        places.append(_judged(name, row, good, numbers, tuple(decisions), layers, asked.compared(choice, rank)))
    first = places[0].numbers["embeddings"].median
    said = [
        f"{asked.tokens} tokens of each passage, scaled to length one and centred, have an effective rank of"
        f" {first:.1f} at the embeddings, of at most {_possible(asked)}{MEDIANS}."
    ]
    said += [_distinct_words(one, t) for one in places]
    names = ("lost_share", "reduced_share", "clear_factor", "paired_clear_factor")
    return _finding("distinctions", said, places, t, names)


def _possible(asked: Asked) -> int:
    """The most that the rank could be: one less than the tokens, or the width."""
    return min(asked.tokens - 1, asked.width)


def _distinct_words(one: JudgedPlace, t: Thresholds) -> str:
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
            f"; below {t.reduced_share:.0%} of every draw of random weights in {decision.held} of"
            f" {decision.passages} passages"
        )
    return text + _open_words(one) + "."


def domination(asked: Asked) -> Finding:
    """The share of the energy that massive tokens hold."""
    t = asked.thresholds

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
        places.append(_judged(name, row, "not dominated", numbers, decisions, layers, controls, strongest))
    said = [_sink_words(one) for one in places]
    names = ("dominated_share", "massive_norm_ratio", "massive_energy_share", "clear_factor")
    return _finding("domination", said, places, t, names)


def _sink_words(one: JudgedPlace) -> str:
    energy, sink = one.numbers["sink_energy"], one.sink
    if sink is None:
        where = one.title if one.place == "output" else "Stream"
        return f"{where}: no massive token{_controls_words(one, '.0%')}."
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
        f", in the median passage at layers {spans(one.layers)}"
        if one.layers
        else ", in the median passage at no layer"
    )


def answers(asked: Asked) -> tuple[Finding, ...]:
    """All three; each "too little text", where that is so."""
    if asked.too_little is not None:
        return tuple(Finding(question, "too little text", (asked.too_little,)) for question in QUESTIONS)
    return alignment(asked), distinctions(asked), domination(asked)


def spans(layers: Sequence[int]) -> str:
    """Layers as people write them: 3, 12-30."""
    runs: list[list[int]] = []
    for layer in sorted(set(layers)):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _places(worst: Choice) -> list[tuple[PlaceName, Choice]]:
    return [("stream", worst), ("output", at_output)]


def _judged(
    place: PlaceName,
    row: DepthRow,
    good: Status,
    numbers: Mapping[str, Middle],
    decisions: Sequence[Decision],
    layers: tuple[int, ...],
    controls: tuple[Compared, ...],
    sink: MassiveToken | None = None,
) -> JudgedPlace:
    """The status is that of the first decision, worst first, that holds, even where a worse one is open; without one
    it depends where any is open."""
    deciding = _deciding(decisions)
    status: Status = {True: deciding.condition, None: "depends", False: good}[deciding.holds]  # type: ignore[assignment]
    return JudgedPlace(
        place, row.layer, row.module, row.part, _title(place, row, good), status, numbers, tuple(decisions), layers,
        controls, sink,
    )  # fmt: skip


def _deciding(decisions: Sequence[Decision]) -> Decision:
    holding, undecided = ([one for one in decisions if one.holds is holds] for holds in (True, None))
    return (holding or undecided or [decisions[-1]])[0]


def _finding(
    question: str, said: Sequence[str], places: Sequence[JudgedPlace], thresholds: Thresholds, names: Sequence[str]
) -> Finding:
    status = max((one.status for one in places), key=SEVERITY.index)
    return Finding(question, status, tuple(said), tuple(places), {name: getattr(thresholds, name) for name in names})


def _title(place: PlaceName, row: DepthRow, good: Status) -> str:
    if place == "output":
        return f"Output, {row.title}"
    return f"Stream, {'lowest' if good in ('kept', 'not lost') else 'most'} at {row.title}"


def _controls_words(one: JudgedPlace, form: str) -> str:
    told = ", ".join(other.told(form) for other in one.controls)
    return f"; controls: {told}" if told else ""


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


def _listed(lengths: Sequence[int]) -> str:
    return ", ".join(str(one) for one in lengths[:6]) + (" ..." if len(lengths) > 6 else "")
