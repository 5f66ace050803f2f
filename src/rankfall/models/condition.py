"""Conditions that make an audit fail, such as `effective_rank < 4`, for use in continuous integration.

Two kinds: a measure, or an answer of the verdict.

Grammar:   QUESTION STATUS [at PLACE]
QUESTION   alignment, distinctions or domination
STATUS     what the verdict may say: not aligned, aligned, collapsed; kept, not lost, reduced, lost; not dominated,
           dominated; depends. Not lost is all of which it is sure that it is not lost: kept and reduced too
PLACE      stream or output (default: either)

Grammar:   [VIEW.]MEASURE [at WHERE] OPERATOR NUMBER [at WHERE]
VIEW       raw, unit, centred or centred_unit (default: unit)
MEASURE    any measure of the foundation
WHERE      any (default: some layer), last, or a layer's number
OPERATOR   <  <=  >  >=
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from rankfall.catalogue import MEASURES
from rankfall.errors import RequestError
from rankfall.measures.profile import VIEWS
from rankfall.models.depth.rows import DepthRow, spans

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
PLACE = r"(?:\s+at\s+(?P<{0}>any|last|\d{{1,5}}))?"
PATTERN = re.compile(
    r"\s*(?:(?P<view>[a-z_]+)\.)?(?P<measure>[a-z_]+)"
    + PLACE.format("before")
    + r"\s*(?P<operator><=|>=|<|>)\s*(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)"
    + PLACE.format("after")
    + r"\s*"
)
LONGEST = 200


@final
@dataclass(frozen=True)
class Condition:
    """A comparison that holds or does not hold at a layer."""

    text: str
    view: str
    measure: str
    operator: str
    number: float
    where: str

    def failures(self, rows: Sequence[DepthRow]) -> list[tuple[int, float]]:
        """The layers (and values) at which the condition holds, among those it asks about."""
        return self.failures_in([row.record() for row in rows if row.part == "boundary"])

    def held_in(self, audited: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Layers and values at which it holds in an audit's record; in another stack of blocks, with its name."""
        found = [{"layer": at, "value": value} for at, value in self.failures_in(audited["depth"])]
        for other in audited["other_stacks"]:
            # A layer that the first stack has another may lack.
            if self.where in ("any", "last") or any(row["layer"] == int(self.where) for row in other["depth"]):
                there = self.failures_in(other["depth"])
                found += [{"layer": at, "value": value, "stack": other["name"]} for at, value in there]
        return found

    def failures_in(self, boundaries: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
        """The same for block boundaries as records."""
        layers = [row["layer"] for row in boundaries]
        if self.where == "last":
            boundaries = boundaries[-1:]
        elif self.where != "any":
            boundaries = [row for row in boundaries if row["layer"] == int(self.where)]
            if not boundaries:
                raise RequestError(
                    required="a layer that was measured in --fail-if",
                    got=self.where,
                    remedy=f"layers measured: {spans(layers)}",
                )
        values = [(row["layer"], row[self.view][self.measure]) for row in boundaries]
        known = [(layer, value) for layer, value in values if value is not None]
        return [(layer, value) for layer, value in known if OPERATORS[self.operator](value, self.number)]

    @property
    def needs_controls(self) -> bool:
        """Whether it can be decided beside random weights only."""
        return False

    def undecided_in(self, audited: Mapping[str, Any]) -> str | None:
        """Why the audit's record does not tell whether it holds, if so: numbers that are missing."""
        if (why := stack_without_depth(audited)) is not None:
            return why
        for stack in (audited, *audited["other_stacks"]):
            for row in stack["depth"][-1:] if self.where == "last" else stack["depth"]:
                asked = self.where in ("any", "last") or row["layer"] == int(self.where)
                if asked and row[self.view][self.measure] is None:
                    place = "" if stack is audited else f" of {stack['name']}"
                    return f"{self.view}.{self.measure} is not a number at layer {row['layer']}{place}"
        return None

    def open_in(self, audited: Mapping[str, Any]) -> str | None:
        """Nothing: a number is beyond another or is not."""
        return None


# What a verdict that judges may say, by question.
STATUSES = {
    "alignment": ("not aligned", "aligned", "collapsed", "depends"),
    "distinctions": ("kept", "not lost", "reduced", "lost", "depends"),
    "domination": ("not dominated", "dominated", "depends"),
}
# Of these about distinctions random weights decide.
BESIDE_RANDOM_WEIGHTS = ("kept", "reduced", "depends")
ANSWER = re.compile(
    r"\s*(?P<question>" + "|".join(STATUSES) + r")\s+(?P<status>(?:not\s+)?[a-z]+)"
    r"(?:\s+at\s+(?P<place>stream|output))?\s*"
)
PLACES = {"stream": "in the stream", "output": "at the output"}
ANSWERS = "QUESTION STATUS [at stream|output], " + "; ".join(
    f"{question} {', '.join(statuses[:-1])} or {statuses[-1]}" for question, statuses in STATUSES.items()
)


@final
@dataclass(frozen=True)
class AnswerCondition:
    """An answer of the verdict, in the stream, at the output, or (place None) in either."""

    text: str
    question: str
    status: str
    place: str | None

    def held_in(self, audited: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Places at which the verdicts of an audit's record say so; in another stack of blocks, with its name."""
        found = self.said_in(audited["verdict"])
        for other in audited["other_stacks"]:
            found += [{**one, "stack": other["name"]} for one in self.said_in(other.get("verdict", {"findings": []}))]
        return found

    def said_in(self, verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The places at which a verdict, as a record, says so, with what it says."""
        return [
            {"layer": one["layer"], "value": one["status"], "place": one["place"]}
            for one in self._asked(verdict)
            if self._said_at(one)
        ]

    def _said_at(self, judged: Mapping[str, Any]) -> bool:
        """Beside random weights a verdict says kept or reduced where it would say not lost without them; what is
        reduced may still be lost in some passages, which the decision tells."""
        if self.status != "not lost" or judged["status"] == "not lost":
            return bool(judged["status"] == self.status)
        return any(made["condition"] == "lost" and made["holds"] is False for made in judged["decisions"])

    @property
    def needs_controls(self) -> bool:
        """Whether it can be decided beside random weights only: what they would leave is what is asked."""
        return self.question == "distinctions" and self.status in BESIDE_RANDOM_WEIGHTS

    def undecided_in(self, audited: Mapping[str, Any]) -> str | None:
        """Why the verdicts of an audit's record do not tell whether it holds, if so."""
        if (short := too_little_text_in(audited)) is not None:
            return short
        if (why := stack_without_depth(audited)) is not None:
            return why
        if not self.needs_controls:
            return None
        for stack in (audited, *audited["other_stacks"]):
            name = stack["name"] if stack is not audited else None
            if self._without_random_weights_in(stack["verdict"]):
                prefix = "" if name is None else f"in {name}, "
                known = (audited["missing"].get(f"{prefix}{part}") for part in ("control random_weights", "controls"))
                reason = next((one for one in known if one is not None), "controls were not run")
                return f"{prefix}there are no random weights to compare with: {reason}"
        return None

    def open_in(self, audited: Mapping[str, Any]) -> str | None:
        """Where the verdicts say neither that it holds nor that it does not, with the reason, if anywhere."""
        told, depends = [], False
        for stack in (audited, *audited["other_stacks"]):
            where = "" if stack is audited else f" of {stack['name']}"
            for one in self._asked(stack["verdict"]):
                if (reason := self._left_open_at(one)) is not None:
                    told.append(f"{one['status']} {PLACES[one['place']]}{where} ({reason})")
                    depends = depends or one["status"] == "depends"
        if not told:
            return None
        place = "" if self.place is None else f" at {self.place}"
        also = f'; "{self.question} depends{place}" asks for that' if depends else ""
        return f"{', '.join(told)}{also}"

    def _left_open_at(self, judged: Mapping[str, Any]) -> str | None:
        """Why it is open at a place, if so. Decisions stand worst first: beside a worse answer that holds this one is
        not asked. A good answer is open where any decision is, unless another holds."""
        if self.status == "depends":
            return None
        asked = "lost" if self.status == "not lost" else self.status
        good = all(made["condition"] != asked for made in judged["decisions"])
        if good and judged["status"] != "depends":
            return None
        for made in judged["decisions"]:
            if made["holds"] is None and (good or made["condition"] == asked):
                return str(made["reason"])
            if made["holds"] or made["condition"] == asked:
                return None
        return None

    def _asked(self, verdict: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The places that it asks about."""
        for finding in verdict["findings"]:
            if finding["question"] == self.question:
                yield from (one for one in finding["places"] if self.place in (None, one["place"]))

    def _without_random_weights_in(self, verdict: Mapping[str, Any]) -> bool:
        """Whether random weights are missing where they would decide: what is lost is lost without them."""
        return any(
            one["status"] != "lost" and all(made["condition"] != "reduced" for made in one["decisions"])
            for one in self._asked(verdict)
        )


@final
@dataclass(frozen=True)
class Checked:
    """Conditions asked of one audit: where those that hold do, why others could not be decided, and which do not hold
    only because the answer is open: the passages disagree, or come too near the threshold."""

    failed: tuple[dict[str, Any], ...]
    unchecked: Mapping[str, str]
    open: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, conditions: Sequence[str], audited: Mapping[str, Any]) -> Checked:
        """Ask them of an audit's record. On too little text none is decided: a check of two words must not look as if
        it had passed or failed."""
        asked = {text: parse_condition(text) for text in conditions}
        held = {text: one.held_in(audited) for text, one in asked.items()}
        if (short := too_little_text_in(audited)) is not None:
            return cls((), dict.fromkeys(asked, short))
        others = {text: one for text, one in asked.items() if not held[text]}
        undecided = {text: why for text, one in others.items() if (why := one.undecided_in(audited)) is not None}
        return cls(
            tuple({"condition": text, "layers": found} for text, found in held.items() if found),
            undecided,
            {
                text: why
                for text, one in others.items()
                if text not in undecided and (why := one.open_in(audited)) is not None
            },
        )


def decided(condition: str, audited: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where a condition holds in an audit's record; one that cannot be decided there is refused."""
    asked = parse_condition(condition)
    held = asked.held_in(audited)
    why = None if held else asked.undecided_in(audited)
    if why is not None:
        raise RequestError(
            required=f"an audit that decides '{asked.text}'",
            got=why,
            remedy="audit with controls" if asked.needs_controls else "ask for what was measured",
        )
    return held


def too_little_text_in(audited: Mapping[str, Any]) -> str | None:
    """Why the verdict of an audit's record, or that of another of its stacks, judges nothing, if so."""
    for stack in (audited, *audited["other_stacks"]):
        for finding in stack["verdict"]["findings"]:
            if finding["status"] == "too little text":
                return str(finding["text"])
    return None


def stack_without_depth(audited: Mapping[str, Any]) -> str | None:
    """Why one of the stacks that ran was not measured, if so: what holds there nobody knows."""
    found = ((name, why) for name, why in audited["missing"].items() if name.startswith("depth of "))
    return next((f"there is no {name}: {why}" for name, why in found), None)


def require_decidable(conditions: Sequence[str], *, controls: bool) -> None:
    """Refuse, before anything runs, conditions that only controls decide where none will be run."""
    open_ones = [text for text in conditions if parse_condition(text).needs_controls]
    if open_ones and not controls:
        raise RequestError(
            required=f"controls to decide '{open_ones[0]}': what random weights would leave is what it asks",
            got="an audit without controls",
            remedy="add --controls, or ask for 'distinctions lost', which needs none",
        )


def parse_condition(text: str) -> Condition | AnswerCondition:
    """Read a condition; nothing in it is ever evaluated as code."""
    asked = ANSWER.fullmatch(text) if len(text) <= LONGEST else None
    status = None if asked is None else " ".join(asked["status"].split())
    if asked is not None and status in STATUSES[asked["question"]]:
        return AnswerCondition(text.strip(), asked["question"], status, asked["place"])
    if next(iter(text.split()), "") in STATUSES:
        raise RequestError(required="a condition about an answer of the verdict", got=repr(text[:80]), remedy=ANSWERS)
    found = PATTERN.fullmatch(text) if len(text) <= LONGEST else None
    if (
        found is None
        or (found["view"] or "unit") not in VIEWS
        or found["measure"] not in MEASURES
        or (found["before"] and found["after"])
    ):
        raise RequestError(
            required="a condition [VIEW.]MEASURE [at any|last|LAYER] <|<=|>|>= NUMBER,"
            f" VIEW one of {', '.join(VIEWS)}, MEASURE one of {', '.join(MEASURES.names)}",
            got=repr(text[:80]),
            remedy='for example "effective_rank < 4" or "raw.relative_mu at last < 0.1"; or an answer of the verdict,'
            f' such as "distinctions lost at output": {ANSWERS}',
        )
    return Condition(
        text=text.strip(),
        view=found["view"] or "unit",
        measure=found["measure"],
        operator=found["operator"],
        number=float(found["number"]),
        where=found["before"] or found["after"] or "any",
    )
