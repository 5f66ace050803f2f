"""How much an untrusted file may ask for before we stop listening."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rankfall.errors import require

MEBI = 1 << 20
GIBI = 1 << 30


@final
@dataclass(frozen=True)
class Limits:
    """Every limit of size is checked on headers and configurations, before anything of that size is allocated."""

    config_bytes: int = 8 * MEBI
    tokenizer_bytes: int = 256 * MEBI
    header_bytes: int = 100 * MEBI
    tensors: int = 200_000
    # Layers, heads, experts, blocks: anything a configuration makes a loop of.
    repeats: int = 10_000
    whole_number: int = 1 << 31
    # A model may be this many times what its files hold while it is being built (tied weights are made twice).
    slack: int = 2
    download_bytes: int = 20 * GIBI
    memory_share: float = 0.8
    # Converting a GGUF file of 135 million parameters takes half a minute on one core; downloading is not counted.
    seconds: float = 600.0


LIMITS = Limits()


def require_size(path: Path, most: int) -> int:
    """The file's size, if it is a plain file no larger than `most` bytes."""
    require(
        path.is_file(),
        required=f"a readable file {path.name}",
        got="a folder" if path.is_dir() else "nothing there",
        remedy="check the path",
    )
    size = path.stat().st_size
    require(
        size <= most,
        required=f"{path.name} of at most {most:,} bytes",
        got=f"{size:,} bytes",
        remedy="no real model needs more; do not trust this file",
    )
    return size


def require_memory(parameters: int, bytes_each: int, limits: Limits = LIMITS) -> None:
    """Refuse a model that would not fit into the memory that is free now."""
    free = free_memory()
    needed = parameters * bytes_each
    require(
        free is None or needed <= limits.memory_share * free,
        required=f"a model that fits into {limits.memory_share:.0%} of the free memory",
        got=f"{parameters:,} parameters, {needed / GIBI:.1f} GiB of {(free or 0) / GIBI:.1f} GiB",
        remedy="use --dtype bfloat16 or a larger machine",
    )


def free_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
