"""What every stack keeps and gives back: its tensors, on the device for undoing and on the CPU for going on later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rankfall.errors import require


class Resumable(ABC):
    """A stack whose whole state are named tensors, a sum of losses and a count of chunks."""

    _tensors: dict[str, Tensor]
    _loss_sum: Tensor
    chunks_done: int

    @property
    def compiler_options(self) -> dict[str, Any]:
        """What PyTorch's compiler is told about the loss besides its defaults."""
        return {}

    @abstractmethod
    def run_steps(self, steps: int) -> None:
        """Bare steps, outside the record."""

    def prepare(self) -> None:
        """Compile and capture what there is to compile and capture, leaving the models as they are."""
        before = self.snapshot()
        self.run_steps(1)
        self.rewind(before)

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on bit for bit. Streams are counted, so that they need no state."""
        kept = {name: tensor.detach().cpu().clone() for name, tensor in self._tensors.items()}
        return {**kept, "chunks_done": torch.tensor(self.chunks_done)}

    def snapshot(self) -> dict[str, Tensor]:
        """What a step changes, on the device."""
        return {name: tensor.clone() for name, tensor in {**self._tensors, "loss_sum": self._loss_sum}.items()}

    def rewind(self, snapshot: Mapping[str, Tensor]) -> None:
        """Undo the steps since a `snapshot()`."""
        for name, tensor in {**self._tensors, "loss_sum": self._loss_sum}.items():
            tensor.copy_(snapshot[name])

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state()` of a stack of the same cells."""
        for name, tensor in self._tensors.items():
            found = state.get(name)
            require(
                found is not None and found.shape == tensor.shape and found.dtype == tensor.dtype,
                required=f"a state whose {name} has shape {tuple(tensor.shape)}, {tensor.dtype}",
                got="nothing of that name" if found is None else f"{tuple(found.shape)}, {found.dtype}",
                remedy="restore a state taken from a stack of the same cells",
            )
            assert found is not None
            tensor.copy_(found)
        self.chunks_done = int(state["chunks_done"])
