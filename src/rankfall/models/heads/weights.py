"""The linear maps of heads from stored weights alone: nothing of the model runs.

Under which names, and in which order, models keep their attention weights is data: one `WeightLayout` each, listed in
the catalogue. It is used only where a model cannot be run, or bypasses the attention interface.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from torch import Tensor

from rankfall.catalogue import LAYOUTS
from rankfall.errors import RequestError
from rankfall.models import configuration as aliases
from rankfall.models.heads.probe import HeadMaps

NOTE = "read by weight name: rotations by position are left out (offset 0), and nothing was run to check it"

Order = Literal["separate", "concatenated", "per head", "per group"]
"""How query, key and value lie in the rows of a fused matrix: all queries, then all keys, then all values; head by
head (q, k, v of head 0, then of head 1, ...); group by group (queries of the group, then its key and its value)."""


@final
@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """Names of the weights of one attention layer. A name is the end of a tensor's name; what stands before it tells
    the layers apart.

    `examples` are model types with this layout: tests compare what is read with what the running model computes.
    `transposed` weights are stored as (d, rows). `only` restricts the layout to these model types, `settings` to
    configurations with these entries.
    """

    name: str
    examples: tuple[str, ...]
    order: Order
    query: str
    key: str = ""
    value: str = ""
    output: str
    transposed: bool = False
    query_gain: str = ""
    key_gain: str = ""
    only: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def layers(self, names: Iterable[str], config: Mapping[str, Any]) -> list[str]:
        """What stands before the names of each layer that has all of them, in the order of the layers."""
        if self.only and config.get("model_type") not in self.only:
            return []
        if any(config.get(name) != wanted for name, wanted in self.settings.items()):
            return []
        present = set(names)
        needed = [part for part in (self.query, self.key, self.value, self.output) if part]
        stems = [name.removesuffix(self.query) for name in present if name.endswith("." + self.query)]
        return sorted((stem for stem in stems if all(stem + part in present for part in needed)), key=_natural)


LLAMA = WeightLayout(
    name="llama",
    examples=("llama", "qwen3", "gemma3_text"),
    order="separate",
    query="self_attn.q_proj.weight",
    key="self_attn.k_proj.weight",
    value="self_attn.v_proj.weight",
    output="self_attn.o_proj.weight",
    query_gain="self_attn.q_norm.weight",
    key_gain="self_attn.k_norm.weight",
)
BART = WeightLayout(
    name="bart",
    examples=("bart",),
    order="separate",
    query="self_attn.q_proj.weight",
    key="self_attn.k_proj.weight",
    value="self_attn.v_proj.weight",
    output="self_attn.out_proj.weight",
)
GPTJ = WeightLayout(
    name="gptj",
    examples=("gptj",),
    order="separate",
    query="attn.q_proj.weight",
    key="attn.k_proj.weight",
    value="attn.v_proj.weight",
    output="attn.out_proj.weight",
)
VIT = WeightLayout(
    name="vit",
    examples=("vit",),
    order="separate",
    query="attention.q_proj.weight",
    key="attention.k_proj.weight",
    value="attention.v_proj.weight",
    output="attention.o_proj.weight",
)
BERT = WeightLayout(
    name="bert",
    examples=("bert",),
    order="separate",
    query="attention.self.query.weight",
    key="attention.self.key.weight",
    value="attention.self.value.weight",
    output="attention.output.dense.weight",
)
VIT_OLDER = WeightLayout(
    name="vit, older names",
    examples=("dpt",),
    order="separate",
    query="attention.attention.query.weight",
    key="attention.attention.key.weight",
    value="attention.attention.value.weight",
    output="attention.output.dense.weight",
)
ALBERT = WeightLayout(
    name="albert",
    examples=("albert",),
    order="separate",
    query="attention.query.weight",
    key="attention.key.weight",
    value="attention.value.weight",
    output="attention.dense.weight",
)
DISTILBERT = WeightLayout(
    name="distilbert",
    examples=("distilbert",),
    order="separate",
    query="attention.q_lin.weight",
    key="attention.k_lin.weight",
    value="attention.v_lin.weight",
    output="attention.out_lin.weight",
)
T5 = WeightLayout(
    name="t5",
    examples=("t5",),
    order="separate",
    query="SelfAttention.q.weight",
    key="SelfAttention.k.weight",
    value="SelfAttention.v.weight",
    output="SelfAttention.o.weight",
    only=("t5", "mt5", "umt5", "longt5"),
)
PHI3 = WeightLayout(
    name="phi3",
    examples=("phi3",),
    order="concatenated",
    query="self_attn.qkv_proj.weight",
    output="self_attn.o_proj.weight",
)
MODERNBERT = WeightLayout(
    name="modernbert",
    examples=("modernbert",),
    order="concatenated",
    query="attn.Wqkv.weight",
    output="attn.Wo.weight",
)
MPT = WeightLayout(
    name="mpt",
    examples=("mpt",),
    order="concatenated",
    query="attn.Wqkv.weight",
    output="attn.out_proj.weight",
)
GPT2 = WeightLayout(
    name="gpt2",
    examples=("gpt2",),
    order="concatenated",
    query="attn.c_attn.weight",
    output="attn.c_proj.weight",
    transposed=True,
    only=("gpt2",),
)
GPT_BIGCODE = WeightLayout(
    name="gpt_bigcode",
    examples=("gpt_bigcode",),
    order="concatenated",
    query="attn.c_attn.weight",
    output="attn.c_proj.weight",
    only=("gpt_bigcode",),
)
GPT_BIGCODE_PER_HEAD = WeightLayout(
    name="gpt_bigcode, keys for every head",
    examples=("gpt_bigcode",),
    order="per head",
    query="attn.c_attn.weight",
    output="attn.c_proj.weight",
    only=("gpt_bigcode",),
    settings={"multi_query": False},
)
GPT_NEOX = WeightLayout(
    name="gpt_neox",
    examples=("gpt_neox",),
    order="per head",
    query="attention.query_key_value.weight",
    output="attention.dense.weight",
)
BLOOM = WeightLayout(
    name="bloom",
    examples=("bloom",),
    order="per head",
    query="self_attention.query_key_value.weight",
    output="self_attention.dense.weight",
    only=("bloom",),
)
FALCON = WeightLayout(
    name="falcon",
    examples=("falcon",),
    order="per group",
    query="self_attention.query_key_value.weight",
    output="self_attention.dense.weight",
    only=("falcon",),
)

# These model types store gains less one.
GAIN_LESS_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_next")


def maps_from_tensors(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[HeadMaps]:
    """The maps of each attention layer, from tensors by name and the model's configuration."""
    config = {**config, **(config.get("text_config") or {})}
    layout, stems = _found_layout(tensors, config)
    for layer, stem in enumerate(stems):
        yield _layer_maps(layer, stem, layout, tensors, config)


