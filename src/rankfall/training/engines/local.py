"""The local engine: one stack after another in this process, side by side with whoever shares the store."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from rankfall.store.claims import Claims
from rankfall.store.identity import identity
from rankfall.store.store import Store
from rankfall.training.engines.base import Engine
from rankfall.training.kinds import stack_key
from rankfall.training.options import Options, resolve_device
from rankfall.training.plan import Group, Plan, halves, memory_budget, tidy
from rankfall.training.work import Build, Ending, Watch, work_on

POLL = 0.5
"""Seconds between two looks at cells that another process works on."""


class LocalEngine(Engine):
    """Trains in this process."""

    name: ClassVar[str] = "local"

    def __init__(self, options: Options, build: Build | None = None) -> None:
        super().__init__(options)
        self._build = build

    def memory(self) -> int:
        return self.options.memory or memory_budget(self.device())

    def device(self) -> str:
        return resolve_device(self.options.device)

    def workers(self) -> int:
        return 1

    def run(self, plan: Plan, store: Store, watch: Watch) -> bool:
        queue = deque(plan.stacks)
        elsewhere: list[Group] = []
        widest: dict[object, int] = {}
        with Claims(store.claims_folder, take_over=self.options.take_over, note=watch.note) as claims:
            while queue or elsewhere:
                if watch.stop():
                    return False
                if not queue:
                    queue.extend(_next_of(elsewhere, store, claims, self.options.parts, watch))
                    continue
                group = queue.popleft()
                key = stack_key(group[0])
                if len(group) > widest.get(key, len(group)):
                    queue.extendleft(reversed(halves(group)))
                    continue
                ending = work_on(group, store, claims, self.options, watch, self._build)
                if ending is Ending.STOPPED:
                    return False
                if ending is Ending.BUSY:
                    elsewhere.append(group)
                if ending is Ending.OUT_OF_MEMORY:
                    widest[key] = (len(group) + 1) // 2
                    watch.note(f"out of memory with {len(group)} cells in one stack; going on with {widest[key]}")
                    queue.extendleft(reversed(halves(group)))
            tidy(store, claims)
        return True


def _next_of(elsewhere: list[Group], store: Store, claims: Claims, parts: Sequence[str], watch: Watch) -> list[Group]:
    """Of the stacks that others work on: those to work on now, since their worker died or had only a part of them."""
    ready: list[Group] = []
    for group in tuple(elsewhere):
        missing = tuple(store.missing(group, parts))
        busy = tuple(cell for cell in missing if claims.holder(identity(cell)) not in (None, claims.owner.token))
        if missing and busy == missing:
            continue
        elsewhere.remove(group)
        if not missing:
            watch.chunk(group, group[0].chunks, [])
        elif not busy:
            ready.append(group)
        else:
            ready.append(tuple(cell for cell in missing if cell not in busy))
            elsewhere.append(busy)
    if not ready and elsewhere:
        claims.tell_holders(identity(cell) for group in elsewhere for cell in group)
        time.sleep(POLL)
    return ready
