"""Models larger than one device: spread by the accelerate package over all GPUs, then host memory, then the disk.

Weights are read once, shard by shard, to where they stay. Those that stay on disk are read from the model's own files
each time their module runs; nothing is written, unless their numbers are to have another precision than the files'.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from rankfall.errors import require
from rankfall.models.load.guards import GIBI, LIMITS
from rankfall.models.recording.placement import offloading
from rankfall.system import available_memory, require_device

AUTO = "auto"
# Left free on every GPU for what an audit computes there.
ROOM = 6 * GIBI


def require_place(device: str) -> None:
    """A device that this machine has, or `auto` where accelerate is installed."""
    if device != AUTO:
        require_device(device)
        return
    require(
        find_spec("accelerate") is not None,
        required="the accelerate package for --device auto",
        got="an environment without it",
        remedy="pip install 'rankfall[large]', or use --device cpu or cuda",
    )


def room() -> dict[int | str, int]:
    """Bytes that may be filled with weights, by device; the disk takes the rest."""
    cards = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    free: dict[int | str, int] = {card: max(0, torch.cuda.mem_get_info(card)[0] - ROOM) for card in cards}
    return {**free, "cpu": int(LIMITS.memory_share * available_memory())}


def spreading(device: str, undo: contextlib.ExitStack) -> dict[str, Any]:
    """What the library is told when it loads; nothing for a single device. `undo` must outlive the model."""
    if device != AUTO:
        return {}
    folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="rankfall-offload-"))
    return {"device_map": AUTO, "max_memory": room(), "offload_folder": folder}


def settle(network: nn.Module, device: str, undo: contextlib.ExitStack) -> None:
    """Move the model to its device, or leave it where it was spread to; call it while the files' links are there."""
    if device != AUTO:
        network.to(device)
        return
    for module in network.modules():
        if (hook := offloading(module)) is not None:
            index = getattr(getattr(hook.weights_map, "dataset", None), "index", {})
            for entry in index.values():
                if "safetensors_file" in entry:
                    entry["safetensors_file"] = os.path.realpath(entry["safetensors_file"])
    weakref.finalize(network, undo.pop_all().close)
