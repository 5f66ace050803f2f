"""Language models in training: cells that differ in seed and learning rate only, as one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankfall.errors import require
from rankfall.training.compiled import Program, without_mixed_reductions
from rankfall.training.kinds import CHUNK, Rows
from rankfall.training.resumable import Resumable
from rankfall.training.stack import clipped
from rankfall.training.text.batches import TextBatches
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import open_corpus
from rankfall.training.text.decoder import Decoder, text_layout
from rankfall.training.text.optimizer import adamw_, matrices, muon_, rate_factor

GLANCE, VERDICT = 1 << 17, 1 << 20
"""Held-out tokens for a look on the way, and for the summary."""


def text_stack_key(cell: TextCell) -> tuple[Any, ...]:
    """Cells train together when they differ in seed and learning rate only."""
    return tuple(dataclasses.asdict(dataclasses.replace(cell, seed=0, learning_rate=1.0)).values())


class TextStack(Resumable):
    """Cells of one key, in training on the corpus that they name, which `folder` holds."""

    cells: tuple[TextCell, ...]

    def __init__(
        self,
        cells: Sequence[TextCell],
        folder: Path,
        device: str | torch.device = "cpu",
        compile: bool = False,
        tf32: bool = True,
    ) -> None:
        require(len(cells) > 0, required="at least one cell to train", got="none", remedy="give some cells")
        require(
            len({text_stack_key(cell) for cell in cells}) == 1,
            required="cells that differ in seed and learning rate only",
            got=f"{len({text_stack_key(cell) for cell in cells})} keys",
            remedy="group them by text_stack_key first",
        )
        self.cells = tuple(cells)
        self.device = torch.device(device)
        first = self.cells[0]
        self.layout = text_layout(first)
        self.decoder = Decoder(first, self.device)
        self.batches = TextBatches(cells, open_corpus(first.corpus, folder), self.device)
        kept = torch.float64 if first.dtype == "float64" else torch.float32
        models, size = len(cells), self.layout.size
        rows = torch.stack([self.layout.initial(cell.seed) for cell in cells]).to(self.device, kept)
        self._tensors: dict[str, Tensor] = {
            "rows": rows,
            "first": torch.zeros_like(rows),
            "second": torch.zeros_like(rows),
            "step": torch.zeros((), dtype=torch.int64, device=self.device),
            "alive": torch.ones(models, dtype=torch.bool, device=self.device),
            "last": torch.full((models,), torch.nan, dtype=torch.float64, device=self.device),
        }
        if first.optimizer == "muon":
            self._tensors["momentum"] = torch.zeros_like(rows)
        self._matrices = matrices(self.layout)
        is_matrix = torch.zeros(size, dtype=torch.bool)
        for slot in self._matrices:
            is_matrix[slot.offset : slot.offset + slot.size] = True
        self._is_matrix = is_matrix.to(self.device)
        self._decay = self._is_matrix * first.weight_decay
        self._base_rates = torch.tensor([[cell.learning_rate] for cell in cells], dtype=kept, device=self.device)
        self._loss_sum = torch.zeros(models, dtype=torch.float64, device=self.device)
        self._weights = self.leaves()
        self.chunks_done = 0
        self.program = Program(self, compile=compile, tf32=tf32)

    # ---- progress

    @property
    def most_steps(self) -> int:
        """Bare steps in a row."""
        return CHUNK

    def advance(self) -> Rows:
        """Train one chunk of `CHUNK` steps; one metric row per cell."""
        chunk, first = self.begin_chunk(), self.cells[0]
        self.program.run(CHUNK)
        self.chunks_done += 1
        means = self._loss_sum / CHUNK
        self._tensors["last"].copy_(means)
        fresh = self.held_out(GLANCE)["nats_per_byte"] if self.glance_due else None
        factor = float(rate_factor(self._tensors["step"], first.steps, first.warm_up))
        return self.chunk_rows(chunk, range(len(self.cells)), means.tolist(), fresh, factor)

    def run_steps(self, steps: int) -> None:
        """Bare steps outside the record: for warming up and measuring."""
        self.program.run(steps)

    def rounding(self) -> str:
        """How the factors of matrix products are rounded where TF32 is allowed."""
        return "bfloat16" if self.cells[0].dtype == "bfloat16" else "tf32"

    def give_up_kernels(self) -> bool:
        """There are none of its own to go without."""
        return False

    @property
    def compiler_options(self) -> dict[str, Any]:
        """Gains have a model axis, often of one."""
        return without_mixed_reductions()

    # ---- one step, as tensor operations only

    def loss(self, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """(M,) mean nats of the next token."""
        return self.decoder.nats(weights, tokens).mean(dim=(1, 2))

    def step_(self, position: Tensor, loss_function: Any, adam: Any) -> None:
        """One training step, in place and without looking at any value."""
        tensors = self._tensors
        losses = loss_function(self._weights, self.batches.at(tensors["step"]))
        grads = torch.autograd.grad(losses.sum(), list(self._weights.values()))
        with torch.no_grad():
            tensors["alive"].logical_and_(losses.isfinite())
            tensors["step"].add_(1)
            adam(self.layout.join(grads))
            self._loss_sum.add_(losses.detach())
            position.add_(1)

    def adam(self, grads: Tensor) -> None:
        """Clip and move: AdamW everywhere, or Muon for matrices. A model that is not alive keeps its weights."""
        cell, tensors = self.cells[0], self._tensors
        rows, step = tensors["rows"], tensors["step"]
        grads = clipped(grads, cell.clip)
        rates = self._base_rates * rate_factor(step, cell.steps, cell.warm_up).to(rows.dtype)
        change = adamw_(rows, grads, tensors["first"], tensors["second"], step, rates, self._decay)
        if cell.optimizer == "muon":
            moved = muon_(rows, grads, tensors["momentum"], rates, cell.weight_decay, self._matrices)
            change = torch.where(self._is_matrix, moved, change)
        rows.add_(torch.where(tensors["alive"][:, None], change, torch.zeros_like(change)))

    # ---- on text never trained on

    @torch.no_grad()
    def held_out(self, most_tokens: int) -> dict[str, list[float]]:
        """Per model: nats per byte of held-out text with its standard error over windows, and nats per token."""
        count = max(1, min(self.batches.windows, most_tokens // self.cells[0].context))
        nats, sizes = [], []
        for start in range(0, count, self.cells[0].batch):
            tokens, size = self.batches.held_out_windows(start, min(self.cells[0].batch, count - start))
            found = self.decoder.nats(self._weights, tokens.expand(len(self.cells), -1, -1))
            nats.append(found.double().sum(dim=2))
            sizes.append(size.sum(dim=1).double())
        by_window, bytes_seen = torch.cat(nats, dim=1), torch.cat(sizes)
        per_byte = by_window.sum(dim=1) / bytes_seen.sum()
        # windows differ in bytes: the error of a ratio
        rest = by_window - per_byte[:, None] * bytes_seen
        error = (rest.square().sum(dim=1) * count / max(1, count - 1)).sqrt() / bytes_seen.sum()
        return {
            "nats_per_byte": per_byte.tolist(),
            "nats_per_byte_error": error.tolist(),
            "nats_per_token": (by_window.mean(dim=1) / self.cells[0].context).tolist(),
        }

    def summaries(self) -> Rows:
        """Per cell: nats per byte of held-out text, the training loss at the end, sizes and operations."""
        measured = self.held_out(VERDICT)
        last, alive = (self._tensors[name].tolist() for name in ("last", "alive"))
        finished = self.chunks_done == self.chunks_total
        return [
            {
                "status": "diverged" if not alive[place] else "done" if finished else "unfinished",
                **{name: values[place] for name, values in measured.items()},
                "unigram_nats_per_byte": self.batches.unigram,
                "training_nats_per_token": last[place],
                "steps_done": self.chunks_done * CHUNK,
                "parameters": self.layout.parameters,
                "tokens_trained": self.chunks_done * CHUNK * cell.batch * cell.context,
                "training_flops": self.chunks_done * CHUNK * cell.batch * cell.context * cell.token_flops,
                "products": self.program.products,
            }
            for place, cell in enumerate(self.cells)
        ]

    def weights(self, index: int) -> dict[str, Tensor]:
        """One cell's weights on the CPU, by name, without the model axis."""
        return {name: view[index].detach().cpu().clone() for name, view in self._weights.items()}
