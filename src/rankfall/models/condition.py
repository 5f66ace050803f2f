"""Conditions that make an audit fail, such as `effective_rank < 4`, for use in continuous integration.

Two kinds: a measure, or an answer of the verdict.

Grammar:   QUESTION STATUS [at PLACE]
QUESTION   alignment, distinctions or domination
STATUS     what the verdict may say: aligned, collapsed; reduced, lost; dominated; depends
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from rankfall.catalogue import MEASURES
from rankfall.errors import RequestError
from rankfall.measures.profile import VIEWS
from rankfall.models.depth.rows import DepthRow

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
                    remedy=f"layers run from {layers[0]} to {layers[-1]}",
                )
        values = [(row["layer"], row[self.view][self.measure]) for row in boundaries]
        known = [(layer, value) for layer, value in values if value is not None]
        return [(layer, value) for layer, value in known if OPERATORS[self.operator](value, self.number)]


# What a verdict may say, by question, apart from that all is well.
STATUSES = {
    "alignment": ("aligned", "collapsed", "depends"),
    "distinctions": ("reduced", "lost", "depends"),
    "domination": ("dominated", "depends"),
}
ANSWER = re.compile(
    r"\s*(?P<question>" + "|".join(STATUSES) + r")\s+(?P<status>[a-z]+)(?:\s+at\s+(?P<place>stream|output))?\s*"
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
            for finding in verdict["findings"]
            if finding["question"] == self.question
            for one in finding["places"]
            if one["status"] == self.status and self.place in (None, one["place"])
        ]


def parse_condition(text: str) -> Condition | AnswerCondition:
    """Read a condition; nothing in it is ever evaluated as code."""
    asked = ANSWER.fullmatch(text) if len(text) <= LONGEST else None
    if asked is not None and asked["status"] in STATUSES[asked["question"]]:
        return AnswerCondition(text.strip(), asked["question"], asked["status"], asked["place"])
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
            ' such as "distinctions lost at output"',
        )
    return Condition(
        text=text.strip(),
        view=found["view"] or "unit",
        measure=found["measure"],
        operator=found["operator"],
        number=float(found["number"]),
        where=found["before"] or found["after"] or "any",
    )
