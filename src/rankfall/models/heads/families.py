"""Under which names families of models keep their attention weights: data, one line per family.

Used only where a model cannot be run, or bypasses the attention interface. A name is the end of a tensor's name; what
stands before it tells the layers apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

Layout = Literal["separate", "concatenated", "per head", "per group"]
"""How query, key and value lie in the rows of a fused matrix: all queries, then all keys, then all values; head by
head (q, k, v of head 0, then of head 1, ...); group by group (queries of the group, then its key and its value)."""


@final
@dataclass(frozen=True)
class Family:
    """`transposed` weights are stored as (d, rows). `only` restricts a family to these model types."""

    name: str
    layout: Layout
    query: str
    key: str = ""
    value: str = ""
    output: str = ""
    transposed: bool = False
    query_gain: str = ""
    key_gain: str = ""
    only: tuple[str, ...] = ()


def _llama(prefix: str, output: str) -> tuple[str, str, str, str]:
    return (
        f"{prefix}.q_proj.weight",
        f"{prefix}.k_proj.weight",
        f"{prefix}.v_proj.weight",
        f"{prefix}.{output}.weight",
    )


ALL_FAMILIES: tuple[Family, ...] = (
    Family(
        "llama",
        "separate",
        *_llama("self_attn", "o_proj"),
        query_gain="self_attn.q_norm.weight",
        key_gain="self_attn.k_norm.weight",
    ),
    Family("bart", "separate", *_llama("self_attn", "out_proj")),
    Family("gptj", "separate", *_llama("attn", "out_proj")),
    Family("vit", "separate", *_llama("attention", "o_proj")),
    Family(
        "bert",
        "separate",
        "attention.self.query.weight",
        "attention.self.key.weight",
        "attention.self.value.weight",
        "attention.output.dense.weight",
    ),
    Family(
        "vit, older names",
        "separate",
        "attention.attention.query.weight",
        "attention.attention.key.weight",
        "attention.attention.value.weight",
        "attention.output.dense.weight",
    ),
    Family(
        "albert",
        "separate",
        "attention.query.weight",
        "attention.key.weight",
        "attention.value.weight",
        "attention.dense.weight",
    ),
    Family(
        "distilbert",
        "separate",
        "attention.q_lin.weight",
        "attention.k_lin.weight",
        "attention.v_lin.weight",
        "attention.out_lin.weight",
    ),
    Family(
        "t5",
        "separate",
        "SelfAttention.q.weight",
        "SelfAttention.k.weight",
        "SelfAttention.v.weight",
        "SelfAttention.o.weight",
        only=("t5", "mt5", "umt5", "longt5"),
    ),
    Family("phi3", "concatenated", "self_attn.qkv_proj.weight", output="self_attn.o_proj.weight"),
    Family("modernbert", "concatenated", "attn.Wqkv.weight", output="attn.Wo.weight"),
    Family("mpt", "concatenated", "attn.Wqkv.weight", output="attn.out_proj.weight"),
    Family(
        "gpt2", "concatenated", "attn.c_attn.weight", output="attn.c_proj.weight", transposed=True, only=("gpt2",)
    ),
    Family("gpt_bigcode", "concatenated", "attn.c_attn.weight", output="attn.c_proj.weight", only=("gpt_bigcode",)),
    Family("gpt_neox", "per head", "attention.query_key_value.weight", output="attention.dense.weight"),
    Family(
        "bloom",
        "per head",
        "self_attention.query_key_value.weight",
        output="self_attention.dense.weight",
        only=("bloom",),
    ),
    Family(
        "falcon",
        "per group",
        "self_attention.query_key_value.weight",
        output="self_attention.dense.weight",
        only=("falcon",),
    ),
)

# Under these names configurations keep the number of heads and the width of a head.
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
HEAD_WIDTH = ("head_dim", "d_kv", "d_head")

# These families store gains less one.
GAIN_LESS_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_next")
