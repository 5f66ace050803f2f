"""What trained language models say about rank, in words: the best shape of each setting, and what audits add."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.training.text.comparison import by_setting, has_learned_little, setting_of, text_name, variant_of

Row = Mapping[str, Any]

MEMORISED = 1.5
"""Held-out loss over training loss beyond which the order of models is that of their memories as well."""
SAME_TIME = 1.25
"""How many times as long as another a step may take that is to be equally long."""
SAME_SIZE = 0.02
"""Share of its parameters by which a model may be larger than another of one size."""


def verdicts(records: Sequence[Row]) -> list[str]:
    """A sentence or two for each setting: the best shape, what the others cost over it, and whether seeds tell."""
    return [_verdict(own, _where(own, records)) for own in by_setting(records)]


def _where(rows: Sequence[Row], every: Sequence[Row]) -> str:
    """The setting of rows that share one, as far as it tells them from all others."""
    return ", ".join(part for part in (text_name(rows[0], every), _place(rows), variant_of(rows[0], every)) if part)


def _verdict(records: Sequence[Row], where: str) -> str:
    best, *others = sorted(records, key=lambda record: record["nats_per_byte"])
    names = _shape_names(records)
    least = f"{names[id(best)]} costs least, {best['nats_per_byte']:.4f} nats per byte"
    unigram = best["unigram_nats_per_byte"]
    if has_learned_little(best["nats_per_byte"], unigram):
        return (
            f"{where}: too small to tell: the best model costs {best['nats_per_byte']:.3f} nats per byte, and "
            f"frequencies of tokens alone {unigram:.3f}; train longer, or on more"
        )
    if not others:
        return f"{where}: {least}; there is no other shape to compare it with{_doubt(records)}"
    costs = {id(one): f"{names[id(one)]} {one['excess']:+.1%}{_margin(one)}" for one in others}
    told, close, unknown = (
        ", ".join(costs[id(one)] for one in others if one["told_from_best"] is wanted)
        for wanted in (True, False, None)
    )
    if unknown:
        chance = "one seed each, so that nothing says how much of the differences is chance"
        return f"{where}: {least}; {unknown}; {chance}{_doubt(records)}"
    surely = f"; surely more, by more than the 95 % margin over seeds: {told}" if told else ""
    apart = f"; too close to tell without more seeds: {close}" if close else ""
    if not told:
        return f"{where}: too close to tell without more seeds: {least}; {close}{_doubt(records)}"
    return f"{where}: {least}{surely}{apart}{_doubt(records)}"


def _margin(record: Row) -> str:
    return "" if record["excess_margin"] is None else f" (± {100 * record['excess_margin']:.1f})"


def _doubt(records: Sequence[Row]) -> str:
    sizes = [record["parameters"] for record in records if record["budget"] == "none"]
    memory = max((record["held_out_over_training"] or 0.0 for record in records), default=0.0)
    doubts = []
    if sizes and max(sizes) > (1 + SAME_SIZE) * min(sizes):
        doubts.append(
            ". These models differ in size, not in their heads alone: parameters = NUMBER in the grid evens it"
        )
    times = [record["step_seconds"] for record in records if str(record["budget"]).startswith("step_seconds=")]
    if times and max(times) > SAME_TIME * min(times):
        doubts.append(
            f". Their steps took {min(times):.3g} to {max(times):.3g} s and were to be equally long: the machine had "
            "other work; compare them on a quiet one, in a new store"
        )
    if memory > MEMORISED:
        doubts.append(
            f". Held-out text costs up to {memory:.1f} times as much as the text trained on: models learn that by "
            "heart, and their order may be that of memory; give more text, or fewer steps"
        )
    return "".join(doubts)


def _place(rows: Sequence[Row]) -> str:
    """Width, depth and what is equal, of rows of one setting."""
    first = rows[0]
    of = first["budget"]
    if of == "none":
        counts = sorted({row["parameters"] for row in rows if row.get("parameters") is not None})
        least, most = (counts[0], counts[-1]) if counts else (0, 0)
        many = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        of = f"{many} parameters" if counts else "no budget"
    depths = sorted({row["layers"] for row in rows})
    deep = f"{depths[0]}" if len(depths) == 1 else f"{depths[0]} to {depths[-1]}"
    return f"width {first['width']}, {deep} layer{'s' * (depths[-1] != 1)}, {of}"


def _shape_names(records: Sequence[Row]) -> dict[int, str]:
    """Rank and heads of each record, and as much else as tells it from the others; by the record's id()."""
    names = {id(one): f"rank {one['rank']} with {one['heads']} head{'s' * (one['heads'] != 1)}" for one in records}
    for field in ("value_rank", "key_heads", "layers", "feed_forward"):
        if len(set(names.values())) == len(names):
            break
        if len({one[field] for one in records}) > 1:
            names = {id(one): f"{names[id(one)]}, {field.replace('_', ' ')} {one[field]}" for one in records}
    return names


def audit_sentences(rows: Sequence[Row]) -> list[str]:
    """A sentence for each setting: how the rank that heads use and need, and that tokens keep, go with head rank."""
    settings: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("head_rank_used") is not None:
            settings.setdefault(setting_of(row), []).append(row)
    return [_audit_sentence(own, _where(own, rows)) for own in settings.values()]


def _audit_sentence(rows: Sequence[Row], where: str) -> str:
    by_rank: dict[int, list[Row]] = {}
    for row in rows:
        by_rank.setdefault(row["rank"], []).append(row)
    parts = []
    for rank, own in sorted(by_rank.items()):
        used, needed, tokens = (
            statistics.fmean(found) if found else math.nan
            for found in (
                [row[name] for row in own if row.get(name) is not None]
                for name in ("head_rank_used", "head_rank_needed", "token_rank_last")
            )
        )
        parts.append(f"of rank {rank} use {used:.1f} and need {needed:.1f}, tokens end at rank {tokens:.1f}")
    return f"{where}: heads {'; '.join(parts)}"
