"""How far a sweep is and how long it takes, in floating-point operations: cells differ by orders of magnitude."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from rankfall.progress import Progress
from rankfall.provenance import hardware
from rankfall.store.checkpoints import Checkpoints
from rankfall.store.query import rows_of
from rankfall.store.store import Store
from rankfall.training.kinds import CHUNK, TrainingCell, build_stack, cell_from, kind_named, stack_key, step_flops
from rankfall.training.plan import Group, Plan, group_flops, stack_name
from rankfall.training.threads import stack_threads

TRIAL_FLOPS = {"cpu": 2e10, "cuda": 2e13}
"""A trial of about so much work takes a few seconds."""


class Tally:
    """Counts chunks of every cell, whichever stack it is trained in."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._progress = progress
        self._total = plan.flops
        self._cells = sum(len(group) for group in plan.stacks)
        self._chunks: dict[TrainingCell, int] = {}

    def chunk(self, group: Group, chunks: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Report how far a stack came: the share is of the work that was missing when the sweep began."""
        self._chunks |= dict.fromkeys(group, chunks)
        done = sum(step_flops(cell) * count * CHUNK for cell, count in self._chunks.items())
        ended = sum(count == cell.chunks for cell, count in self._chunks.items())
        losses = [row["loss"] for row in rows if math.isfinite(row["loss"])]
        ends = dict.fromkeys(f"{loss:.3g}" for loss in (min(losses), max(losses))) if losses else {}
        loss = f", loss {' to '.join(ends)}" if ends else ""
        which = group[0].label if len(group) == 1 else f"a stack of {len(group)}"
        what = f"{ended} of {self._cells} cells; {which} at step {chunks * CHUNK:,} of {group[0].steps:,}{loss}"
        self._progress(what, min(1.0, done / self._total) if self._total else 1.0)


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds per stack of a plan, and what they rest on."""

    seconds: tuple[float, ...]
    source: str

    @property
    def total(self) -> float:
        return sum(self.seconds)


def estimate(plan: Plan, store: Store, device: str, *, workers: int = 1, threads: int | None = None) -> TimeEstimate:
    """Seconds for each stack on `workers` of them at a time, from operations per second reached before.

    Stacks of the same key are the best guide, then anything trained on this hardware, on another, then a trial.
    """
    if not plan.stacks:
        return TimeEstimate((), "nothing to train")
    rows, _ = rows_of(store)
    rows = [row for row in rows if row.get("device") == device and row.get("seconds")]
    here = [row for row in rows if row.get("hardware") == hardware()]
    if here:
        known, source = _rates(here), "runs in this store"
    elif rows:
        known, source = _rates(rows), "runs in this store on other hardware"
    elif device == "cpu" or torch.cuda.is_available():
        known, source = {None: [_trial(plan, device, store, threads)]}, "a trial of a few steps"
    else:
        return TimeEstimate((math.nan,) * len(plan.stacks), "no GPU here to try it on")
    everything = [rate for rates in known.values() for rate in rates]
    checkpoints = Checkpoints(store.checkpoints_folder)
    seconds = []
    for group in plan.stacks:
        rates = known.get(stack_key(group[0]), everything)
        begun = checkpoints.find(stack_name(group))
        left = group_flops(group, begun.chunk if begun else 0)
        seconds.append(left * len(rates) / sum(rates) / workers)
    return TimeEstimate(tuple(seconds), source)


def _rates(rows: Iterable[Mapping[str, Any]]) -> dict[Any, list[float]]:
    """Operations per second of finished runs, by stack key."""
    rates: dict[Any, list[float]] = {}
    for row in rows:
        fields = dataclasses.fields(cast(Any, kind_named(row).cell))
        cell = cell_from({field.name: row[field.name] for field in fields if field.name in row})
        done = step_flops(cell) * row.get("steps_done", cell.steps)
        rates.setdefault(stack_key(cell), []).append(done / row["seconds"])
    return rates


def _trial(plan: Plan, device: str, store: Store, threads: int | None) -> float:
    """Operations per second of a few steps of the cheapest stack, or of its first cells where that is much work.

    Batches stay as they are: a step on a small one spends its time on the weights, whatever the batch.
    """
    group: Group = min(plan.stacks, key=_step_flops)
    wanted = TRIAL_FLOPS[device.partition(":")[0]]
    while len(group) > 1 and _step_flops(group) > wanted:
        group = group[: len(group) // 2]
    with stack_threads(group, device, threads):
        stack = build_stack(group, device, False, True, store.path)
        stack.prepare()
        steps = min(stack.most_steps, max(1, round(wanted / _step_flops(group))))
        start = time.perf_counter()
        stack.run_steps(steps)
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return steps * _step_flops(group) / (time.perf_counter() - start)


def _step_flops(group: Iterable[TrainingCell]) -> float:
    return sum(map(step_flops, group))