def _found_layout(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[WeightLayout, list[str]]:
    for layout in LAYOUTS:
        if stems := layout.layers(tensors, config):
            return layout, stems
    raise RequestError(
        required="attention weights under names of a known layout",
        got=f"{len(tensors)} tensors of model type {config.get('model_type', 'unknown')}",
        remedy=f"known are {', '.join(LAYOUTS.names)}; or run the model",
    )


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _layer_maps(
    layer: int, stem: str, layout: WeightLayout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> HeadMaps:
    def weight(name: str) -> Tensor:
        stored = tensors[stem + name].double()
        return stored.T if layout.transposed else stored

    heads = aliases.number(config, aliases.HEADS)
    if heads is None:
        raise RequestError(required="the number of heads in the configuration", got="none", remedy="add it")
    if layout.order == "separate":
        rows = weight(layout.query), weight(layout.key), weight(layout.value)
    else:
        rows = _unfused(weight(layout.query), layout, heads, config)
    query, key, value = rows
    rank = query.shape[0] // heads
    query, key = (
        _gained(part, tensors.get(stem + name) if name else None, config)
        for part, name in ((query, layout.query_gain), (key, layout.key_gain))
    )
    output = weight(layout.output)
    value_rank = output.shape[1] // heads
    return HeadMaps(
        layer=layer,
        name=stem.rstrip("."),
        source=f"names of {layout.name}",
        query=_per_head(query, rank),
        key=_per_head(key, rank),
        value=_per_head(value, value_rank),
        output=output.T.reshape(heads, value_rank, -1),
        qk_norm=bool(layout.query_gain) and stem + layout.query_gain in tensors,
        notes=(NOTE,),
    )


def _unfused(
    fused: Tensor, layout: WeightLayout, heads: int, config: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of query, key and value, head after head."""
    total, width = fused.shape
    if layout.order == "per head":
        parts = fused.reshape(heads, 3, -1, width)
        return parts[:, 0].reshape(-1, width), parts[:, 1].reshape(-1, width), parts[:, 2].reshape(-1, width)
    rank = aliases.head_size(config) or width // heads
    groups = (total // rank - heads) // 2
    if layout.order == "concatenated":
        query, key, value = fused.split([heads * rank, groups * rank, groups * rank])
        return query, key, value
    parts = fused.reshape(groups, heads // groups + 2, rank, width)
    return (
        parts[:, :-2].reshape(-1, width),
        parts[:, -2].reshape(-1, width),
        parts[:, -1].reshape(-1, width),
    )


def _gained(rows: Tensor, gain: Tensor | None, config: Mapping[str, Any]) -> Tensor:
    """Rows times the gain of the norm on queries or keys, which is one per coordinate of a head or of all heads."""
    if gain is None:
        return rows
    factor = gain.double().flatten() + (1.0 if config.get("model_type") in GAIN_LESS_ONE else 0.0)
    return rows * factor.repeat(rows.shape[0] // factor.numel())[:, None]


def _per_head(rows: Tensor, rank: int) -> Tensor:
    """(heads * rank, d) to (heads, d, rank)."""
    return rows.reshape(-1, rank, rows.shape[-1]).mT


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of several safetensors files, each read when asked for."""

    def __init__(self, files: list[Path]) -> None:
        from safetensors import safe_open

        self._files: list[Any] = [safe_open(str(file), framework="pt") for file in files]
        self._where = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    def __enter__(self) -> TensorFiles:
        for file in self._files:
            file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.__exit__(*error)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._where:
            raise KeyError(name)
        found: Tensor = self._where[name].get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
