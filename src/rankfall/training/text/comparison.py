"""What trained language models say about rank, in numbers: losses over seeds by shape, and what seeds tell apart."""

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
ALONE = dict.fromkeys(("nats_per_byte_margin", "excess", "excess_margin", "told_from_best"))
"""What a shape that has no loss costs over the best."""


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
    over_best = {id(one): beside for own in by_setting(records) for one, beside in _over_best(own)}
    return [
        {**record, "variant": variant_of(record, records), **over_best.get(id(record), ALONE)} for record in records
    ]


def by_setting(records: Sequence[Row]) -> list[list[Row]]:
    """Records that may be compared with each other side by side; those without a loss are left out."""
    settings: dict[tuple[Any, ...], list[Row]] = {}
    for record in records:
        if record["nats_per_byte"] is not None:
            settings.setdefault(setting_of(record), []).append(record)
    return list(settings.values())


def _over_best(records: Sequence[Row]) -> list[tuple[Row, dict[str, Any]]]:
    """Beside each record of one setting, what it costs over the best of them, and whether seeds tell them apart."""
    best = min(records, key=lambda record: record["nats_per_byte"])
    least = best["nats_per_byte"]
    pooled = pooled_deviation([(record["nats_per_byte_deviation"] or 0.0, record["seeds"]) for record in records])
    found = []
    for record in records:
        excess = record["nats_per_byte"] / least - 1
        margin = None
        if pooled is not None and record is not best:
            margin = seeds_margin(pooled, record["seeds"], best["seeds"]) / least
        beside = {
            "nats_per_byte_margin": None if pooled is None else seeds_margin(pooled, record["seeds"]),
            "excess": excess,
            "excess_margin": margin,
            "told_from_best": None if margin is None else excess > margin,
        }
        found.append((record, beside))
    return found


def variant_of(record: Row, records: Sequence[Row]) -> str:
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


def text_name(record: Row, records: Sequence[Row]) -> str:
    """The text of a record: its name where it has one, else its hash where records have several texts that tokenizers
    do not tell apart."""
    if "domain" in record:
        return str(record["domain"])
    several = len({one["corpus"] for one in records}) > len({one["tokenizer"] for one in records})
    return f"corpus {record['corpus'][:8]}" if several else ""


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


def seeds_margin(pooled: tuple[float, int], *sizes: int) -> float:
    """Half of the 95 % interval of a mean over so many seeds, or of the difference of two, by a deviation that shapes
    have in common: two or three seeds of one shape say little of its own."""
    deviation, freedom = pooled
    spread = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))
    return deviation * spread * math.sqrt(sum(1 / size for size in sizes))


def pooled_deviation(groups: Sequence[tuple[float, int]]) -> tuple[float, int] | None:
    """The deviation over seeds that groups have in common, each given as its own and its size, and the degrees of
    freedom; None without a group of two. It stands for the deviation of a group of one."""
    freedom = sum(size - 1 for _, size in groups if size > 1)
    if not freedom:
        return None
    squares = sum(deviation**2 * (size - 1) for deviation, size in groups if size > 1)
    return math.sqrt(squares / freedom), freedom


def has_learned_little(loss: float, unigram: float | None) -> bool:
    """Whether a loss is close to that by frequencies of tokens alone, where that is known."""
    return unigram is not None and loss > LEARNED * unigram


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
