"""The answer to a question of a verdict: what was found in the stream and at the output, and what decided it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, final

from rankfall.models.depth.massive import MassiveToken
from rankfall.models.depth.rows import DepthRow
from rankfall.models.thresholds import THRESHOLDS
from rankfall.models.verdict.judgement import Decision, Middle

Status = Literal[
    "not aligned", "aligned", "collapsed", "kept", "not lost", "reduced", "lost", "not dominated", "dominated",
    "depends", "too little text",
]  # fmt: skip
PlaceName = Literal["stream", "output"]

# From good to bad; an answer that depends stands between.
SEVERITY: tuple[Status, ...] = (
    "not aligned", "kept", "not lost", "not dominated", "too little text", "depends", "reduced", "aligned",
    "dominated", "lost", "collapsed",
)  # fmt: skip

QUESTIONS = {
    "alignment": "Do tokens become aligned?",
    "distinctions": "Are distinctions between tokens lost?",
    "domination": "Do a few tokens dominate?",
}


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
        low, high = f"{min(self.draws):{form}}", f"{max(self.draws):{form}}"
        spread = f"{low} to {high} over" if low != high else "the same in"
        return f"{name} {self.median:{form}} ({spread} {len(self.draws)} draws)"


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


def judged(
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


def finding(question: str, said: Sequence[str], places: Sequence[JudgedPlace], names: Sequence[str]) -> Finding:
    """The worse of the places' statuses, and the thresholds by name."""
    status = max((one.status for one in places), key=SEVERITY.index)
    return Finding(question, status, tuple(said), tuple(places), {name: getattr(THRESHOLDS, name) for name in names})


def _title(place: PlaceName, row: DepthRow, good: Status) -> str:
    if place == "output":
        return f"Output, {row.title}"
    return f"Stream, {'lowest' if good in ('kept', 'not lost') else 'most'} at {row.title}"
