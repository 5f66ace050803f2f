"""What a stack of attention layers costs: parameters, FLOPs and cache bytes counted, a training step timed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import relu, scaled_dot_product_attention, silu

from rankfall.errors import require, require_count
from rankfall.progress import Progress, silent
from rankfall.theory.head_bounds import structural_rank

MOST_STEPS = 20
OVERTIME = 3
MOST_WIDTH, MOST_LAYERS, MOST_CONTEXT, MOST_UNITS = 2**18, 10_000, 2**30, 2**24
"""Larger than anything built; beyond them a request is a slip of the keyboard."""
FEED_FORWARD = ("up", "down", "gate")
KEYS_AND_VALUES = ("latent", "k", "v")
"""Maps that a layer does not have where it uses the keys and values of an earlier one."""


@dataclass(frozen=True)
class StackShape:
    """A stack of equal layers: d, H, r, key/value heads g, value rank v, a feed-forward block of `hidden` units.

    `gated`: the block has three maps (SwiGLU, GeGLU) instead of two. `windowed` of the layers see, and cache, the
    last `window` tokens only. `shared` of them have no keys and values of their own and use those of an earlier
    layer; `shared_windowed` of those have the window.

    With a `kv_latent` keys and values of all heads are read from one vector of that size per token, and `rope_dims`
    further numbers are a part of the key that all heads share: these two are all that a cache holds. With a
    `q_latent` queries are read from a vector of that size.
    """

    dim: int
    layers: int
    context: int
    heads: int
    rank: int
    kv_heads: int
    value_rank: int
    hidden: int = 0
    gated: bool = False
    window: int = 0
    windowed: int = 0
    shared: int = 0
    shared_windowed: int = 0
    kv_latent: int = 0
    q_latent: int = 0
    rope_dims: int = 0

    def __post_init__(self) -> None:
        require_count("width", self.dim, most=MOST_WIDTH)
        require_count("layers", self.layers, most=MOST_LAYERS)
        require_count("context", self.context, most=MOST_CONTEXT)
        for name in ("heads", "kv_heads", "value_rank"):
            require_count(name, getattr(self, name), most=MOST_UNITS)
        require_count("rank", self.rank, most=self.dim, remedy="a head's rank cannot exceed the width of its tokens")
        require_count("hidden", self.hidden, least=0, most=MOST_UNITS)
        require_count("window", self.window, least=0, most=MOST_CONTEXT)
        require_count("windowed layers", self.windowed, least=0, most=self.layers)
        require_count("shared layers", self.shared, least=0, most=self.layers - 1)
        for name in ("kv_latent", "q_latent", "rope_dims"):
            require_count(name, getattr(self, name), least=0, most=MOST_UNITS)
        self._require_consistent()

    def _require_consistent(self) -> None:
        require(
            (self.window > 0) == (self.windowed > 0),
            required="a window and the number of layers that have it",
            got=f"a window of {self.window} in {self.windowed} layers",
            remedy="give both or neither",
        )
        require(
            self.heads % self.kv_heads == 0,
            required="heads to be a multiple of the key/value heads",
            got=f"{self.heads} heads, {self.kv_heads} key/value heads",
            remedy="every key/value head serves the same number of query heads",
        )
        require(
            not self.kv_latent or (self.kv_heads == self.heads and self.rope_dims < self.rank),
            required="with a latent, a key for every head and a rank above the part of the key that heads share",
            got=f"{self.kv_heads} key/value heads for {self.heads} heads of rank {self.rank} ({self.rope_dims})",
            remedy="leave key/value heads and groups out, and raise the rank",
        )
        require(
            bool(self.kv_latent) or not self.rope_dims,
            required="a key/value latent beside rope_dims, the part of the key that does not come from it",
            got=f"rope_dims {self.rope_dims} without one",
            remedy="give the size of the latent, or leave rope_dims out",
        )
        own_windowed = self.windowed - self.shared_windowed
        require(
            0 <= self.shared_windowed <= self.shared and 0 <= own_windowed <= self.layers - self.shared,
            required="shared layers with the window among the shared ones and among the windowed ones",
            got=f"{self.shared_windowed} of {self.shared} shared, {self.windowed} windowed of {self.layers} layers",
            remedy="give shared_windowed so that both counts can be true",
        )

    @property
    def maps(self) -> dict[str, tuple[int, int]]:
        """The weight matrices of one layer by name, inputs by outputs."""
        d, h, g, r, v = self.dim, self.heads, self.kv_heads, self.rank, self.value_rank
        made = {"q": (d, h * r), "k": (d, g * r), "v": (d, g * v), "o": (h * v, d)}
        if c := self.kv_latent:
            p = self.rope_dims
            made |= {"latent": (d, c + p), "k": (c, h * (r - p)), "v": (c, h * v)}
        if q := self.q_latent:
            made |= {"q_latent": (d, q), "q": (q, h * r)}
        if self.hidden:
            made |= {"up": (d, self.hidden), "down": (self.hidden, d)}
        if self.hidden and self.gated:
            made["gate"] = (d, self.hidden)
        return made

    @property
    def structural_rank(self) -> int:
        """The largest rank that the query/key form of a head of this shape can have."""
        return structural_rank(
            self.rank, self.dim, kv_latent=self.kv_latent, q_latent=self.q_latent, rope_dims=self.rope_dims
        )

    @property
    def attention_parameters(self) -> int:
        """d (H r + g r + g v + H v) per layer: queries, keys, values, output; with latents, the maps through them;
        layers that share keys and values have neither."""
        return self._weights_of(lambda name: name not in FEED_FORWARD)

    @property
    def parameters(self) -> int:
        """Attention and feed-forward weights of all layers; without embeddings."""
        return self._weights_of(lambda name: True)

    def _weights_of(self, wanted: Callable[[str], bool]) -> int:
        return sum(
            inputs * outputs * (self.layers - self.shared if name in KEYS_AND_VALUES else self.layers)
            for name, (inputs, outputs) in self.maps.items()
            if wanted(name)
        )

    @property
    def keys_seen(self) -> int:
        """Keys that one token sees, summed over layers."""
        return (self.layers - self.windowed) * self.context + self.windowed * min(self.context, self.window)

    @property
    def tokens_cached(self) -> int:
        """Tokens whose keys and values a cache of `context` tokens holds, summed over layers that have their own."""
        windowed = self.windowed - self.shared_windowed
        return (self.layers - self.shared - windowed) * self.context + windowed * min(self.context, self.window)

    @property
    def forward_flops(self) -> int:
        """FLOPs of one token in a forward pass that sees `context` keys: 2 per weight, 2 n H (r + v) per layer."""
        mixing = 2 * self.keys_seen * self.heads * (self.rank + self.value_rank)
        return 2 * self.parameters + mixing

    @property
    def training_flops(self) -> int:
        """FLOPs of one training step on one sequence of `context` tokens, forward and backward."""
        return 3 * self.context * self.forward_flops

    @property
    def decoding_flops(self) -> int:
        """FLOPs to generate one token when `context` keys and values are cached: one token's forward pass.

        From a latent keys and values are not made again for every cached token: each head's query is brought into
        the latent and compared there, and the mixed latents are brought out once, 2 n H (2 c + p) per layer.
        """
        if not self.kv_latent:
            return self.forward_flops
        return 2 * self.parameters + 2 * self.keys_seen * self.heads * (2 * self.kv_latent + self.rope_dims)

    @property
    def cached_per_token(self) -> int:
        """Numbers that a layer caches for one token: g (r + v), or the latent and the part of the key beside it."""
        if self.kv_latent:
            return self.kv_latent + self.rope_dims
        return self.kv_heads * (self.rank + self.value_rank)

    def kv_cache_bytes(self, bytes_per_number: int = 2) -> int:
        """The cache of one sequence of `context` tokens."""
        return self.tokens_cached * self.cached_per_token * bytes_per_number

    @property
    def words(self) -> str:
        """How keys and values are kept, in words; empty where every layer has its own for all tokens."""
        said = []
        if self.kv_latent:
            beside = f" and {self.rope_dims} rotary dimensions beside it" if self.rope_dims else ""
            said.append(f"keys and values from a latent of {self.kv_latent}{beside}")
        if self.q_latent:
            said.append(f"queries from a latent of {self.q_latent}")
        if self.windowed:
            said.append(f"{self.windowed} of {self.layers} layers see the last {self.window} tokens")
        if self.shared:
            among = f", {self.shared_windowed} of them with the window" if self.windowed else ""
            said.append(f"{self.shared} layers use keys and values of an earlier layer{among}")
        return "; ".join(said)


@dataclass(frozen=True)
class Timing:
    """The median over this many timed steps."""

    seconds: float
    steps: int


@dataclass(frozen=True)
class Stopwatch:
    """Times shapes, all of them within about `seconds`, but each at least once after a warm-up.

    Where even that takes more than OVERTIME times as long, the shapes not yet reached stay without a time; those of
    which two steps alone would take longer than `seconds`, by the speed of a matrix product, are not begun. The
    others are visited in order and then, while there is time, in reverse, so that a machine that slows down or
    speeds up meanwhile does not favour one end of the table.
    """

    seconds: float = 60.0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    clock: Callable[[], float] = time.perf_counter

    def measure(self, shapes: Sequence[StackShape], progress: Progress = silent) -> dict[StackShape, Timing]:
        """The time of a training step of one sequence: a layer's, forward and backward, times the layers."""
        rate = products_a_second(self.device, self.dtype)
        shapes = [shape for shape in shapes if 2 * shape.training_flops / shape.layers / rate < self.seconds]
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


