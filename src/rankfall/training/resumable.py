"""What stacks have in common: chunks, and tensors, on the device for undoing and on the CPU for going on later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rankfall.errors import require
from rankfall.training.kinds import CHUNK, Rows
from rankfall.training.parameters import Layout

# How often in a run data never trained on are looked at.
GLANCES = 20


class Resumable(ABC):
    """A stack whose whole state are named tensors, a sum of losses and a count of chunks."""

    cells: Sequence[Any]
    layout: Layout
    _tensors: dict[str, Tensor]
    _loss_sum: Tensor
    chunks_done: int

    @property
    def chunks_total(self) -> int:
        """Chunks of the whole run."""
        return int(self.cells[0].chunks)

    @property
    def compiler_options(self) -> dict[str, Any]:
        """What PyTorch's compiler is told about the loss besides its defaults."""
        return {}

    @abstractmethod
    def run_steps(self, steps: int) -> None:
        """Bare steps, outside the record."""

    def leaves(self) -> dict[str, Tensor]:
        """The weights by name, each a view of the models' rows that gradients are taken of."""
        return {
            name: view.detach().requires_grad_() for name, view in self.layout.views(self._tensors["rows"]).items()
        }

    def begin_chunk(self) -> int:
        """The number of the chunk to train, its losses summed from zero."""
        require(
            self.chunks_done < self.chunks_total,
            required=f"a stack with chunks left of its {self.chunks_total}",
            got=f"{self.chunks_done} done",
            remedy="ask for summaries() instead",
        )
        self._loss_sum.zero_()
        return self.chunks_done

    @property
    def glance_due(self) -> bool:
        """Whether data never trained on are looked at now: GLANCES times in a run, and at its end."""
        every = max(1, self.chunks_total // GLANCES)
        return self.chunks_done % every == 0 or self.chunks_done == self.chunks_total

    def chunk_rows(
        self, chunk: int, places: Sequence[int], losses: Sequence[float], fresh: Sequence[float] | None, factor: float
    ) -> Rows:
        """One metric row per cell, whose model lies at its place; `factor` is the schedule's."""
        alive = self._tensors["alive"].tolist()
        return [
            {
                "chunk": chunk,
                "step": (chunk + 1) * CHUNK,
                "loss": losses[place],
                "fresh": None if fresh is None else fresh[place],
                "learning_rate": cell.learning_rate * factor,
                "diverged": not alive[place],
            }
            for cell, place in zip(self.cells, places, strict=True)
        ]

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
