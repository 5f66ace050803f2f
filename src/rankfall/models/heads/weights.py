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
from rankfall.errors import RequestError, require
from rankfall.models.architectures import configuration as aliases
from rankfall.models.heads.maps import HeadMaps

NOTE = "read by weight name: rotations by position are left out (offset 0), and nothing was run to check it"

Fused = Literal["concatenated", "per group"]
"""How query, key and value lie in the rows of one matrix: all queries, then all keys, then all values; or group by
group, the queries of a group of heads, then its key and its value. A group is one head where each has a key."""


@final
@dataclass(frozen=True)
class WeightLayout:
    """Where the weights of one attention layer are, after what tells the layers apart.

    `projections` of query, key and value, or one that holds all three as `fused` says, lie in `module`, as do the
    `gains` of norms on queries and keys; `output` is the path of the output map. `examples` are model types with this
    layout: tests compare what is read with what the running model computes. `transposed` weights are stored as
    (d, rows). `only` restricts the layout to these model types, `settings` to configurations with these entries.
    """

    name: str
    examples: tuple[str, ...]
    module: str
    projections: tuple[str, ...]
    output: str
    fused: Fused | None = None
    transposed: bool = False
    gains: tuple[str, str] | None = None
    only: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> list[str]:
        """Ends of the names of the projections' tensors, and of the output map's."""
        return [*(f"{self.module}.{one}.weight" for one in self.projections), f"{self.output}.weight"]

    def layers(self, names: Iterable[str], config: Mapping[str, Any]) -> list[str]:
        """What stands before the names of each layer that has all of them, in the order of the layers."""
        if self.only and config.get("model_type") not in self.only:
            return []
        if any(config.get(name) != wanted for name, wanted in self.settings.items()):
            return []
        present, first = set(names), self.weights[0]
        stems = [name.removesuffix(first) for name in present if name.endswith("." + first)]
        return sorted((stem for stem in stems if all(stem + one in present for one in self.weights)), key=_natural)


LLAMA = WeightLayout(
    "llama",
    ("llama", "qwen3", "gemma3_text"),
    "self_attn",
    ("q_proj", "k_proj", "v_proj"),
    "self_attn.o_proj",
    gains=("q_norm", "k_norm"),
)
BART = WeightLayout("bart", ("bart",), "self_attn", ("q_proj", "k_proj", "v_proj"), "self_attn.out_proj")
GPTJ = WeightLayout("gptj", ("gptj",), "attn", ("q_proj", "k_proj", "v_proj"), "attn.out_proj")
VIT = WeightLayout("vit", ("vit",), "attention", ("q_proj", "k_proj", "v_proj"), "attention.o_proj")
BERT = WeightLayout("bert", ("bert",), "attention.self", ("query", "key", "value"), "attention.output.dense")
VIT_OLDER = WeightLayout(
    "vit, older names", ("dpt",), "attention.attention", ("query", "key", "value"), "attention.output.dense"
)
ALBERT = WeightLayout("albert", ("albert",), "attention", ("query", "key", "value"), "attention.dense")
MPNET = WeightLayout("mpnet", ("mpnet",), "attention.attn", ("q", "k", "v"), "attention.attn.o")
DEBERTA_V2 = WeightLayout(
    "deberta-v2",
    ("deberta-v2",),
    "attention.self",
    ("query_proj", "key_proj", "value_proj"),
    "attention.output.dense",
    only=("deberta-v2",),
)
DISTILBERT = WeightLayout(
    "distilbert", ("distilbert",), "attention", ("q_lin", "k_lin", "v_lin"), "attention.out_lin"
)
T5 = WeightLayout(
    "t5", ("t5",), "SelfAttention", ("q", "k", "v"), "SelfAttention.o", only=("t5", "mt5", "umt5", "longt5")
)
PHI3 = WeightLayout("phi3", ("phi3",), "self_attn", ("qkv_proj",), "self_attn.o_proj", "concatenated")
MODERNBERT = WeightLayout("modernbert", ("modernbert",), "attn", ("Wqkv",), "attn.Wo", "concatenated")
MPT = WeightLayout("mpt", ("mpt",), "attn", ("Wqkv",), "attn.out_proj", "concatenated")
GPT2 = WeightLayout(
    "gpt2", ("gpt2",), "attn", ("c_attn",), "attn.c_proj", "concatenated", transposed=True, only=("gpt2",)
)
GPT_BIGCODE = WeightLayout(
    "gpt_bigcode", ("gpt_bigcode",), "attn", ("c_attn",), "attn.c_proj", "concatenated", only=("gpt_bigcode",)
)
GPT_BIGCODE_PER_HEAD = WeightLayout(
    "gpt_bigcode, keys for every head",
    ("gpt_bigcode",),
    "attn",
    ("c_attn",),
    "attn.c_proj",
    "per group",
    only=("gpt_bigcode",),
    settings={"multi_query": False},
)
GPT_NEOX = WeightLayout("gpt_neox", ("gpt_neox",), "attention", ("query_key_value",), "attention.dense", "per group")
BLOOM = WeightLayout(
    "bloom", ("bloom",), "self_attention", ("query_key_value",), "self_attention.dense", "per group", only=("bloom",)
)
FALCON = WeightLayout(
    "falcon",
    ("falcon",),
    "self_attention",
    ("query_key_value",),
    "self_attention.dense",
    "per group",
    only=("falcon",),
)

