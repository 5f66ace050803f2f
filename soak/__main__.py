"""`make soak`: trials in turn until enough sweeps were killed, and the count of everything that was done.

    python -m soak [--kills 1000] [--minutes 60] [--seed 0] [--engine local] [--out FILE]
    python -m soak --slice

A failure names the trial and its seed, leaves its store where it is and goes on; the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from rankfall.provenance import provenance
from soak import trials
from soak.lives import scratch_folder, warm_up


def soak(kills: int, minutes: float, first_seed: int) -> dict[str, Any]:
    """Every trial with one seed, then with the next, until enough kills or no time is left."""
    folder = scratch_folder("rankfall-soak-")
    bench = trials.Bench(folder)
    counts: dict[str, Counter[str]] = {name: Counter() for name in trials.TRIALS}
    failures: list[str] = []
    end, seed = time.monotonic() + 60 * minutes, first_seed
    enough = False
    while not enough:
        for name in trials.TRIALS:
            try:
                counts[name] += trials.run_trial(name, bench, seed) + Counter(trials=1)
            except Exception as error:
                traceback.print_exc()
                failures.append(f"{name}, seed {seed}: {type(error).__name__}: {error}")
            total = sum(count["kills"] for count in counts.values())
            enough = total >= kills or time.monotonic() >= end
            if enough:
                break
        print(f"seed {seed}: {total} kills, {len(failures)} failures", file=sys.stderr, flush=True)
        seed += 1
    return {"seeds": [first_seed, seed - 1], "trials": {name: dict(counts[name]) for name in counts}} | {
        "failures": failures
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--slice", action="store_true", help="the short one that the test suite runs")
    asked = parser.parse_args()
    start = time.monotonic()
    if asked.engine == "ray":
        from soak.ray_trials import soak_ray

        found = soak_ray(asked.kills, asked.minutes, asked.seed)
    else:
        warm_up()
        if asked.slice:
            with tempfile.TemporaryDirectory() as folder:
                bench = trials.Bench(Path(folder))
                names = {"kill at points": trials.kill_at_points, "together": trials.together}
                counts = {name: dict(trials.run_trial(name, bench, 0, trial)) for name, trial in names.items()}
            found = {"seeds": [0, 0], "trials": counts, "failures": []}
        else:
            found = soak(asked.kills, asked.minutes, asked.seed)
    record = {"engine": asked.engine, **found, "seconds": time.monotonic() - start, "environment": provenance()}
    text = json.dumps(record, indent=1)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text + "\n")
    print(text)
    sys.exit(1 if found["failures"] else 0)


if __name__ == "__main__":
    main()
