"""How a sweep is run, apart from what it trains: nothing here changes a cell's identity."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rankfall.errors import LARGEST, require, require_count, require_number
from rankfall.store.run import SUMMARY, WEIGHTS


@dataclass(frozen=True)
class Options:
    """Plain values, so that they travel to other machines as JSON."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:1; auto is the GPU where there is one."""
    max_stack: int | None = None
    """Most cells in one program; None for as many as memory and good sense allow."""
    memory: int | None = None
    """Bytes that a stack may take; None for what is free."""
    compile: bool | None = None
    """None: on GPUs, where compiling pays."""
    tf32: bool = True
    """Matrix products in TF32 on GPUs that have it: faster, with 10 bits of mantissa. Processors do not know it."""
    threads: int | None = None
    """Processor threads of one training process; None for as many of PyTorch's as the steps of a stack pay for."""
    checkpoint_seconds: float = 60.0
    """Training time between two checkpoints."""
    weights: bool = False
    """Train also cells that are in the store without weights, since their results were imported."""
    tensorboard: str | None = None
    """Folder for TensorBoard logs."""
    take_over: bool = False
    """Take cells that a process of another machine has claimed, without waiting for its silence."""
    address: str | None = None
    """Address of a running Ray cluster."""

    def __post_init__(self) -> None:
        for name, most in (("max_stack", LARGEST), ("threads", 4096), ("memory", 2**63)):
            if getattr(self, name) is not None:
                require_count(name.replace("_", "-"), getattr(self, name), most=most)
        require(
            self.device in ("auto", "cpu") or self.device.startswith("cuda"),
            required="a device: auto, cpu or cuda",
            got=self.device,
            remedy="auto takes the GPU where there is one",
        )
        require_number("seconds between checkpoints", self.checkpoint_seconds, least=0)

    @property
    def parts(self) -> tuple[str, ...]:
        """The files that make a cell count as finished."""
        return (SUMMARY, WEIGHTS) if self.weights else (SUMMARY,)


def resolve_device(device: str) -> str:
    """The device that `auto` stands for here; a GPU that is not there is an error."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    require(
        device == "cpu" or torch.cuda.is_available(),
        required=f"a GPU for device {device[:40]}",
        got="none that PyTorch can use",
        remedy="choose cpu, or install PyTorch with CUDA",
    )
    return device
