"""A decoder and its training written as plainly as possible, with PyTorch's own modules and AdamW, for comparison."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rankfall.training.text.cell import TextCell


class PlainDecoder(nn.Module):
    """Written without looking at the product: explicit loops over heads, scores in full, complex rotations."""

    def __init__(self, cell: TextCell, start: Callable[[str], Tensor]) -> None:
        super().__init__()
        self.cell = cell
        names = ["embedding", "final_norm_gain"]
        if not cell.tied:
            names.append("unembedding")
        if cell.positions == "learned":
            names.append("positions")
        for layer in range(cell.layers):
            parts = [
                "query",
                "key",
                "value",
                "output",
                "rise",
                "fall",
                "attention_norm_gain",
                "feed_forward_norm_gain",
            ]
            names += [f"{layer}.{part}" for part in parts + (["gate"] if cell.activation == "swiglu" else [])]
        self.names = names
        self.weights = nn.ParameterDict({name.replace(".", "_"): nn.Parameter(start(name).clone()) for name in names})

    def w(self, name: str) -> Tensor:
        found: Tensor = self.weights[name.replace(".", "_")]
        return found

    def forward(self, ids: Tensor) -> Tensor:
        cell = self.cell
        x = self.w("embedding")[ids]
        if cell.positions == "learned":
            x = x + self.w("positions")[: ids.shape[1]]
        for layer in range(cell.layers):
            x = x + self.attention(layer, self.rms(x) * self.w(f"{layer}.attention_norm_gain"))
            y = self.rms(x) * self.w(f"{layer}.feed_forward_norm_gain")
            hidden = y @ self.w(f"{layer}.rise")
            if cell.activation == "swiglu":
                gate = y @ self.w(f"{layer}.gate")
                hidden = gate * torch.sigmoid(gate) * hidden
            else:
                hidden = torch.clamp(hidden, min=0) ** 2
            x = x + hidden @ self.w(f"{layer}.fall")
        x = self.rms(x) * self.w("final_norm_gain")
        out = self.w("embedding" if cell.tied else "unembedding")
        return (x @ out.T)[..., : cell.vocabulary]

    @staticmethod
    def rms(x: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + 1e-6)

    def attention(self, layer: int, x: Tensor) -> Tensor:
        cell = self.cell
        length = x.shape[1]
        window = length if cell.mask == "causal" else int(cell.mask.partition(":")[2])
        place = torch.arange(length)
        allowed = (place[:, None] >= place) & (place[:, None] - place <= window)
        mixed = []
        for head in range(cell.heads):
            group = head * cell.key_heads // cell.heads
            q = x @ self.w(f"{layer}.query")[:, head * cell.rank : (head + 1) * cell.rank]
            k = x @ self.w(f"{layer}.key")[:, group * cell.rank : (group + 1) * cell.rank]
            v = x @ self.w(f"{layer}.value")[:, group * cell.value_rank : (group + 1) * cell.value_rank]
            if cell.positions == "rotary":
                q, k = self.turn(q), self.turn(k)
            scores = q @ k.transpose(1, 2) / math.sqrt(cell.rank)
            scores = scores.masked_fill(~allowed, -torch.inf)
            mixed.append(torch.softmax(scores, dim=-1) @ v)
        return torch.cat(mixed, dim=-1) @ self.w(f"{layer}.output")

    def turn(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        speed = torch.tensor([self.cell.rotary_base ** (-2 * i / x.shape[-1]) for i in range(half)], dtype=x.dtype)
        turns = torch.polar(torch.ones((), dtype=x.dtype), torch.arange(x.shape[1], dtype=x.dtype)[:, None] * speed)
        turned = torch.complex(x[..., :half], x[..., half:]) * turns
        return torch.cat([turned.real, turned.imag], dim=-1)


def train_plainly(model: PlainDecoder, batches: list[Tensor], steps: int) -> list[float]:
    """Losses of the first steps with PyTorch's AdamW, its clipping, and the schedule spelled out."""
    cell = model.cell
    matrices = [model.w(name) for name in model.names if "." in name and not name.endswith("gain")]
    others = [model.w(name) for name in model.names if "." not in name or name.endswith("gain")]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": cell.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=cell.learning_rate, betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    losses = []
    for step, tokens in enumerate(batches[:steps], start=1):
        rising = max(1, round(cell.warm_up * cell.steps))
        share = (step - rising) / max(1, cell.steps - rising)
        factor = step / rising if step <= rising else 0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2
        for group in optimizer.param_groups:
            group["lr"] = cell.learning_rate * factor
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), cell.clip)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