# These model types store gains less one.
GAIN_LESS_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_next")


def maps_from_tensors(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[HeadMaps]:
    """The maps of each attention layer, from tensors by name and the model's configuration."""
    inner = config.get("text_config")
    config = {**config, **(inner if isinstance(inner, Mapping) else {})}
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
    heads = aliases.number(config, aliases.HEADS)
    if heads is None:
        raise RequestError(required="the number of heads in the configuration", got="none", remedy="add it")
    stored = [_matrix(tensors, stem + name).double() for name in layout.weights]
    *projections, output = [one.T for one in stored] if layout.transposed else stored
    query, key, value = (
        projections if layout.fused is None else _unfused(stem, projections[0], layout.fused, heads, config)
    )
    gains = [tensors.get(f"{stem}{layout.module}.{name}.weight") for name in layout.gains or ()]
    if normed := any(gain is not None for gain in gains):
        query, key = (_gained(stem, rows, gain, config) for rows, gain in zip((query, key), gains, strict=True))
    width, rank = query.shape[1], _share(stem, query.shape[0], heads)
    value_rank = _share(stem, output.shape[1], heads)
    _share(stem, key.shape[0], rank, width == key.shape[1])
    _share(stem, value.shape[0], value_rank, width == value.shape[1])
    return HeadMaps(
        layer=layer,
        name=stem.rstrip("."),
        source=f"names of {layout.name}",
        query=_per_head(query, rank),
        key=_per_head(key, rank),
        value=_per_head(value, value_rank),
        output=output.T.reshape(heads, value_rank, -1),
        qk_norm=normed,
        notes=(NOTE,),
    )


def _matrix(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    found = tensors[name]
    require(
        found.ndim == 2 and found.numel() > 0,
        required=f"a matrix of numbers under the name {name}",
        got=f"the shape {tuple(found.shape)}",
        remedy="the file is damaged, or not of this kind of model",
    )
    return found


def _share(stem: str, rows: int, parts: int, fits: bool = True) -> int:
    """Rows of each of so many equal parts."""
    require(
        fits and parts > 0 and rows >= parts and rows % parts == 0,
        required=f"weights under {stem} that fit the heads of the configuration",
        got=f"{rows} rows for parts of which there are {parts}",
        remedy="the configuration belongs to other weights",
    )
    return rows // parts


def _unfused(stem: str, fused: Tensor, fused_as: Fused, heads: int, config: Mapping[str, Any]) -> Iterable[Tensor]:
    """Rows of query, key and value, head after head."""
    total, width = fused.shape
    rank = aliases.head_size(config) or _share(stem, width, heads)
    groups = (_share(stem, total, rank, total % rank == 0) - heads) // 2
    _share(stem, heads, groups, total == (heads + 2 * groups) * rank)
    if fused_as == "concatenated":
        return fused.split([heads * rank, groups * rank, groups * rank])
    parts = fused.reshape(groups, heads // groups + 2, rank, width).split([heads // groups, 1, 1], dim=1)
    return (part.reshape(-1, width) for part in parts)


def _gained(stem: str, rows: Tensor, gain: Tensor | None, config: Mapping[str, Any]) -> Tensor:
    """Rows times the gain of the norm on queries or keys, which is one per coordinate of a head or of all heads."""
    if gain is None:
        return rows
    factor = gain.double().flatten() + (1.0 if config.get("model_type") in GAIN_LESS_ONE else 0.0)
    return rows * factor.repeat(_share(stem, rows.shape[0], factor.numel()))[:, None]


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
