"""The tables of a series, from the records of its audits and from nothing else; a comparison is a series of two."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.models.series.work import AuditedModel

Row = dict[str, Any]

# Of the tokens of length one at the last layer: what the table of checkpoints shows.
BRIEF = ("effective_rank", "energy_rank", "relative_mu", "mean_abs_cosine")


def audited(models: Sequence[AuditedModel]) -> list[AuditedModel]:
    """Those that were audited, in their order."""
    return [one for one in models if one.record is not None]


def checkpoint_rows(models: Sequence[AuditedModel]) -> list[Row]:
    """One row per model: where its rank is lowest and where it ends, its loss, its verdict; or why there is none."""
    rows = []
    for one in models:
        row: Row = {"model": one.label, "step": one.step, "audited": one.record is not None}
        if one.record is not None:
            ranks = column_of(one.record, "effective_rank")
            low = min(range(len(ranks)), key=ranks.__getitem__)
            layers = one.record["depth"]
            row |= {"loss": loss_of(one.record), **{name: layers[-1]["unit"][name] for name in BRIEF}}
            row |= {"lowest_rank": ranks[low], "lowest_layer": layers[low]["layer"]}
            energy = column_of(one.record, "energy_rank")
            row |= {"last_over_highest": energy[-1] / max(energy) if max(energy) > 0 else 0.0}
            row |= statuses(one.record["verdict"])
            row |= {"layers": one.record["model"]["layers"], "parameters": one.record["model"]["parameters"]}
        rows.append(row | {"stored": one.stored, "seconds": one.seconds, "reason": one.reason, "id": one.id})
    return rows


def loss_of(record: Mapping[str, Any]) -> float | None:
    """The model's loss on the text, where the audit has one."""
    found = record["text"].get("loss")
    found = found.get("value") if isinstance(found, Mapping) else found
    return None if found is None else float(found)


def statuses(verdict: Mapping[str, Any]) -> dict[str, str]:
    """The words in which a verdict sums up: its status, and that of every question it answers."""
    if isinstance(verdict.get("statuses"), Mapping):
        return {str(name): str(word) for name, word in verdict["statuses"].items()}
    found = {"status": verdict["status"]} if isinstance(verdict.get("status"), str) else {}
    for name, part in verdict.items():
        if isinstance(part, Mapping) and isinstance(part.get("status"), str):
            found[name] = part["status"]
        for one in part if isinstance(part, list) else ():
            if isinstance(one, Mapping) and isinstance(one.get("status"), str):
                found[str(one.get("question") or one.get("topic") or one.get("name"))] = one["status"]
    return found


def depth_rows(models: Sequence[AuditedModel]) -> list[Row]:
    """Measures of tokens of length one at every block boundary of every model."""
    rows = []
    for one in audited(models):
        assert one.record is not None
        last = max(row["layer"] for row in one.record["depth"]) or 1
        rows += [
            {"model": one.label, "step": one.step, "layer": row["layer"], "depth": row["layer"] / last, **row["unit"]}
            for row in one.record["depth"]
        ]
    return rows


def head_rows(models: Sequence[AuditedModel]) -> list[Row]:
    """The median head of every layer of every model; `share` is its query/key rank over the most that it can be.

    Where a model has cross-attention, `kind` tells it from self-attention.
    """
    rows = []
    crossing = any(_is_cross(head) for one in audited(models) if one.record for head in one.record["heads"])
    for one in audited(models):
        assert one.record is not None
        layers: dict[tuple[int, bool], list[Mapping[str, Any]]] = {}
        for head in one.record["heads"]:
            layers.setdefault((head["layer"], _is_cross(head)), []).append(head)
        for (layer, cross), heads in layers.items():
            row: Row = {"model": one.label, "step": one.step, "layer": layer}
            row |= {"kind": "cross" if cross else "self"} if crossing else {}
            row |= {name: statistics.median(head[name] for head in heads) for name in _ranks_of(heads, "head_dim")}
            row["share"] = statistics.median(head["qk_effective_rank"] / head["head_dim"] for head in heads)
            rows.append(row)
    return rows


def same_layers(models: Sequence[AuditedModel]) -> bool:
    """Whether the layers of all models correspond, because the same ones were measured in each."""
    return len({tuple(row["layer"] for row in one.record["depth"]) for one in audited(models) if one.record}) <= 1


def differences(first: AuditedModel, second: AuditedModel) -> list[Row]:
    """The second's measures minus the first's, layer by layer; at like relative depth where depths differ."""
    theirs = depth_rows([second])
    rows = []
    for mine in depth_rows([first]):
        other = min(theirs, key=lambda row: abs(row["depth"] - mine["depth"]))
        row: Row = {"layer": mine["layer"], "other_layer": other["layer"], "depth": mine["depth"]}
        measures = [name for name in mine if name not in ("model", "step", "layer", "depth") and name in other]
        rows.append(row | {name: _minus(other[name], mine[name]) for name in measures})
    return rows


def head_differences(first: AuditedModel, second: AuditedModel) -> list[Row]:
    """The second's ranks and norms minus the first's, head by head; none where their heads do not correspond."""
    assert first.record is not None
    assert second.record is not None
    mine, theirs = (
        {(one["layer"], _is_cross(one), one["head"]): one for one in record["heads"]}
        for record in (first.record, second.record)
    )
    if mine.keys() != theirs.keys():
        return []
    rows = []
    crossing = any(cross for _, cross, _ in mine)
    for (layer, cross, head), one in mine.items():
        other = theirs[layer, cross, head]
        row: Row = {"layer": layer, "head": head} | ({"kind": "cross" if cross else "self"} if crossing else {})
        rows.append(row | {name: other[name] - one[name] for name in _ranks_of([one, other])})
    return rows


def _is_cross(head: Mapping[str, Any]) -> bool:
    return head.get("kind") == "cross"


def _ranks_of(heads: Sequence[Mapping[str, Any]], *more: str) -> list[str]:
    """Columns with a rank or a norm that all of these heads have."""
    names = [name for name in heads[0] if name in more or name.endswith(("_rank", "_norm"))]
    return [name for name in names if all(isinstance(head.get(name), (int, float)) for head in heads)]


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def column_of(record: Mapping[str, Any], measure: str) -> list[float]:
    """The measure of tokens of length one by layer; JSON has no NaN, so that it comes back as None."""
    return [float("nan") if row["unit"][measure] is None else row["unit"][measure] for row in record["depth"]]


def in_stack(row: Row, label: str) -> Row:
    """A row with the name of its stack of blocks, after that of the model where it has one."""
    before = [name for name in row if name in ("model", "step")]
    return {**{name: row[name] for name in before}, "stack": label, **row}
