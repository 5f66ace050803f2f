"""What a stack of attention layers costs: parameters, FLOPs and cache bytes counted, a training step timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import relu, scaled_dot_product_attention

from rankfall.errors import require, require_count
from rankfall.progress import Progress, silent

MOST_STEPS = 20
OVERTIME = 3


@dataclass(frozen=True)
class StackShape:
    """A stack of equal layers: d, H, r, key/value heads g, value rank v, a feed-forward block of `hidden` units."""

    dim: int
    layers: int
    context: int
    heads: int
    rank: int
    kv_heads: int
    value_rank: int
    hidden: int = 0

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "context", "heads", "kv_heads", "value_rank"):
            require_count(name, getattr(self, name))
        require_count("rank", self.rank, most=self.dim, remedy="a head's rank cannot exceed the width of its tokens")
        require_count("hidden", self.hidden, least=0)
        require(
            self.heads % self.kv_heads == 0,
            required="heads to be a multiple of the key/value heads",
            got=f"{self.heads} heads, {self.kv_heads} key/value heads",
            remedy="every key/value head serves the same number of query heads",
        )

    @property
    def attention_parameters(self) -> int:
        """d (H r + g r + g v + H v) per layer: queries, keys, values, output."""
        per_layer = self.dim * (self.heads + self.kv_heads) * (self.rank + self.value_rank)
        return self.layers * per_layer

    @property
    def parameters(self) -> int:
        """Attention and feed-forward weights of all layers; without embeddings."""
        return self.attention_parameters + self.layers * 2 * self.dim * self.hidden

    @property
    def forward_flops(self) -> int:
        """FLOPs of one token in a forward pass that sees `context` keys: 2 per weight, 2 n H (r + v) per layer."""
        mixing = self.layers * 2 * self.context * self.heads * (self.rank + self.value_rank)
        return 2 * self.parameters + mixing

    @property
    def training_flops(self) -> int:
        """FLOPs of one training step on one sequence of `context` tokens, forward and backward."""
        return 3 * self.context * self.forward_flops

    @property
    def decoding_flops(self) -> int:
        """FLOPs to generate one token when `context` keys and values are cached: one token's forward pass."""
        return self.forward_flops

    def kv_cache_bytes(self, bytes_per_number: int = 2) -> int:
        """Keys and values of one sequence of `context` tokens: L n g (r + v) numbers."""
        numbers = self.layers * self.context * self.kv_heads * (self.rank + self.value_rank)
        return numbers * bytes_per_number


@dataclass(frozen=True)
class Timing:
    """The median over this many timed steps."""

    seconds: float
    steps: int


@dataclass(frozen=True)
class Stopwatch:
    """Times shapes, all of them within about `seconds`, but each at least once after a warm-up.

    Where even that takes more than OVERTIME times as long, the shapes not yet reached stay without a time. They are
    visited in order and then, while there is time, in reverse, so that a machine that slows down or speeds up
    meanwhile does not favour one end of the table.
    """

    seconds: float = 60.0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    clock: Callable[[], float] = time.perf_counter

    def measure(self, shapes: Sequence[StackShape], progress: Progress = silent) -> dict[StackShape, Timing]:
        """The time of a training step of one sequence: a layer's, forward and backward, times the layers."""
        durations: dict[StackShape, list[float]] = {shape: [] for shape in shapes}
        start = self.clock()
        for visit, shape in enumerate((*shapes, *reversed(shapes))):
            left = self.seconds - (self.clock() - start)
            reached = any(durations.values())
            if (durations[shape] and left <= 0) or (reached and left < (1 - OVERTIME) * self.seconds):
                break
            durations[shape] += self._visit(shape, left / (2 * len(shapes) - visit))
            progress(f"{shape.heads} heads of rank {shape.rank}", (visit + 1) / (2 * len(shapes)))
        return {
            shape: Timing(statistics.median(found) * shape.layers, len(found))
            for shape, found in durations.items()
            if found
        }

    def _visit(self, shape: StackShape, seconds: float) -> list[float]:
        """Durations of single steps after an untimed one, while the next can be expected to fit into the time."""
        step = layer_step(shape, self.device, self.dtype)
        step()
        self._finish()
        durations: list[float] = []
        start = now = self.clock()
        while not durations or (now - start + durations[-1] < seconds and len(durations) < MOST_STEPS):
            before = self.clock()
            step()
            self._finish()
            now = self.clock()
            durations.append(now - before)
        return durations

    def _finish(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def layer_step(shape: StackShape, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    """A function that runs one pre-norm layer of this shape forward and backward on one sequence; it gives the loss.

    Attention is the library's fused kernel, causal, with shared key/value heads repeated where it needs them; the
    weights are random, for time does not depend on them.
    """
    generator = torch.Generator().manual_seed(0)
    d, h, g, r, v = shape.dim, shape.heads, shape.kv_heads, shape.rank, shape.value_rank
    sizes = {"q": (d, h * r), "k": (d, g * r), "v": (d, g * v), "o": (h * v, d)}
    if shape.hidden:
        sizes |= {"up": (d, shape.hidden), "down": (shape.hidden, d)}
    weights = {
        name: (torch.randn(size, generator=generator) * size[0] ** -0.5).to(device, dtype).requires_grad_()
        for name, size in sizes.items()
    }
    tokens = torch.randn(1, shape.context, d, generator=generator).to(device, dtype).requires_grad_()

    def split(projected: Tensor, heads: int) -> Tensor:
        return projected.unflatten(-1, (heads, -1)).transpose(-2, -3)

    def step() -> Tensor:
        for tensor in (*weights.values(), tokens):
            tensor.grad = None
        normed = torch.nn.functional.layer_norm(tokens, (d,))
        query, key, value = (split(normed @ weights[n], c) for n, c in (("q", h), ("k", g), ("v", g)))
        if g != h:
            key, value = key.repeat_interleave(h // g, dim=1), value.repeat_interleave(h // g, dim=1)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = tokens + mixed.transpose(-2, -3).flatten(-2) @ weights["o"]
        if shape.hidden:
            normed = torch.nn.functional.layer_norm(stream, (d,))
            stream = stream + relu(normed @ weights["up"]) @ weights["down"]
        loss = stream.square().mean()
        loss.backward()
        return loss

    return step
