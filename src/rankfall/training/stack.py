"""A stack: cells that train as one program, each a row of parameters with a learning rate of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rankfall.catalogue import RECIPES
from rankfall.errors import require
from rankfall.masks import parse_mask
from rankfall.training.cell import CHUNK, Cell
from rankfall.training.compiled import Program
from rankfall.training.data import Batches
from rankfall.training.encoder import encoder_for
from rankfall.training.heads import head_statistics
from rankfall.training.kernels.layer import layer_misfit
from rankfall.training.parameters import layout
from rankfall.training.recipe import TrainingRecipe, schedule
from rankfall.training.resumable import Resumable


def adam_(
    rows: Tensor,
    grads: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    rates: Tensor,
    alive: Tensor,
    recipe: TrainingRecipe,
) -> None:
    """One step in place. rows, grads, first, second (M, P); step () int64, counted from one; rates (M, 1) or (M, P).

    A model that is not alive keeps its weights; nothing in one row depends on another row.
    """
    decay, square_decay = recipe.betas
    first.lerp_(grads, 1.0 - decay)
    second.mul_(square_decay).addcmul_(grads, grads, value=1.0 - square_decay)
    count = step.double()
    correction = (1.0 - decay**count).to(rows.dtype)
    square_correction = (1.0 - square_decay**count).to(rows.dtype)
    spread = (second / square_correction).sqrt_().add_(recipe.epsilon)
    update = (rates / correction) * first / spread
    rows.sub_(torch.where(alive[:, None], update, torch.zeros_like(update)))


def clipped(grads: Tensor, longest: float) -> Tensor:
    """Rows longer than `longest` scaled down to it."""
    length = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
    return grads * (longest / length.clamp_min(longest))


GLANCE, VERDICT = 4, 64
"""Batches of fresh data for a look on the way, and for the summary."""


def stack_key(cell: Cell) -> tuple[Any, ...]:
    """Cells with equal keys train as one program: they may differ in seed, start, learning rate, data and rank."""
    return (
        cell.task, cell.points, cell.dim, cell.layers, cell.multiplier, cell.heads * cell.value_width,
        cell.norm, cell.norm_placement, cell.mask, cell.positions, cell.width, cell.feed_forward, cell.batch,
        cell.steps, cell.recipe, cell.dtype, cell.warm_up_from,
    )  # fmt: skip


class Stack(Resumable):
    """Cells of one key, in training. Whatever the order on the model axis, results come in the order of `cells`.

    `tf32` lets a GPU round the factors of float32 matrix products to 10 bits; losses after 4000 steps on an H200
    differ by less than they do between seeds. Processors always compute in full precision.
    """

    cells: tuple[Cell, ...]

    def __init__(
        self, cells: Sequence[Cell], device: str | torch.device = "cpu", compile: bool = False, tf32: bool = True
    ) -> None:
        require(len(cells) > 0, required="at least one cell to train", got="none", remedy="give some cells")
        require(
            len({stack_key(cell) for cell in cells}) == 1,
            required="cells of one stack key",
            got=f"{len({stack_key(cell) for cell in cells})} keys",
            remedy="group them by stack_key first",
        )
        self.cells = tuple(cells)
        self.device = torch.device(device)
        # Models of one rank next to each other: attention is called once per distinct rank.
        self._order = sorted(range(len(cells)), key=lambda i: (cells[i].rank, cells[i].value_width))
        ordered = [self.cells[i] for i in self._order]
        self._rank_of = torch.tensor(self._order).argsort()
        first = ordered[0]
        self.recipe = RECIPES[first.recipe]
        self._dtype: torch.dtype = getattr(torch, first.dtype)
        self.layout = layout(first)
        self.encoder = encoder_for(ordered)
        self.batches = Batches(ordered, self.device, compile=compile and self.device.type == "cuda")
        task = first.task_object
        scored = task.scored(first.points, first.dim)
        # Dividing by the number of scored tokens makes the loss a mean over points and a sum over coordinates.
        self._scored = (scored / scored.any(dim=1).sum()).to(self.device, self._dtype)
        self._mask = _mask(first).to(self.device) if first.mask != "complete" else None
        rows = torch.stack([self.layout.initial(cell.seed, cell.start) for cell in ordered])
        base = torch.tensor([[cell.learning_rate] for cell in ordered], dtype=torch.float64)
        if self.recipe.rates:
            base = base * self.layout.rates(self.recipe)[None]
        self._base_rates = base.to(self.device, self._dtype)
        models = len(ordered)
        self._tensors: dict[str, Tensor] = {
            "rows": rows.to(self.device, self._dtype),
            "first": torch.zeros(models, self.layout.size, dtype=self._dtype, device=self.device),
            "second": torch.zeros(models, self.layout.size, dtype=self._dtype, device=self.device),
            "step": torch.zeros((), dtype=torch.int64, device=self.device),
            "alive": torch.ones(models, dtype=torch.bool, device=self.device),
            "best": torch.full((models,), torch.inf, dtype=torch.float64, device=self.device),
            "best_chunk": torch.full((models,), -1, dtype=torch.int64, device=self.device),
            "last": torch.full((models,), torch.nan, dtype=torch.float64, device=self.device),
        }
        self._rates = torch.zeros_like(self._base_rates)
        self._loss_sum = torch.zeros(models, dtype=torch.float64, device=self.device)
        self._weights = self.leaves()
        self.chunks_done = 0
        self.program = Program(self, compile=compile, tf32=tf32)

    # ---- progress

    def advance(self) -> list[dict[str, Any]]:
        """Train one chunk of `CHUNK` steps; one metric row per cell."""
        chunk = self.begin_chunk()
        factor = schedule(chunk, self.chunks_total, self.recipe.warm_up, self.cells[0].warm_up_from)
        self.set_rates(factor)
        for start in range(0, CHUNK, self.batches.window):
            self.batches.fill(chunk * CHUNK + start)
            self.program.run(self.batches.window)
        self.chunks_done += 1
        losses = self._record(chunk)
        fresh = self._fresh(GLANCE)[0] if self.glance_due else None
        return self.chunk_rows(chunk, self._rank_of.tolist(), losses, fresh, factor)

    def _record(self, chunk: int) -> list[float]:
        tensors = self._tensors
        mean = self._loss_sum / CHUNK
        better = tensors["alive"] & (mean < tensors["best"])
        tensors["best"].copy_(torch.where(better, mean, tensors["best"]))
        tensors["best_chunk"].copy_(torch.where(better, chunk, tensors["best_chunk"]))
        tensors["last"].copy_(mean)
        return mean.tolist()

    @property
    def most_steps(self) -> int:
        """Bare steps that one window of batches holds."""
        return self.batches.window

    def set_rates(self, factor: float) -> None:
        """Learning rates from now on: the schedule's factor times each model's own."""
        self._rates.copy_(self._base_rates * factor)

    def run_steps(self, steps: int) -> None:
        """Bare steps on the current window, outside the schedule and the record: for warming up and measuring."""
        self.batches.fill(self.chunks_done * CHUNK)
        self.program.run(steps)

    def rounding(self) -> str:
        """How the factors of matrix products are rounded where TF32 is allowed: to 10 bits.

        The fused kernels take half-precision numbers of as many bits for feed-forward and projections.
        """
        first = self.cells[0]
        fits = layer_misfit("cuda", getattr(torch, first.dtype), first.width, first.feed_forward) is None
        return "tf32 and half" if fits and self.encoder.fused else "tf32"

    def give_up_kernels(self) -> bool:
        """Train on without the fused kernels; False where that is how it trains already."""
        had = self.encoder.fused
        self.encoder = replace(self.encoder, fused=False)
        return had

    # ---- one step, as tensor operations only

    def loss(self, weights: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """(M,) squared distance, summed over coordinates, averaged over points and sequences."""
        error = (self.encoder(weights, inputs, self._mask) - targets).square() * self._scored
        return error.sum(dim=(2, 3)).mean(dim=1)

    def step_(self, position: Tensor, loss_function: Any, adam: Any) -> None:
        """One training step at a position (1,) of the window, in place and without looking at any value."""
        inputs, targets = self.batches.at(position)
        losses = loss_function(self._weights, inputs, targets)
        grads = torch.autograd.grad(losses.sum(), list(self._weights.values()))
        with torch.no_grad():
            tensors = self._tensors
            tensors["alive"].logical_and_(losses.isfinite())
            tensors["step"].add_(1)
            flat = self.layout.join(grads)
            if self.recipe.clip is not None:
                flat = clipped(flat, self.recipe.clip)
            adam(
                tensors["rows"], flat, tensors["first"], tensors["second"], tensors["step"], self._rates,
                tensors["alive"], self.recipe,
            )  # fmt: skip
            self._loss_sum.add_(losses.detach())
            position.add_(1)

    adam = staticmethod(adam_)

    # ---- on data never trained on

    @torch.no_grad()
    def _fresh(self, batches: int) -> tuple[list[float], list[float]]:
        """Mean loss of each model on fresh data and its standard error."""
        means = torch.stack(
            [self.loss(self._weights, *self.batches.evaluation(index)).double() for index in range(batches)]
        )
        return means.mean(dim=0).tolist(), (means.std(dim=0) / batches**0.5).tolist()

    def summaries(self) -> list[dict[str, Any]]:
        """Per cell: what the paper plots, the lowest chunk mean of the training loss, and what it does not."""
        fresh, errors = self._fresh(VERDICT)
        best, best_chunk, last, alive = (self._tensors[n].tolist() for n in ("best", "best_chunk", "last", "alive"))
        finished = self.chunks_done == self.chunks_total
        return [
            {
                "status": "diverged" if not alive[place] else "done" if finished else "unfinished",
                "mse_best": best[place],
                "best_step": (best_chunk[place] + 1) * CHUNK,
                "mse_final": last[place],
                "mse_fresh": fresh[place],
                "mse_fresh_error": errors[place],
                "steps_done": self.chunks_done * CHUNK,
                "heads": cell.heads,
                "parameters": self.layout.parameters,
                "products": self.program.products,
                **head_statistics(cell, self.weights(index)),
            }
            for index, (cell, place) in enumerate(zip(self.cells, self._rank_of.tolist(), strict=True))
        ]

    def weights(self, index: int) -> dict[str, Tensor]:
        """One cell's weights on the CPU, by name, without the model axis."""
        place = int(self._rank_of[index])
        return {name: view[place].detach().cpu().clone() for name, view in self._weights.items()}


def _mask(cell: Cell) -> Tensor:
    allowed = parse_mask(cell.mask).dense(cell.tokens)
    return allowed[:, : cell.task_object.context(cell.points)].contiguous()
