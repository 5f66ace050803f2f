"""Small modules in plain PyTorch, as people write them: nothing of the library in them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

VOCABULARY, WIDTH, HEADS = 50, 32, 4


class CausalSelfAttention(nn.Module):
    """Queries, keys and values from one map; `manual` writes the softmax out."""

    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.manual = manual

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (one.view(b, n, HEADS, -1).transpose(1, 2) for one in self.c_attn(x).split(d, dim=2))
        if self.manual:
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf)
            y = functional.softmax(scores, dim=-1) @ v
        else:
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, n, d))


class Gain(nn.Module):
    """A LayerNorm that nobody can reset."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (WIDTH,), self.weight)


class GainNorm(Gain):
    """Named as what it is."""


class GPTBlock(nn.Module):
    def __init__(self, manual: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = GainNorm(), GainNorm()
        self.attn = CausalSelfAttention(manual)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Learned positions, a final norm, a head that shares the table, and an argument called idx."""

    def __init__(self, layers: int = 3, manual: bool = False) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(16, WIDTH),
                "h": nn.ModuleList([GPTBlock(manual) for _ in range(layers)]),
                "ln_f": GainNorm(),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, None]:
        assert idx.shape[1] <= 16, "too many tokens"
        x = self.transformer["wte"](idx) + self.transformer["wpe"](torch.arange(idx.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x)[:, [-1]]), None


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


class ScaledDotProductAttention(nn.Module):
    """A module without weights around torch's function."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * turn[:, None]).flatten(-2).to(x)


class Attention(nn.Module):
    """Half as many keys as queries, rotated by position."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.sdpa = ScaledDotProductAttention()

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (m(x).view(b, n, -1, WIDTH // HEADS) for m in (self.wq, self.wk, self.wv))
        q, k = (rotated(one, freqs_cis) for one in (q, k))
        y = self.sdpa(*(one.transpose(1, 2) for one in (q, k, v)))
        return self.wo(y.transpose(1, 2).reshape(b, n, -1))


class Experts(nn.Module):
    """Each token goes to one of three."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3, bias=False)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        weight, choice = self.gate(x).softmax(dim=-1).max(dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out[choice == number] = expert(x[choice == number])
        return out * weight[..., None]


class LlamaBlock(nn.Module):
    def __init__(self, experts: bool) -> None:
        super().__init__()
        self.attention = Attention()
        self.feed_forward = Experts() if experts else nn.Linear(WIDTH, WIDTH, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(), RMSNorm()

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """Layers in a ModuleDict, keys of their numbers."""

    def __init__(self, layers: int = 2, experts: bool = False) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(number): LlamaBlock(experts) for number in range(layers)})
        self.norm = RMSNorm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        angles = torch.outer(torch.arange(x.shape[1]), 100.0 ** -torch.linspace(0, 1, WIDTH // HEADS // 2))
        for layer in self.layers.values():
            x = layer(x, torch.polar(torch.ones_like(angles), angles))
        return self.output(self.norm(x))


def attend(x: Tensor, qkv: nn.Linear) -> Tensor:
    """Attention in a function of its own."""
    q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in qkv(x).chunk(3, dim=-1))
    return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class WholeBlock(nn.Module):
    """Everything in one forward pass: no module for attention, and no word of it in a name."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(attend(self.norm1(x), self.qkv))
        return x + self.mix(self.norm2(x))


class Columns(nn.Module):
    """Ids (n, b), as torch's own layers without batch_first want them; `rows` turns ids (b, n) round after looking
    them up, `inside` in every block."""

    def __init__(self, layout: str = "columns", layers: int = 2) -> None:
        super().__init__()
        self.layout = layout
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        kind = TurningBlock if layout == "inside" else encoder_layer
        self.blocks = nn.ModuleList([kind() for _ in range(layers)])

    def forward(self, src: Tensor) -> Tensor:
        x = self.table(src)
        x = x.transpose(0, 1) if self.layout == "rows" else x
        for block in self.blocks:
            x = block(x)
        return x.transpose(0, 1) if self.layout == "rows" else x


class TurningBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.norm(x).transpose(0, 1)
        return x + self.attention(turned, turned, turned)[0].transpose(0, 1)


def encoder_layer(batch_first: bool = False, norm_first: bool = False) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, 48, batch_first=batch_first, norm_first=norm_first, activation="gelu"
    )


def scrambled(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights of ordinary size everywhere, biases and gains included: nothing is zero by its initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            spread = 0.1 if one.ndim == 1 else one.shape[-1] ** -0.5
            one.copy_(one.mean().round() * (one.ndim == 1) + spread * torch.randn(one.shape, generator=generator))
    return model.eval()


def some_ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(2, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
