"""Run benchmarks by name; without a name, all of them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks


def names() -> list[str]:
    """Modules of this folder that have a `main`."""
    return [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]


def run(arguments: list[str]) -> int:
    chosen = [argument for argument in arguments if not argument.startswith("-")] or names()
    unknown = [name for name in chosen if name not in names()]
    if unknown:
        print(f"required a benchmark among {', '.join(names())}; got {unknown[0]}", file=sys.stderr)
        return 2
    for name in chosen:
        print(f"\n== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
