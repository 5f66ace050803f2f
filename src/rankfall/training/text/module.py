"""A trained language model as an ordinary PyTorch module: to run, to audit, to take elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankfall.masks import parse_mask
from rankfall.norms import Norm, parse_norm
from rankfall.training.text.cell import TextCell
from rankfall.training.text.decoder import rotary_table


class TextModel(nn.Module):
    """Token ids (B, T) to logits (B, T, vocabulary)."""

    def __init__(self, cell: TextCell) -> None:
        super().__init__()
        self.cell = cell
        self.embedding = nn.Embedding(cell.embedding_rows, cell.width)
        self.positions = nn.Embedding(cell.context, cell.width) if cell.positions == "learned" else None
        self.blocks = nn.ModuleList(TextBlock(cell, layer + 1) for layer in range(cell.layers))
        self.final_norm = TextNorm(parse_norm(cell.norm), cell.width)
        self.unembedding = nn.Linear(cell.width, cell.embedding_rows, bias=False)
        if cell.tied:
            self.unembedding.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token at every place."""
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.unembedding(self.final_norm(x))[..., : self.cell.vocabulary]


class TextBlock(nn.Module):
    """Attention and a feed-forward, each after a norm and beside the stream."""

    def __init__(self, cell: TextCell, depth: int) -> None:
        super().__init__()
        norm = parse_norm(cell.norm).at(depth)
        self.attention_norm = TextNorm(norm, cell.width)
        self.attention = TextAttention(cell)
        self.feed_forward_norm = TextNorm(norm, cell.width)
        self.feed_forward = TextFeedForward(cell)

    def forward(self, x: Tensor) -> Tensor:
        """The stream after both branches."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class TextAttention(nn.Module):
    """Heads of one rank for queries and keys and another for values."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, cell: TextCell) -> None:
        super().__init__()
        self.cell = cell
        self.query = nn.Linear(cell.width, cell.heads * cell.rank, bias=False)
        self.key = nn.Linear(cell.width, cell.key_heads * cell.rank, bias=False)
        self.value = nn.Linear(cell.width, cell.key_heads * cell.value_rank, bias=False)
        self.output = nn.Linear(cell.heads * cell.value_rank, cell.width, bias=False)
        for name, part in zip(("cosines", "sines"), self._table(cell.context, "cpu"), strict=True):
            self.register_buffer(name, part, persistent=False)

    def _table(self, length: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        return rotary_table(length, self.cell.rank, self.cell.rotary_base, device)

    def forward(self, x: Tensor) -> Tensor:
        """What the heads write to the stream."""
        cell, (batch, length, _) = self.cell, x.shape
        q = self.query(x).view(batch, length, cell.heads, cell.rank).transpose(1, 2)
        k = self.key(x).view(batch, length, cell.key_heads, cell.rank).transpose(1, 2)
        v = self.value(x).view(batch, length, cell.key_heads, cell.value_rank).transpose(1, 2)
        if cell.positions == "rotary":
            known = length <= cell.context
            cosines, sines = (self.cosines, self.sines) if known else self._table(length, x.device)
            q, k = (_rotated(part, cosines[:length], sines[:length]) for part in (q, k))
        if cell.key_heads < cell.heads:
            k, v = (part.repeat_interleave(cell.heads // cell.key_heads, dim=1) for part in (k, v))
        scale = 1.0 / math.sqrt(cell.rank)
        if cell.mask == "causal":
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        else:
            allowed = parse_mask(cell.mask).dense(length).to(x.device)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
        written: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return written


class TextFeedForward(nn.Module):
    """Two matrices with a squared ReLU, or three with a gate."""

    def __init__(self, cell: TextCell) -> None:
        super().__init__()
        self.gate = nn.Linear(cell.width, cell.feed_forward, bias=False) if cell.activation == "swiglu" else None
        self.rise = nn.Linear(cell.width, cell.feed_forward, bias=False)
        self.fall = nn.Linear(cell.feed_forward, cell.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What the feed-forward writes to the stream."""
        hidden = self.rise(x)
        hidden = hidden.relu().square() if self.gate is None else functional.silu(self.gate(x)) * hidden
        written: Tensor = self.fall(hidden)
        return written


class TextNorm(nn.Module):
    """A norm with what it learns."""

    def __init__(self, norm: Norm, width: int) -> None:
        super().__init__()
        self.norm = norm
        for part, size in norm.gains(width).items():
            self.register_parameter(part, nn.Parameter(torch.full((size,), float(part == "gain"))))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised, scaled and shifted."""
        return self.norm(x, getattr(self, "gain", None), getattr(self, "bias", None))


def text_model(cell: TextCell, weights: Mapping[str, Tensor]) -> TextModel:
    """The module of a trained cell, in the precision of its weights. Weights as `TextStack.weights` gives them."""
    model = TextModel(cell).to(weights["embedding"].dtype)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            place = _place(name)
            named[place].copy_(value if value.ndim == 1 or "." not in name else value.T)
    return model.eval()


def _place(name: str) -> str:
    """Where a weight of the stack lies in the module: `0.query` is `blocks.0.attention.query.weight`."""
    if name in ("embedding", "unembedding", "positions"):
        return f"{name}.weight"
    layer, _, rest = name.rpartition(".")
    front = f"blocks.{layer}." if layer else ""
    if rest.rpartition("_")[2] in ("gain", "bias"):
        norm, _, part = rest.rpartition("_")
        return f"{front}{norm}.{part}"
    branch = "attention" if rest in ("query", "key", "value", "output") else "feed_forward"
    return f"{front}{branch}.{rest}.weight"


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs (i, i + r/2) turned by the angles of their places; x (B, heads, T, r)."""
    half = x.shape[-1] // 2
    cosines, sines = cosines.to(x.dtype), sines.to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
