"""The Ray engine: workers killed while they train, drivers killed while they wait; one local Ray for all of it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rankfall.catalogue import ENGINES
from rankfall.store.store import Store
from rankfall.training.sweep import sweep
from soak.lives import CELLS, SINGLE, compare, scratch_folder, unbroken, warm_up

KILLS_PER_STACK = 3
"""Fewer than the ten times that Ray starts the task of a killed worker again."""


def soak_ray(kills: int, minutes: float, first_seed: int) -> dict[str, Any]:
    """Rounds of one store each: some drivers killed, then a sweep whose workers are killed, then the comparison."""
    import ray

    warm_up()
    folder = scratch_folder("rankfall-soak-ray-")
    expected = unbroken(folder / "unbroken", SINGLE)
    head = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    address = head.address_info["gcs_address"]
    counts: dict[str, Counter[str]] = {"drivers killed": Counter(), "workers killed": Counter()}
    failures: list[str] = []
    end, seed = time.monotonic() + 60 * minutes, first_seed
    try:
        while time.monotonic() < end and sum(count["kills"] for count in counts.values()) < kills:
            chance, store = random.Random(f"ray {seed}"), folder / f"ray-{seed}"
            try:
                for _ in range(chance.randint(0, 2)):
                    counts["drivers killed"] += _kill_driver(store, address, chance)
                counts["workers killed"] += _kill_workers(store, chance, end)
                compare(store, expected)
                shutil.rmtree(store)
            except Exception as error:
                failures.append(f"ray, seed {seed}: {type(error).__name__}: {error}")
            done = sum(count["kills"] for count in counts.values())
            print(f"ray seed {seed}: {done} kills, {len(failures)} failures", file=sys.stderr, flush=True)
            seed += 1
    finally:
        ray.shutdown()
    return {
        "seeds": [first_seed, seed - 1],
        "trials": {name: dict(count) for name, count in counts.items()},
        "failures": failures,
    }


def _kill_workers(store: Path, chance: random.Random, end: float) -> Counter[str]:
    """A sweep whose workers a second thread kills, at random moments of their lives."""
    Store(store)
    killed: list[int] = []
    over = threading.Event()
    killer = threading.Thread(target=_hunt, args=(store, chance, killed, over, end))
    killer.start()
    try:
        outcome = sweep(CELLS, store, engine=ENGINES["ray"](SINGLE))
    finally:
        over.set()
        killer.join()
    assert outcome.complete
    return Counter(kills=len(killed), sweeps=1, trials=1)


def _hunt(store: Path, chance: random.Random, killed: list[int], over: threading.Event, end: float) -> None:
    per_stack: Counter[str] = Counter()
    while not over.wait(chance.choice((0.0, 0.01, 0.05, 0.2))):
        owners = sorted((store / ".claims" / "owners").glob("ray-*"))
        if not owners or time.monotonic() > end:
            continue
        owner = chance.choice(owners)
        try:
            pid = int(json.loads(owner.read_bytes())["pid"])
        except (OSError, ValueError):
            continue
        if pid in killed or per_stack[owner.name] >= KILLS_PER_STACK:
            continue
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed.append(pid)
        per_stack[owner.name] += 1


def _kill_driver(store: Path, address: str, chance: random.Random) -> Counter[str]:
    """A sweep in a process of its own that is killed some time after it began to train."""
    command = [sys.executable, "-m", "soak.ray_trials", str(store), address]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while driver.poll() is None and not list(store.glob(".claims/owners/ray-*")):
        time.sleep(0.02)
    time.sleep(chance.choice((0.0, 0.1, 0.4)))
    driver.kill()
    status = driver.wait()
    assert status in (0, -signal.SIGKILL), f"a driver ended with {status}"
    return Counter(kills=int(status == -signal.SIGKILL), sweeps=1, trials=1)


if __name__ == "__main__":
    import ray

    ray.init(address=sys.argv[2], log_to_driver=False, logging_level="ERROR")
    sweep(CELLS, sys.argv[1], engine=ENGINES["ray"](SINGLE))