def products_a_second(device: str, dtype: torch.dtype, size: int = 1024, repeats: int = 3) -> float:
    """Floating-point operations a second of a square matrix product: more than attention reaches."""
    square = torch.ones(size, size, device=device, dtype=dtype)
    took = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        float((square @ square)[0, 0])  # reading a number waits for the device
        took = min(took, time.perf_counter() - start)
    return 2 * size**3 / took


def step_bytes(shape: StackShape) -> int:
    """About what `layer_step` keeps in float32: weights with gradients, and activations of one sequence."""
    weights = sum(inputs * outputs for inputs, outputs in shape.maps.values())
    activations = shape.context * sum(outputs for _, outputs in shape.maps.values())
    return 4 * (2 * weights + 3 * activations)


def layer_step(shape: StackShape, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    """A function that runs one pre-norm layer of this shape forward and backward on one sequence; it gives the loss.

    Attention is the library's fused kernel, causal, with shared key/value heads repeated where it needs them; the
    weights are random, for time does not depend on them. A window is not used: every layer sees all tokens; nor is
    sharing across layers: every layer makes its own keys and values.
    """
    generator = torch.Generator().manual_seed(0)
    d, h, g = shape.dim, shape.heads, shape.kv_heads
    weights = {
        name: (torch.randn(size, generator=generator) * size[0] ** -0.5).to(device, dtype).requires_grad_()
        for name, size in shape.maps.items()
    }
    tokens = torch.randn(1, shape.context, d, generator=generator).to(device, dtype).requires_grad_()

    def split(projected: Tensor, heads: int) -> Tensor:
        return projected.unflatten(-1, (heads, -1)).transpose(-2, -3)

    def keys_and_values(normed: Tensor) -> tuple[Tensor, Tensor]:
        if not shape.kv_latent:
            return split(normed @ weights["k"], g), split(normed @ weights["v"], g)
        latent, rope = (normed @ weights["latent"]).split([shape.kv_latent, shape.rope_dims], dim=-1)
        own = split(latent @ weights["k"], h)
        return torch.cat([own, split(rope, 1).expand(-1, h, -1, -1)], dim=-1), split(latent @ weights["v"], h)

    def step() -> Tensor:
        for tensor in (*weights.values(), tokens):
            tensor.grad = None
        normed = torch.nn.functional.layer_norm(tokens, (d,))
        asked = normed @ weights["q_latent"] if "q_latent" in weights else normed
        query, (key, value) = split(asked @ weights["q"], h), keys_and_values(normed)
        if g != h:
            key, value = key.repeat_interleave(h // g, dim=1), value.repeat_interleave(h // g, dim=1)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = tokens + mixed.transpose(-2, -3).flatten(-2) @ weights["o"]
        if shape.hidden:
            normed = torch.nn.functional.layer_norm(stream, (d,))
            hidden = normed @ weights["up"]
            active = silu(normed @ weights["gate"]) * hidden if shape.gated else relu(hidden)
            stream = stream + active @ weights["down"]
        loss = stream.square().mean()
        loss.backward()
        return loss

    return step
