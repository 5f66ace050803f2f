"""A series of models of several stacks of blocks, such as an encoder and a decoder, as one series for each stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from rankfall.models.series.work import AuditedModel


@final
@dataclass(frozen=True)
class StackSeries:
    """The models as seen in one stack each; `label` names it, None where no model has another."""

    label: str | None
    models: tuple[AuditedModel, ...]


def by_stack(models: Sequence[AuditedModel]) -> list[StackSeries]:
    """The series of every model's first stack, then one for each other stack, of the models that have it.

    A model that could not be audited is in the first. What is about a whole model (its loss, why it was not audited)
    stands there alone.
    """
    others: dict[str, list[AuditedModel]] = {}
    for one in models:
        for other in _others(one.record):
            others.setdefault(str(other["label"]), []).append(_in_other(one, other))
    if not others:
        return [StackSeries(None, tuple(models))]
    firsts = [_in_first(one) for one in models]
    known = dict.fromkeys(str(one.record["stack_label"]) for one in firsts if one.record is not None)
    return [
        StackSeries(" / ".join(known), tuple(firsts)),
        *(StackSeries(label, tuple(found)) for label, found in others.items()),
    ]


def _others(record: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return () if record is None else record.get("other_stacks", ())


def _in_first(one: AuditedModel) -> AuditedModel:
    if one.record is None:
        return one
    elsewhere = tuple(f"{other['name']}." for other in _others(one.record))
    heads = [head for head in one.record["heads"] if not head["module"].startswith(elsewhere)]
    return replace(one, record={**one.record, "heads": heads, "other_stacks": []})


def _in_other(one: AuditedModel, other: Mapping[str, Any]) -> AuditedModel:
    assert one.record is not None
    record = {
        **one.record,
        **{name: other[name] for name in ("depth", "inside", "verdict", "controls", "ablation")},
        "model": {**one.record["model"], "layers": other["depth"][-1]["layer"]},
        "text": {**one.record["text"], "loss": None},
        "heads": [head for head in one.record["heads"] if head["module"].startswith(f"{other['name']}.")],
        "stack": other["name"],
        "stack_label": other["label"],
        "other_stacks": [],
    }
    return replace(one, record=record)
