"""Trained language models as folders that the transformers library opens, and with it audits and other tools.

A decoder with rotary positions, SwiGLU and RMS norms is a Llama, with a window a Mistral: their heads may have any
number and size, but queries, keys and values share it. The narrower of them get zeros, which change nothing where the
scores keep their scale and the pairs of coordinates their speeds.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from torch.nn import functional

from rankfall.errors import RequestError, require
from rankfall.masks import parse_mask
from rankfall.models.trained.stored import is_text_run
from rankfall.norms import parse_norm
from rankfall.norms.rms import RMSNorm
from rankfall.store.files import storage_errors, write_bytes
from rankfall.store.run import WEIGHTS, Run
from rankfall.store.store import Store
from rankfall.training.kinds import cell_from
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import Corpus, open_corpus
from rankfall.training.text.tokens import END

NAMES = {
    "attention_norm_gain": "input_layernorm",
    "feed_forward_norm_gain": "post_attention_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "rise": "mlp.up_proj",
    "fall": "mlp.down_proj",
}
"""Weights of a layer here, and there."""
LARGEST_BASE = 1e37
"""Of rotary positions: they are worked out in single precision."""
TOP = {"embedding": "model.embed_tokens", "unembedding": "lm_head", "final_norm_gain": "model.norm"}


def export_models(
    runs: Iterable[Run], store: Store, folder: Path, note: Callable[[str], None] = lambda text: None
) -> list[Path]:
    """Write a folder for each run, named by its id, and return them; what has no such form is noted and left out."""
    written = []
    for run in runs:
        try:
            written.append(export_model(run, store, folder / run.id))
        except RequestError as error:
            note(f"{run.id} has no folder: {error}")
    return written


def export_model(run: Run, store: Store, folder: Path) -> Path:
    """Write config.json, model.safetensors and the tokenizer of one trained language model, whole or not at all."""
    from safetensors.torch import save_file

    require(
        is_text_run(run),
        required="a language model",
        got=f"a run of the task {run.config.get('task')}",
        remedy="choose runs with --where task=text",
    )
    require(
        WEIGHTS in run.manifest.names,
        required="a language model with its weights",
        got="one taken in from results, without them",
        remedy="train it with --weights",
    )
    cell = cast(TextCell, cell_from(run.config))
    config = configuration(cell)
    if (folder / "config.json").exists():
        return folder  # written before: a run's id names its weights, and the folder appears whole
    corpus = open_corpus(cell.corpus, store.path)
    weights = renamed(cell, run.weights())
    config["dtype"] = str(weights["model.norm.weight"].dtype).removeprefix("torch.")
    partial = folder.with_name(f".{folder.name}.partial")
    with storage_errors(folder.parent):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        _write_tokenizer(corpus, cell, partial)
        _write(partial / "config.json", config)
        partial.rename(folder)
    return folder


def configuration(cell: TextCell) -> dict[str, Any]:
    """The model's config.json; an error that says which setting these architectures lack."""
    norm = parse_norm(cell.norm)
    lacking = [
        name
        for name, fits in (
            (f"positions={cell.positions}", cell.positions == "rotary"),
            (f"activation={cell.activation}", cell.activation == "swiglu"),
            (f"norm={cell.norm}", isinstance(norm, RMSNorm)),
            (f"value_rank={cell.value_rank} beside rank={cell.rank}", widened_base(cell) <= LARGEST_BASE),
        )
        if not fits
    ]
    require(
        not lacking,
        required="rotary positions, SwiGLU, an RMS norm and values not far wider than queries, as Llama has them",
        got=", ".join(lacking),
        remedy="build the module in Python: rankfall.training.text.module.text_model",
    )
    assert isinstance(norm, RMSNorm)
    sliding = cell.mask != "causal"
    # a window that reaches over the whole context has no band
    window = parse_mask(cell.mask).band(cell.context) if sliding else None
    return {
        "architectures": ["MistralForCausalLM" if sliding else "LlamaForCausalLM"],
        "model_type": "mistral" if sliding else "llama",
        **({"sliding_window": window.width if window else cell.context} if sliding else {}),
        "vocab_size": cell.vocabulary,
        "hidden_size": cell.width,
        "num_hidden_layers": cell.layers,
        "num_attention_heads": cell.heads,
        "num_key_value_heads": cell.key_heads,
        "head_dim": head_size(cell),
        "intermediate_size": cell.feed_forward,
        "hidden_act": "silu",
        "rms_norm_eps": norm.epsilon,
        "max_position_embeddings": cell.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": widened_base(cell)},
        "rope_theta": widened_base(cell),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": cell.tied,
    }


def head_size(cell: TextCell) -> int:
    """Coordinates that queries, keys and values of a head all get: an even number, of which rotary positions turn
    pairs."""
    return max(cell.rank, cell.value_rank + cell.value_rank % 2)


def widened_base(cell: TextCell) -> float:
    """The base with which the first pairs of a head of this size turn as those of a head of the rank did."""
    exponent = head_size(cell) / cell.rank * math.log(cell.rotary_base)
    return cell.rotary_base if head_size(cell) == cell.rank else math.exp(exponent) if exponent < 700 else math.inf


def renamed(cell: TextCell, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names of these architectures: maps act on columns, rows never read are cut off."""
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        layer, _, part = name.rpartition(".")
        if not layer:
            found[f"{TOP[name]}.weight"] = value[: cell.vocabulary] if "embedding" in name else value
            continue
        if part == "value":
            value = _widened(value.T, cell.key_heads, head_size(cell)).T
        elif part == "output":
            value = _widened(value, cell.heads, head_size(cell))
        elif part in ("query", "key"):
            value = _spread(value.T, cell.heads if part == "query" else cell.key_heads, head_size(cell)).T
        if part == "query":
            # scores are divided by the root of the size, of the rank before
            value = value * math.sqrt(head_size(cell) / cell.rank)
        found[f"model.layers.{layer}.{NAMES[part]}.weight"] = value.T if value.ndim == 2 else value
    return {name: value.contiguous() for name, value in found.items()}


def _widened(rows: Tensor, heads: int, size: int) -> Tensor:
    """Rows of all heads (H u, d) with zeros behind those of each head, up to a size."""
    by_head = rows.unflatten(0, (heads, -1))
    return functional.pad(by_head, (0, 0, 0, size - by_head.shape[1])).flatten(0, 1)


def _spread(rows: Tensor, heads: int, size: int) -> Tensor:
    """Rows of all heads (H r, d) with zeros behind each half of a head's: of a pair that turns, each half has one."""
    return _widened(rows, 2 * heads, size // 2)


def _write_tokenizer(corpus: Corpus, cell: TextCell, folder: Path) -> None:
    if cell.tokenizer == "bytes":
        _bytes_tokenizer().save(str(folder / "tokenizer.json"))
    else:
        corpus.encoding.save(folder)
    # every document was trained on behind the mark
    known = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END}
    _write(folder / "tokenizer_config.json", {**known, "model_max_length": cell.context})


def _bytes_tokenizer() -> Any:
    """Bytes as a byte-pair encoding without pairs: byte-level tokenizers write bytes that are no visible character of
    Latin-1 as the characters from 256 on, in their order."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {chr(byte) if byte in visible else chr(256 + hidden.index(byte)): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())
