"""Run benchmarks by name; without a name, all that two cores can do."""

from __future__ import annotations

import importlib
import sys

# One line per benchmark. Scripts that need a GPU run by their own names: `python -m benchmarks.gpu_check_training`.
ALL_BENCHMARKS = (
    "attention_core",
    "dynamics",
    "random_features",
    "training",
    "store",
    "monitor",
    "audit",
    "explorer",
    "report",
    "verdict",
    "untrained",
)


def run(arguments: list[str]) -> int:
    unknown = [name for name in arguments if name not in ALL_BENCHMARKS]
    if unknown:
        print(f"required a benchmark among {', '.join(ALL_BENCHMARKS)}; got {unknown[0]}", file=sys.stderr)
        return 2
    for name in arguments or ALL_BENCHMARKS:
        print(f"\n== {name}", flush=True)
        module = importlib.import_module(f"benchmarks.{name}")
        sys.argv = [name]  # each reads its own arguments; ours were names
        module.main()
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
