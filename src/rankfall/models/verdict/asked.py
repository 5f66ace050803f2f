"""The rows of an audit and its controls as the questions need them: what is compared, where, on which passages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from rankfall.models.controls.controls import Control
from rankfall.models.depth.rows import DepthRow, Measured
from rankfall.models.thresholds import THRESHOLDS
from rankfall.models.verdict.findings import Compared
from rankfall.models.verdict.judgement import Decision, Middle, decide, log, middle

Number = Callable[[Measured], float]
Choice = Callable[["Stretch"], DepthRow]


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

    def __init__(self, rows: Sequence[DepthRow], controls: Sequence[Control], seed: int = 0) -> None:
        self.seed = seed
        self.ours = Stretch.of(rows)
        self.controls = [(one.name, Stretch.of(one.rows)) for one in controls if one.rows]
        passages = self.ours.output.per_text
        self.lengths = {one.text: one.tokens for one in passages}
        self.texts = [text for text, count in self.lengths.items() if count >= THRESHOLDS.fewest_tokens]
        sizes = [set(one.rarefied) for one in passages if one.text in self.texts]
        self.tokens = max(set.intersection(*sizes), default=0) if sizes else 0
        self.width = max((one.width for one in passages), default=0)

    @property
    def too_little(self) -> str | None:
        """Why nothing can be judged, if so."""
        t = THRESHOLDS
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
        """Under the thresholds of verdicts; `paired`: the threshold of a passage is a control's number of it."""
        clear = THRESHOLDS.paired_clear_factor if paired else THRESHOLDS.clear_factor
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


def too_little_text(rows: Sequence[DepthRow]) -> str | None:
    """Why nothing can be judged from these rows, if so."""
    return Asked(rows, ()).too_little


def at_output(run: Stretch) -> DepthRow:
    """The other place: what leaves the model."""
    return run.output


def _listed(lengths: Sequence[int]) -> str:
    return ", ".join(str(one) for one in lengths[:6]) + (" ..." if len(lengths) > 6 else "")
