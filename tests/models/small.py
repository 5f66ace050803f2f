"""Small random models of real architectures, written to disk the way real ones are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.models.depth.capture import Place
from rankfall.models.depth.measure import DepthMeasurement
from rankfall.models.depth.rows import Measured
from rankfall.models.load.open import open_model

MEASURED = ("qk_effective_rank", "qk_energy_rank", "qk_norm", "ov_effective_rank", "ov_energy_rank", "ov_norm")
"""What heads read by name and heads that were probed are compared by."""
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(60))]


def small_config(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    size = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    }
    special = {
        "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 64},
        "t5": {"d_model": 32, "num_layers": 3, "num_heads": 4, "d_kv": 8, "d_ff": 48, "vocab_size": 64},
        "albert": size | {"embedding_size": 16, "num_hidden_groups": 1},
    }
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    if kind == "t5":
        ids["decoder_start_token_id"] = 0
    return AutoConfig.for_model(kind, **(special.get(kind, size) | ids | changes))


def small_model(kind: str, seed: int = 0, **changes: Any) -> nn.Module:
    from transformers import AutoModel

    torch.manual_seed(seed)
    return AutoModel.from_config(small_config(kind, **changes)).eval()


def save_small(folder: Path, kind: str = "bert", **changes: Any) -> Path:
    """The folder of a small model with a tokenizer that knows the words w0 to w59."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    small_model(kind, **changes).save_pretrained(folder)
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(folder)
    return folder


def same_as_saved(path: Path) -> bool:
    """Whether what opens from there has the weights of the small BERT."""
    ours, saved = open_model(path).network.state_dict(), small_model("bert").state_dict()
    return set(ours) == set(saved) and all(torch.equal(ours[name], saved[name]) for name in saved)


def some_text(words: int, seed: int = 0) -> str:
    drawn = torch.randint(60, (words,), generator=torch.Generator().manual_seed(seed)).tolist()
    return " ".join(f"w{number}" for number in drawn)


def measure_one(place: Place, text: int, tokens: Tensor, names: list[str], without_sinks: bool = True) -> Measured:
    """All measures of one text (n, d) at one place; `text` is the number it would have among several."""
    taken = DepthMeasurement([None], [names], without_sinks=without_sinks)
    taken.take(place, tokens[None])
    (found,) = taken.rows()[0].per_text
    return replace(found, text=text, sinks=tuple(replace(sink, text=text) for sink in found.sinks))
