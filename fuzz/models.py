"""Model folders: a small sound one whose configuration, tokenizer, weights or files are damaged."""

from __future__ import annotations

import random
from typing import Any

from fuzz import values
from fuzz.case import Case, Edit, pick

QUICK = ("--tokens", "4", "--passages", "1", "--no-controls", "--no-ablate", "--no-heads")
KEYS = (
    *("model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_act", "pad_token_id"),
    *(
        "torch_dtype",
        "dtype",
        "num_labels",
        "id2label",
        "auto_map",
        "quantization_config",
        "is_decoder",
        "chunk_size_feed_forward",
    ),
    *(
        "attn_implementation",
        "_attn_implementation",
        "tie_word_embeddings",
        "hidden_dropout_prob",
        "add_cross_attention",
    ),
    *(
        "use_pretrained_backbone",
        "backbone",
        "rope_scaling",
        "num_key_value_heads",
        "head_dim",
        "transformers_version",
    ),
    *(
        "cross_attention_hidden_size",
        "sliding_window",
        "layer_types",
        "problem_type",
        "text_config",
        "vision_config",
        "encoder",
        "decoder",
        "name_or_path",
        "\x1b[31mkey",
        "[/b]",
    ),
)
TYPES = ("gpt2", "llama", "t5", "vit", "xlnet", "mamba", "bert", "nothing", "", None, 5, "detr", "zamba", "whisper")
JSON_EDGES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        7,
        2**31,
        2**63,
        10**30,
        1.5,
        1e308,
        "",
        "x",
        "[/b]",
        "\u202e",
        [],
        [1],
        {},
        {"a": 1},
    ),
    *("a" * 5000, [[]] * 50, {"0": "x"}, "float16", "gelu", "os.system", "<gone>"),
)
FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)


def model(draw: random.Random) -> Case:
    """A damaged model and the command that audits it."""
    edits = tuple(_edit(draw) for _ in range(draw.choice((1, 1, 1, 2, 3))))
    extra = ["--json"] if draw.random() < 0.4 else []
    if draw.random() < 0.1:
        extra.append("--weights-only")
        return Case(("audit", "model", *extra), "model", edits)
    return Case(("audit", "model", *QUICK, *extra), "model", edits)


TOKENIZER_KEYS: tuple[list[Any], ...] = (
    *(["model"], ["model", "type"], ["model", "vocab"], ["model", "unk_token"], ["normalizer"], ["pre_tokenizer"]),
    *(["post_processor"], ["added_tokens"], ["decoder"], ["truncation"], ["padding"], ["version"]),
)
TOKENIZER_EDGES = (*JSON_EDGES, {"type": "BPE", "vocab": {}, "merges": []}, {"a": 2**31})
REPLACEMENTS = (
    *(("remove",), ("folder",), ("fifo",), ("link", "/dev/zero"), ("link", "model.safetensors"), ("size", 2**33)),
    *(("write", text) for text in ("", "{}", "[]", "[" * 100_000, *values.NONSENSE[:6])),
)
ADDED = (
    *("adapter_config.json", "generation_config.json", "model.safetensors.index.json", "added_tokens.json"),
    *("chat_template.jinja", "pytorch_model.bin"),
)
ADDED_TEXTS = ("{}", "[]", "", '{"weight_map": {"a": "../x"}}', '{"auto_map": {"x": "y"}}', "[" * 10_000)


def _edit(draw: random.Random) -> Edit:
    kind = pick(draw, {"config": 8, "tokenizer": 3, "header": 3, "bytes": 3, "file": 2, "added": 1})
    if kind == "config":
        key = draw.choice(KEYS)
        value = draw.choice(TYPES) if key == "model_type" and draw.random() < 0.7 else draw.choice(JSON_EDGES)
        return ["model/config.json", "set", [key], value]
    if kind == "tokenizer" and draw.random() < 0.2:
        key = draw.choice(("tokenizer_class", "auto_map", "model_max_length"))
        return ["model/tokenizer_config.json", "set", [key], draw.choice(JSON_EDGES)]
    if kind == "tokenizer":
        return ["model/tokenizer.json", "set", draw.choice(TOKENIZER_KEYS), draw.choice(TOKENIZER_EDGES)]
    if kind == "header":
        return ["model/model.safetensors", "flip", draw.random() * 0.2, draw.randint(1, 255)]
    if kind == "added":
        return [f"model/{draw.choice(ADDED)}", "write", draw.choice(ADDED_TEXTS)]
    name = f"model/{draw.choice(FILES)}"
    if kind == "file":
        return [name, *draw.choice(REPLACEMENTS)]
    if draw.random() < 0.5:
        return [name, "cut", draw.random()]
    return [name, "flip", draw.random(), draw.randint(1, 255)]
