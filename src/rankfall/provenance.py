"""Where a number came from: commit, versions, hardware, date. Every published figure carries this."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import rankfall

PACKAGES = ("torch", "numpy", "scipy", "pandas", "transformers", "triton")


def provenance(command: str | None = None) -> dict[str, object]:
    """The facts that let someone else repeat a measurement."""
    record: dict[str, object] = {
        "rankfall": rankfall.__version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "hardware": hardware(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }
    if command is not None:
        record["command"] = command
    return record


@cache
def commit() -> str | None:
    """What `RANKFALL_COMMIT` says, else the checkout's commit, with `+dirty` when files differ from it, or None.

    Installed into an environment that lies inside somebody's repository, this package is no part of it: a commit
    counts only where git tracks this very file.
    """
    if named := os.environ.get("RANKFALL_COMMIT"):
        return named
    here = Path(__file__).resolve().parent
    try:
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        name = _git(here, "rev-parse", "--short=12", "HEAD")
        dirty = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}+dirty" if dirty else name


@cache
def hardware() -> str:
    """The processor, its cores and, where there is one, the GPU."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{_processor()}, {cores} cores"
    if torch.cuda.is_available():
        text += f", {torch.cuda.get_device_name()}"
    return text


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
