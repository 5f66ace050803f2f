"""What a stack of attention layers costs, counted: parameters, FLOPs, bytes of key/value cache.

Conventions: a multiplication and an addition are two FLOPs; the backward pass costs twice the forward pass; a query
is charged for all `context` keys (a causal kernel that skips the masked half does less); norms, softmax, biases and
embeddings are left out, being small or the same for every candidate.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankfall.errors import require, require_count


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
        for name in ("dim", "layers", "context", "heads", "rank", "kv_heads", "value_rank"):
            require_count(name, getattr(self, name))
        require_count("hidden", self.hidden, least=0)
        require(
            self.rank <= self.dim,
            required=f"a rank of at most the width {self.dim}",
            got=self.rank,
            remedy="a head cannot have more rank than its tokens have coordinates",
        )
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
