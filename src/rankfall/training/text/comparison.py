"""What trained language models say about rank: losses over seeds by shape, and whether they can be told apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

Row = Mapping[str, Any]

MAIN = ("corpus", "budget", "width", "layers")
VARIED = (
    "tokenizer", "context", "batch", "steps", "optimizer", "dtype", "activation", "positions", "rotary_base", "norm",
    "mask", "tied", "weight_decay", "clip", "warm_up",
)  # fmt: skip
SETTING = (*MAIN, *VARIED)
"""Models that agree in these are compared with each other."""
SHAPE = ("rank", "heads", "key_heads", "value_rank", "feed_forward")
"""What may differ between them; the depth as well where it was solved for."""
RUN = (*SETTING, *SHAPE, "learning_rate", "seed")
"""What tells one run from all others."""
CONFIDENCE = 0.95
LEARNED = 0.9
"""A model whose loss is above this share of the loss by token frequencies has not learned enough to compare."""
MEMORISED = 1.5
"""Held-out loss over training loss beyond which the order of models is that of their memories as well."""


def setting_of(row: Row) -> tuple[Any, ...]:
    """What a row must share with others to be compared with them: not the depth where that was solved for."""
    return tuple(None if name == "layers" and _depth_is_solved(row) else row[name] for name in SETTING)


def _depth_is_solved(row: Row) -> bool:
    return str(row["budget"]).endswith(" by layers")


def by_shape(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One record per shape in each setting: nats per byte, the mean over seeds with its interval, at the best rate.

    The interval is Student's over seeds, None for one seed. Diverged runs are counted and left out.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("nats_per_byte") is not None:
            groups.setdefault(tuple(row[name] for name in (*SETTING, *SHAPE)), []).append(row)
    records = [_record(key, members) for key, members in sorted(groups.items(), key=lambda group: group[0])]
    return [{**record, "variant": _variant(record, records)} for record in records]


def _variant(record: Row, records: Sequence[Row]) -> str:
    """What tells a setting from others of the same text, budget, width and depth, such as `positions learned`."""
    main, named = setting_of(record)[1 : len(MAIN)], len(MAIN)
    anywhere = [other for other in records if setting_of(other)[1:named] == main]
    like = [other for other in anywhere if other["corpus"] == record["corpus"]]
    differing = [
        # a corpus is that of one tokenizer, which tells it from the other better than its hash does
        name
        for name in VARIED
        if len({other[name] for other in (anywhere if name == "tokenizer" else like)}) > 1
    ]
    return ", ".join(f"{name} {record[name]}" for name in differing)


def _record(key: tuple[Any, ...], members: Sequence[Row]) -> dict[str, Any]:
    members = at_best_rate(members)
    done = [row for row in members if row["status"] == "done"]
    losses = [float(row["nats_per_byte"]) for row in done]
    margin = mean_margin(losses)
    mean = _mean(members)
    return {
        **dict(zip((*SETTING, *SHAPE), key, strict=True)),
        "learning_rate": members[0]["learning_rate"],
        "seeds": len(done),
        "diverged": len(members) - len(done),
        "nats_per_byte": mean if done else None,
        "nats_per_byte_low": None if margin is None else mean - margin,
        "nats_per_byte_high": None if margin is None else mean + margin,
        "nats_per_byte_deviation": statistics.stdev(losses) if len(losses) > 1 else None,
        "held_out_over_training": _over_training(done),
        "unigram_nats_per_byte": members[0]["unigram_nats_per_byte"],
        "parameters": members[0]["parameters"],
        "training_flops": members[0]["training_flops"],
        "step_seconds": statistics.median(row["seconds"] / row["steps_done"] for row in members),
    }


def at_best_rate(rows: Sequence[Row]) -> list[Row]:
    """Of models that differ in seed and learning rate, those of the rate with the lowest mean loss."""
    by_rate: dict[float, list[Row]] = {}
    for row in rows:
        by_rate.setdefault(row["learning_rate"], []).append(row)
    return min(by_rate.values(), key=_mean)


def _over_training(rows: Sequence[Row]) -> float | None:
    """Loss by token on held-out text over that on the last steps' batches, mean over seeds."""
    found = [
        row["nats_per_token"] / row["training_nats_per_token"]
        for row in rows
        if row.get("nats_per_token") is not None and (row.get("training_nats_per_token") or 0.0) > 0
    ]
    return statistics.fmean(found) if found else None


def _mean(rows: Sequence[Row]) -> float:
    done = [float(row["nats_per_byte"]) for row in rows if row["status"] == "done"]
    return statistics.fmean(done) if done else math.inf


def mean_margin(losses: Sequence[float]) -> float | None:
    """Half of Student's 95 % interval of the mean over seeds; None for one."""
    if len(losses) < 2:
        return None
    spread = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(losses) - 1))
    return spread * statistics.stdev(losses) / math.sqrt(len(losses))


def pooled_deviation(groups: Sequence[tuple[float, int]]) -> tuple[float, int] | None:
    """The deviation over seeds that groups have in common, each given as its own and its size, and the degrees of
    freedom; None without a group of two. It stands for the deviation of a group of one."""
    freedom = sum(size - 1 for _, size in groups if size > 1)
    if not freedom:
        return None
    squares = sum(deviation**2 * (size - 1) for deviation, size in groups if size > 1)
    return math.sqrt(squares / freedom), freedom


