"""One record from all processes of a distributed run.

Processes leave their records in the store through which they found each other, and rank 0 takes them from there. No
collective is called: a process that measures nothing, comes late, is not watched or is gone makes no other one wait.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, final

import torch.distributed as dist

from rankfall.models.monitor.sample import MEASURES

Records = dict[str, dict[str, float]]
"""Values by block and measure."""

LONGEST_WAIT = timedelta(seconds=10)

_numbers: Counter[str] = Counter()


def is_distributed() -> bool:
    """Whether there are other processes in this run."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def reduced(records: Sequence[Records]) -> Records:
    """Means over the processes that measured a block, their number `ranks`, and the longest token of all."""
    names = dict.fromkeys(itertools.chain.from_iterable(records))
    return {name: _joined([one[name] for one in records if name in one]) for name in names}


def _joined(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    if any("entropy" in one for one in values):
        return _joined_attention(values)
    finite = [one for one in values if not one.get("nonfinite")]
    joined: dict[str, float] = {}
    if finite:
        longest = max(finite, key=lambda one: one["norm_ratio"])
        joined = {name: sum(one[name] for one in finite) / len(finite) for name in MEASURES}
        joined |= {name: longest[name] for name in ("norm_ratio", "longest_token")}
    if len(finite) < len(values):
        joined["nonfinite"] = 1.0
    return {**joined, "ranks": float(len(values))}


def _joined_attention(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means, and the largest logit of all."""
    shared = [name for name in values[0] if all(name in one for one in values)]
    joined = {name: sum(one[name] for one in values) / len(values) for name in shared}
    if "logit_max" in joined:
        joined["logit_max"] = max(one["logit_max"] for one in values)
    return {**joined, "ranks": float(len(values))}


@final
class Exchange:
    """The records of one monitor on all `world` processes, of which this is number `rank`."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.rank = rank
        self._store = store
        self._expected = list(range(world))
        self._given: deque[str] = deque()
        self._open: int | None = None

    @classmethod
    def of_this_run(cls, prefix: str) -> Exchange:
        """Monitors of different processes meet by their prefix and the order in which they were made."""
        name = f"rankfall/{prefix}/{_numbers[prefix]}"
        _numbers[prefix] += 1
        found = dist.distributed_c10d._get_default_store()
        return cls(dist.distributed_c10d.PrefixStore(name, found), dist.get_rank(), dist.get_world_size())

    def give(self, step: int, records: Records) -> bool:
        """Leave this process's records, empty ones too; False if nobody took those of long ago."""
        self._open = step
        self._given.append(self._key(step, self.rank))
        self._store.set(self._given[-1], json.dumps(records))
        if len(self._given) <= 2:
            return True
        self._store.delete_key(self._given.popleft())
        return self.rank == 0 or bool(self._store.check(["taken"]))

    def take(self, *, now: bool = False, wait: bool = False) -> tuple[int, Records] | None:
        """On rank 0: the step and the joint records of the last sample, once all have left theirs; with `now`, of
        those that have. `wait` gives the others some seconds."""
        if self._open is None or self.rank != 0:
            return None
        step, keys = self._open, [self._key(self._open, rank) for rank in self._expected]
        if wait:
            self._wait(keys)
        if not self._store.check(keys):
            if not now:
                return None
            # Those that are not there now are not waited for again.
            self._expected = [rank for rank in self._expected if self._store.check([self._key(step, rank)])]
            keys = [self._key(step, rank) for rank in self._expected]
        self._open = None
        self._store.set("taken", str(step))
        return step, reduced([json.loads(value) for value in self._store.multi_get(keys)])

    def _wait(self, keys: list[str]) -> None:
        try:
            self._store.wait(keys, LONGEST_WAIT)
        except RuntimeError:
            # One of them is not coming.
            return

    @staticmethod
    def _key(step: int, rank: int) -> str:
        return f"{step}/{rank}"
