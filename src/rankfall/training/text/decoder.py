"""The decoder with a leading model axis everywhere, as a pure function of its weights.

Axes: M models, B sequences, T tokens, d width, H heads of rank r with values of width u, G of them with own keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from rankfall.masks import parse_mask
from rankfall.norms import Norm, parse_norm
from rankfall.training.parameters import Layout, Slot, Start, constant, laid_out, normal
from rankfall.training.text.cell import TextCell

EMBEDDED = 0.02
"""Deviation of the embedding's numbers at the start; small, so that logits of tied embeddings start near zero."""


@dataclass(frozen=True)
class Decoder:
    """What the weights do not say; all models of a stack share it."""

    cell: TextCell
    device: torch.device | str = "cpu"
    norm: Norm = field(init=False)
    """The norm of every branch."""
    compute: torch.dtype = field(init=False)
    """The arithmetic of matrix products."""
    mask: Tensor | None = field(init=False)
    """(T, T), True where token i may attend to token j; None for the plain causal mask."""
    turns: tuple[Tensor, Tensor] | None = field(init=False)
    """Cosines and sines (T, 1, r/2) of rotary positions."""

    def __post_init__(self) -> None:
        # Plain attributes: a cached property takes a lock, at which the compiler would cut a step into pieces. And
        # tensors, not functions of the place: the compiler would work out every angle anew for every number it turns.
        object.__setattr__(self, "norm", parse_norm(self.cell.norm))
        object.__setattr__(self, "compute", getattr(torch, self.cell.dtype))
        mask = None if self.cell.mask == "causal" else parse_mask(self.cell.mask).dense(self.cell.context)
        object.__setattr__(self, "mask", None if mask is None else mask.to(self.device))
        turns = None
        if self.cell.positions == "rotary":
            kept = torch.float64 if self.compute is torch.float64 else torch.float32
            table = rotary_table(self.cell.context, self.cell.rank, self.cell.rotary_base, self.device)
            turns = tuple(part[:, None].to(kept) for part in table)
        object.__setattr__(self, "turns", turns)

    def nats(self, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """(M, B, T) nats of every next token of tokens (M, B, T + 1)."""
        logits = self.logits(weights, tokens[..., :-1])
        targets = tokens[..., 1:]
        wide = logits.float() if self.compute is torch.bfloat16 else logits
        losses = functional.cross_entropy(wide.flatten(0, 2), targets.flatten(), reduction="none")
        return losses.view(targets.shape)

    def logits(self, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """(M, B, T, vocabulary) from tokens (M, B, T), of at most the context."""
        cell = self.cell
        _, batch, length = tokens.shape
        x = _looked_up(weights["embedding"], tokens)
        if cell.positions == "learned":
            x = x + weights["positions"][:, None, :length]
        x = x.to(self.compute).flatten(1, 2)
        for layer in range(cell.layers):
            seen = self._normed(weights, f"{layer}.attention_norm", x, layer + 1)
            x = x + self._attention(weights, layer, seen, batch)
            seen = self._normed(weights, f"{layer}.feed_forward_norm", x, layer + 1)
            x = x + self._feed_forward(weights, layer, seen)
        x = self._normed(weights, "final_norm", x)
        output = weights["embedding" if cell.tied else "unembedding"][:, : cell.vocabulary].to(self.compute)
        return (x @ output.transpose(1, 2)).unflatten(1, (batch, length))

    def _attention(self, weights: Mapping[str, Tensor], layer: int, x: Tensor, batch: int) -> Tensor:
        cell, length = self.cell, x.shape[1] // batch
        sizes = ((cell.heads, cell.rank), (cell.key_heads, cell.rank), (cell.key_heads, cell.value_rank))
        q, k, v = (
            self._product(weights, f"{layer}.{name}", x).view(x.shape[0] * batch, -1, *size)
            for name, size in zip(("query", "key", "value"), sizes, strict=True)
        )
        if self.turns is not None:
            q, k = (_turned(part, self.turns[0][:length], self.turns[1][:length]) for part in (q, k))
        if x.is_cuda:
            q, k, v = of_one_width(q, k, v)
        mixed = functional.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=None if self.mask is None else self.mask[:length, :length],
            is_causal=self.mask is None,
            scale=1.0 / math.sqrt(cell.rank),
            enable_gqa=cell.key_heads < cell.heads,
        )[..., : cell.value_rank]
        mixed = mixed.transpose(1, 2).reshape(x.shape[0], -1, cell.heads * cell.value_rank)
        return self._product(weights, f"{layer}.output", mixed)

    def _feed_forward(self, weights: Mapping[str, Tensor], layer: int, x: Tensor) -> Tensor:
        hidden = self._product(weights, f"{layer}.rise", x)
        if self.cell.activation == "swiglu":
            hidden = functional.silu(self._product(weights, f"{layer}.gate", x)) * hidden
        else:
            hidden = hidden.relu().square()
        return self._product(weights, f"{layer}.fall", hidden)

    def _product(self, weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
        return x @ weights[name].to(self.compute)

    def _normed(self, weights: Mapping[str, Tensor], name: str, x: Tensor, depth: int = 1) -> Tensor:
        gain, bias = (weights.get(f"{name}_{part}") for part in ("gain", "bias"))
        wide = x.float() if self.compute is torch.bfloat16 else x
        out = self.norm.at(depth)(
            wide, None if gain is None else gain[:, None], None if bias is None else bias[:, None]
        )
        return out.to(self.compute)


def of_one_width(*parts: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values with zeros behind, up to one multiple of eight: PyTorch's flash attention takes no
    others, and what it falls back to is slower or keeps all scores. Zeros change no score, and values lose them."""
    width = math.ceil(max(part.shape[-1] for part in parts) / 8) * 8
    return tuple(functional.pad(part, (0, width - part.shape[-1])) for part in parts)


def rotary_table(length: int, rank: int, base: float, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, rank / 2) in float64: pair i of a head turns by base^(-2i/r) per token."""
    half = rank // 2
    speeds = base ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
    angles = torch.arange(length, device=device, dtype=torch.float64)[:, None] * speeds
    return angles.cos(), angles.sin()


def text_layout(cell: TextCell) -> Layout:
    """Where each weight lies and how it starts: maps into a branch with deviation 1/sqrt(inputs), maps out of it
    smaller by sqrt(2 L), so that the stream's size does not depend on depth; gains one."""
    into, out = 1.0 / math.sqrt(cell.width), 1.0 / math.sqrt(2 * cell.layers)
    mixed, hidden = cell.heads * cell.value_rank, cell.feed_forward
    wanted: list[tuple[str, tuple[int, ...], Start]] = [
        ("embedding", (cell.embedding_rows, cell.width), normal(EMBEDDED))
    ]
    if not cell.tied:
        wanted.append(("unembedding", (cell.embedding_rows, cell.width), normal(EMBEDDED)))
    if cell.positions == "learned":
        wanted.append(("positions", (cell.context, cell.width), normal(EMBEDDED)))
    for layer in range(cell.layers):
        wanted += [
            (f"{layer}.query", (cell.width, cell.heads * cell.rank), normal(into)),
            (f"{layer}.key", (cell.width, cell.key_heads * cell.rank), normal(into)),
            (f"{layer}.value", (cell.width, cell.key_heads * cell.value_rank), normal(into)),
            (f"{layer}.output", (mixed, cell.width), normal(out / math.sqrt(mixed))),
            *([(f"{layer}.gate", (cell.width, hidden), normal(into))] if cell.activation == "swiglu" else []),
            (f"{layer}.rise", (cell.width, hidden), normal(into)),
            (f"{layer}.fall", (hidden, cell.width), normal(out / math.sqrt(hidden))),
            *_norm_weights(cell, f"{layer}.attention_norm"),
            *_norm_weights(cell, f"{layer}.feed_forward_norm"),
        ]
    return laid_out([*wanted, *_norm_weights(cell, "final_norm")])


def is_matrix(slot: Slot) -> bool:
    """Whether a weight is one of the maps between activations, which weight decay and Muon are for."""
    return "." in slot.name and len(slot.shape) == 2


def _norm_weights(cell: TextCell, name: str) -> list[tuple[str, tuple[int, ...], Start]]:
    sizes = parse_norm(cell.norm).gains(cell.width)
    return [(f"{name}_{part}", (size,), constant(float(part == "gain"))) for part, size in sizes.items()]


def _looked_up(embedding: Tensor, tokens: Tensor) -> Tensor:
    """(M, B, T, d) rows of each model's own embedding (M, V, d)."""
    models, rows, width = embedding.shape
    first = torch.arange(models, device=tokens.device)[:, None, None] * rows
    return functional.embedding(tokens + first, embedding.reshape(models * rows, width))


def _turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Pairs (i, i + r/2) of the last axis turned by their angles; x (batch, T, heads, r)."""
    cosines, sines = cosines.to(x.dtype), sines.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