def verdicts(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence or two for each setting: the best shape, and whether the losses tell it from the others."""
    settings: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["nats_per_byte"] is not None:
            settings.setdefault(setting_of(record), []).append(record)
    names = {record["corpus"]: f"corpus {record['corpus'][:8]}, " for record in records}
    several = len({record["tokenizer"] for record in records}) < len(names)
    return [_verdict(own, names[own[0]["corpus"]] if several else "") for own in settings.values()]


def _verdict(records: Sequence[Mapping[str, Any]], corpus: str) -> str:
    best, *others = sorted(records, key=lambda record: record["nats_per_byte"])
    named = f"{best['domain']}, " if "domain" in best else corpus
    variant = f", {best['variant']}" if best["variant"] else ""
    where = f"{named}{_place(records)}{variant}"
    names = _shape_names(records)
    least = f"{names[id(best)]} costs least, {best['nats_per_byte']:.4f} nats per byte"
    unigram = best["unigram_nats_per_byte"]
    if has_learned_little(best["nats_per_byte"], unigram):
        return (
            f"{where}: too small to tell: the best model costs {best['nats_per_byte']:.3f} nats per byte, and "
            f"frequencies of tokens alone {unigram:.3f}; train longer, or on more"
        )
    memory = max((record["held_out_over_training"] or 0.0 for record in records), default=0.0)
    doubt = (
        f". Held-out text costs up to {memory:.1f} times as much as the text trained on: models learn that by heart, "
        "and their order may be that of memory; give more text, or fewer steps"
        if memory > MEMORISED
        else ""
    )
    if not others:
        return f"{where}: {least}; there is no other shape to compare it with{doubt}"
    alone = lone_margin([(record["nats_per_byte_deviation"] or 0.0, record["seeds"]) for record in records])
    if alone is None:
        return f"{where}: {least}; one seed each, so that nothing says how much of the differences is chance{doubt}"
    single = any(record["nats_per_byte_low"] is None for record in records)
    spread = "the 95 % intervals over seeds" + (" (of those with several)" if single else "")
    rivals = [record for record in others if not _apart(best, record, alone)]
    if rivals:
        losses = ", ".join(f"{names[id(record)]} ({record['nats_per_byte']:.4f})" for record in rivals)
        close = f"too close to tell without more seeds: {least}, and {spread} do not tell it from {losses}"
        return f"{where}: {close}{doubt}"
    return f"{where}: {least}, less than {_others(len(others))} by more than {spread}{doubt}"


def has_learned_little(loss: float, unigram: float | None) -> bool:
    """Whether a loss is close to that by frequencies of tokens alone, where that is known."""
    return unigram is not None and loss > LEARNED * unigram


def _others(count: int) -> str:
    return "the other" if count == 1 else f"all {count} others"


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


def lone_margin(groups: Sequence[tuple[float, int]]) -> float | None:
    """Half of the 95 % interval of a lone seed, by the deviation that groups of several have in common."""
    pooled = pooled_deviation(groups)
    if pooled is None:
        return None
    deviation, freedom = pooled
    return deviation * float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))


def _apart(first: Mapping[str, Any], second: Mapping[str, Any], alone: float) -> bool:
    """Whether the difference of two means is beyond the margin of a difference, both margins squared and added."""
    margins = [
        alone if record["nats_per_byte_high"] is None else record["nats_per_byte_high"] - record["nats_per_byte"]
        for record in (first, second)
    ]
    return bool(abs(first["nats_per_byte"] - second["nats_per_byte"]) > math.hypot(*margins))


def to_level(runs: Sequence[tuple[Row, Sequence[Row]]], level: float | None = None) -> list[dict[str, Any]]:
    """For each run and its history: tokens and seconds after which held-out text costs no more than a level.

    Without a level, in each setting the loss that all of its models reach: the highest at the end of a run. Seconds
    are the run's own, spread evenly over its steps.
    """
    settings: dict[tuple[Any, ...], list[tuple[Row, Sequence[Row]]]] = {}
    for row, history in runs:
        if row["status"] == "done":
            settings.setdefault(setting_of(row), []).append((row, history))
    found = []
    for own in settings.values():
        ends = [[float(one["fresh"]) for one in past if one.get("fresh") is not None][-1] for _, past in own]
        wanted = max(ends) if level is None else level
        for row, history in own:
            steps = reached(history, wanted)
            found.append(
                {
                    **{name: row[name] for name in ("id", *RUN)},
                    "level": wanted,
                    "tokens": None if steps is None else steps * row["batch"] * row["context"],
                    "seconds": None if steps is None else steps * row["seconds"] / row["steps_done"],
                }
            )
    return found


def reached(history: Sequence[Row], level: float) -> float | None:
    """Steps after which held-out loss first is at a level, on the line between two looks; None when it never is."""
    before: tuple[float, float] | None = None
    for row in history:
        if row.get("fresh") is None:
            continue
        step, loss = float(row["step"]), float(row["fresh"])
        if loss <= level:
            if before is None or before[1] == loss:
                return step
            share = (before[1] - level) / (before[1] - loss)
            return before[0] + share * (step - before[0])
        before = (step, loss)
    return None


def audit_sentences(rows: Sequence[Row]) -> list[str]:
    """A sentence for each setting: how the rank that heads use and need, and that tokens keep, go with head rank."""
    settings: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.get("head_rank_used") is not None:
            settings.setdefault(setting_of(row), []).append(row)
    return [_audit_sentence(own) for own in settings.values()]


def _audit_sentence(rows: Sequence[Row]) -> str:
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
    return f"{_place(rows)}: heads {'; '.join(parts)}"
