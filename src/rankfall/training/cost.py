"""What a cell costs before it is trained: floating-point operations, and the memory there is to train it in."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from rankfall.training.cell import Cell

GPU_SHARE = 0.85
"""Of free device memory; the rest is for the allocator's rounding and what libraries keep."""

RAM_SHARE = 0.5
"""Of available memory; a laptop has other things to do."""


def step_flops(cell: Cell) -> float:
    """Floating-point operations of one training step of one cell: 2 per multiply-add, backward twice the forward.

    Per layer and token: projections 2 width (2 H r + 2 H v), scores and mixing 2 context H (r + v), and the
    feed-forward 4 width f. Asking tokens and context are both taken as all tokens, which is exact for self-attention.
    """
    scored, valued = cell.heads * cell.rank, cell.heads * cell.value_width
    projections = 4 * cell.width * (scored + valued)
    mixing = 2 * cell.tokens * (scored + valued)
    feed_forward = 4 * cell.width * cell.feed_forward
    return 3.0 * cell.batch * cell.tokens * cell.layers * (projections + mixing + feed_forward)


def cell_flops(cell: Cell) -> float:
    """Floating-point operations of a whole run."""
    return step_flops(cell) * cell.steps


def memory_budget(device: str) -> int:
    """Bytes that a stack may take on this machine now."""
    if device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_SHARE)
    return int(_available_ram() * RAM_SHARE)


def _available_ram() -> int:
    """Free memory of the machine, or of the container when that is less."""
    bounds = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        bounds.append(max(0, int(most) - int(used.read_text())))
    return min(bounds)
