"""Trials: each disturbs sweeps on a store of its own until one finishes, and compares it with an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from rankfall.store.store import Store
from rankfall.training.options import Options
from soak import faults
from soak.lives import CELLS, DELAYS, REFUSED, SINGLE, STACKED, born, compare, killed, killed_side_by_side, unbroken

Trial = Callable[["Bench", random.Random, Path], Counter[str]]
POINTS = (1, 2, 4, 7, 9, 12, 15, 19, 22, 26)
"""Deterministic events at which the slice kills."""


class Bench:
    """A folder for the stores, and what undisturbed sweeps give, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def stacked(self) -> dict[str, tuple[Any, ...]]:
        return unbroken(self.folder / "unbroken")

    @cached_property
    def single(self) -> dict[str, tuple[Any, ...]]:
        """Each cell trained alone."""
        return unbroken(self.folder / "unbroken-single", SINGLE)


def kill(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """Kill sweeps one after the other until one finishes."""
    count: Counter[str] = Counter()
    most = chance.choice((4, 12, 30))
    _until_one_ends(count, 80, lambda: killed(store, chance.randint(1, most), chance.choice(DELAYS)))
    return _ended_well(store, bench.stacked, count)


def kill_at_points(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """Kill at fixed events, for the test suite."""
    count: Counter[str] = Counter()
    for events in POINTS:
        count["sweeps"] += 1
        count["kills"] += killed(store, events)
    return _ended_well(store, bench.stacked, count)


def side_by_side(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """Two sweeps on one store, both killed and born again."""
    kills = killed_side_by_side(store, chance, chance.choice((8, 20, 40)), chance.randint(5, 40))
    count = Counter(kills=kills, sweeps=kills + 2)
    return _ended_well(store, bench.stacked, count)


def together(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """Several sweeps on one store, nobody killed."""
    lives = [born(store) for _ in range(chance.randint(2, 4))]
    assert [life.live_on() for life in lives] == [0] * len(lives)
    assert sum(life.trained for life in lives) == len(CELLS), "a cell was trained twice"
    compare(store, bench.stacked)
    return Counter(sweeps=len(lives))


def no_room(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """A disk that is full, grows a little and is full again; kills in between."""
    count: Counter[str] = Counter()
    size = chance.randint(20, 60)
    disk = faults.Disk(store, size)
    try:
        for _ in range(60):
            count["sweeps"] += 1
            if disk.mounted:
                status = born(store / "runs").live_on()
                size += chance.randint(4, 90)
                disk.resize(size)
            else:
                status = born(store / "runs", fault=faults.refusing(faults.NO_ROOM, chance.randint(0, 90))).live_on()
            assert status in (0, REFUSED), f"a full disk ended a sweep with {status}"
            if status == 0:
                break
            count["full disks" if disk.mounted else "full disks, injected"] += 1
            if chance.random() < 0.3:
                count["kills"] += killed(store / "runs", chance.randint(1, 9))
        if disk.mounted:
            disk.resize(100_000)
        return _ended_well(store / "runs", bench.stacked, count)
    finally:
        disk.close()


def refused_writes(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """The system refuses at some flush or rename: no room, or read-only; then goes on as if nothing had been."""
    count: Counter[str] = Counter()
    for _ in range(12):
        number = chance.choice((faults.NO_ROOM, faults.READ_ONLY))
        status = born(store, fault=faults.refusing(number, chance.randint(0, 60))).live_on()
        assert status in (0, REFUSED), f"a refused write ended a sweep with {status}"
        count["sweeps"] += 1
        count["refused writes"] += status == REFUSED
        count["kills"] += killed(store, chance.randint(1, 9))
    return _ended_well(store, bench.stacked, count)


def read_only(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """A disk that may only be read for a while."""
    count: Counter[str] = Counter()
    disk = faults.Disk(store, 100_000)
    try:
        if not disk.mounted:
            return Counter({"read-only disks not tried": 1})
        for _ in range(4):
            count["kills"] += killed(store / "runs", chance.randint(20, 60))
            assert disk.read_only(True)
            status = born(store / "runs").live_on()
            assert status == REFUSED, f"a read-only disk ended a sweep with {status}"
            count["read-only disks"] += 1
            count["sweeps"] += 2
            assert disk.read_only(False)
        _ended_well(store / "runs", bench.stacked, count)
        assert disk.read_only(True)
        assert born(store / "runs").live_on() == 0, "a finished sweep needs to write nothing"
        compare(store / "runs", bench.stacked)
        return count
    finally:
        disk.close()


def clock_set_back(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """Between two lives the clock goes back by up to two days."""
    count: Counter[str] = Counter()
    killed(store, 12)

    def later() -> int:
        fault = faults.set_clock_back(store, chance.uniform(1, 2e5))
        count["clocks set back"] += 1
        return killed(store, chance.randint(1, 40), chance.choice(DELAYS), fault=fault)

    _until_one_ends(count, 40, later)
    return _ended_well(store, bench.stacked, count)


def moved(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """The store goes to another place, between two lives and under a running one."""
    count: Counter[str] = Counter()
    here = store / "0"
    store.mkdir()
    for number in range(1, 12):
        if chance.random() < 0.5:
            count["kills"] += killed(here, chance.randint(8, 40), chance.choice(DELAYS))
            os.rename(here, store / str(number))
            count["stores moved between sweeps"] += 1
        else:
            life = born(here)
            life.passes(chance.randint(8, 60))
            os.rename(here, store / str(number))
            status = life.live_on()
            assert status in (0, REFUSED), f"a store that was moved away ended a sweep with {status}"
            assert not here.exists(), "something appeared where the store had been"
            count["stores moved under a sweep"] += 1
        count["sweeps"] += 1
        here = store / str(number)
    return _ended_well(here, bench.stacked, count)


def damaged(bench: Bench, chance: random.Random, store: Path) -> Counter[str]:
    """Files of every kind are damaged in every way between lives."""
    count: Counter[str] = Counter()
    killed(store, 12, options=SINGLE)
    for _ in range(14):
        for _ in range(chance.randint(1, 3)):
            count["files damaged"] += faults.damage_something(store, chance) is not None
        count["sweeps"] += 1
        count["kills"] += killed(store, chance.randint(4, 60), options=SINGLE)
    for id in Store(store).damaged():  # weights are judged by their size until they are read
        Store(store).set_aside(id)
    return _ended_well(store, bench.single, count, SINGLE)


def _until_one_ends(count: Counter[str], most: int, life: Callable[[], int]) -> None:
    """Lives one after the other, until one was not killed or there were enough."""
    while count["sweeps"] < most:
        count["sweeps"] += 1
        hit = life()
        count["kills"] += hit
        if not hit:
            return


def _ended_well(
    store: Path, expected: dict[str, tuple[Any, ...]], count: Counter[str], options: Options = STACKED
) -> Counter[str]:
    """A last sweep that nothing disturbs, after which the store holds what it should."""
    count["sweeps"] += 1
    status = born(store, options).live_on()
    assert status == 0, f"the last sweep on {store} ended with {status}"
    compare(store, expected)
    return count


TRIALS: dict[str, Trial] = {
    trial.__name__.replace("_", " "): trial
    for trial in (
        kill, side_by_side, together, no_room, refused_writes, read_only, clock_set_back, moved, damaged,
    )
}  # fmt: skip


def run_trial(name: str, bench: Bench, seed: int, trial: Trial | None = None) -> Counter[str]:
    """One trial on a store of its own, which stays only when something is wrong with it."""
    place = bench.folder / f"{name.replace(' ', '-')}-{seed}"
    count = (trial or TRIALS[name])(bench, random.Random(f"{name} {seed}"), place)
    shutil.rmtree(place, ignore_errors=True)
    return count
