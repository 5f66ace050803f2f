"""Shared tensors count once, and a head that is not in the files is noted, not refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.models.small import save_small, small_config

from rankfall.errors import RequestError
from rankfall.models.audit import audit
from rankfall.models.load.open import open_model

# The embedding outweighs the rest by far, as in a multilingual model, and is used at up to four places.
MANY_WORDS = 20_000
SIZES: dict[str, dict[str, Any]] = {
    "T5ForConditionalGeneration": {"kind": "t5", "num_layers": 1},
    "MBartForConditionalGeneration": {
        "kind": "mbart", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    },
    "M2M100ForConditionalGeneration": {
        "kind": "m2m_100", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    },
    "MarianMTModel": {
        "kind": "marian", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "decoder_vocab_size": MANY_WORDS, "decoder_start_token_id": 0,
    },
    "Gemma3ForCausalLM": {"kind": "gemma3_text", "head_dim": 8, "num_key_value_heads": 2},
    "XLMRobertaForMaskedLM": {"kind": "xlm-roberta"},
    "BertForMaskedLM": {"kind": "bert"},
    "DistilBertForMaskedLM": {"kind": "distilbert", "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
}  # fmt: skip


def saved(folder: Path, architecture: str) -> Any:
    sizes = dict(SIZES[architecture])
    config = small_config(sizes.pop("kind"), **{"vocab_size": MANY_WORDS} | sizes)
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("architecture", SIZES)
def test_models_whose_embedding_outweighs_the_rest_open(tmp_path: Path, architecture: str) -> None:
    model = saved(tmp_path / "model", architecture)
    loaded = open_model(tmp_path / "model")
    assert loaded.parameters == sum(parameter.numel() for parameter in model.base_model.parameters())
    assert torch.equal(loaded.network.get_input_embeddings().weight, model.get_input_embeddings().weight)


def test_a_missing_head_is_noted(tmp_path: Path) -> None:
    saved(tmp_path / "model", "BertForMaskedLM")
    weights = tmp_path / "model" / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(weights).items() if name.startswith("bert.")}
    save_file(kept, weights, {"format": "pt"})
    loaded = open_model(tmp_path / "model")
    assert loaded.whole is None
    (note,) = loaded.notes
    assert "weights outside the body are not in the files, such as cls." in note
    findings = audit(loaded, inputs=torch.arange(4, 20)[None], heads=False, controls=False, ablation=False)
    assert findings.model.notes == (note,)
    assert findings.text.loss is None
    assert "head" in str(findings.text.loss_reason)


def test_a_missing_pooler_is_noted(tmp_path: Path) -> None:
    """It reads the last layer and changes nothing in it."""
    from transformers import BertModel

    BertModel(small_config("bert")).save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(weights).items() if "pooler" not in name}
    save_file(kept, weights, {"format": "pt"})
    assert "such as pooler.dense.bias" in open_model(tmp_path / "model").notes[0]


def test_a_missing_part_of_the_body_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "model", "BertForMaskedLM")
    weights = tmp_path / "model" / "model.safetensors"
    tensors = load_file(weights)
    del tensors["bert.encoder.layer.1.output.dense.weight"]
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(RequestError, match="weights for every part of the model; got 1 missing"):
        open_model(tmp_path / "model")


def test_weights_without_a_place_in_the_configuration_are_noted(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "model", "bert")
    assert open_model(folder).notes == ()
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(table | {"num_hidden_layers": 2}))
    (note,) = open_model(folder).notes
    assert note.startswith("16 weights of the files have no place in this configuration, such as encoder.layer.2.")
