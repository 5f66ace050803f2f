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
    """One series for each stack of blocks, of the models that have one of that name, whichever comes first in each.

    A model of one stack whose name no other has stands in the first series, and so does a model that could not be
    audited. What is about a whole model, its loss, stands in the first series that has the model.
    """
    if not any(_others(one.record) for one in models):
        return [StackSeries(None, tuple(models))]
    labels = dict.fromkeys(label for one in models if _others(one.record) for label in _labels(one.record))
    first, *_ = labels
    found: dict[str, list[AuditedModel]] = {label: [] for label in labels}
    alone: dict[str, None] = {}
    for one in models:
        own = [label for label in labels if label in _labels(one.record)]
        if not own:
            found[first].append(one)
            alone |= dict.fromkeys(_labels(one.record))
        for label in own:
            found[label].append(_in_stack(one, label, whole=label == own[0]))
    return [
        StackSeries(" / ".join([label, *alone]) if label == first else label, tuple(found[label])) for label in labels
    ]


def _others(record: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return () if record is None else record.get("other_stacks", ())


def _labels(record: Mapping[str, Any] | None) -> list[str]:
    """The names of a model's stacks, that of its first stack first."""
    return [] if record is None else [str(record["stack_label"]), *(str(one["label"]) for one in _others(record))]


def _in_stack(one: AuditedModel, label: str, *, whole: bool) -> AuditedModel:
    """The model as seen in one of its stacks."""
    assert one.record is not None
    record, others = one.record, _others(one.record)
    if label == record["stack_label"]:
        elsewhere = tuple(f"{other['name']}." for other in others)
        heads = [head for head in record["heads"] if not head["module"].startswith(elsewhere)]
        seen: dict[str, Any] = {}
    else:
        other = next(other for other in others if other["label"] == label)
        heads = [head for head in record["heads"] if head["module"].startswith(f"{other['name']}.")]
        seen = {name: other[name] for name in ("depth", "inside", "verdict", "controls", "ablation")}
        seen |= {"model": {**record["model"], "layers": other["depth"][-1]["layer"]}, "stack": other["name"]}
    if not whole:
        seen["text"] = {**record["text"], "loss": None}
    return replace(one, record={**record, **seen, "stack_label": label, "heads": heads, "other_stacks": []})
