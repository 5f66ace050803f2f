"""GGUF files: converted once, equal to the model they came from; doctored ones refused before conversion."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.models.small import small_config

from rankfall.errors import RequestError
from rankfall.models.load.headers import read_gguf_header
from rankfall.models.load.open import open_model

LAYERS, WIDTH, HEADS = 2, 32, 4
TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "w", "0", "w0", *(f"t{number}" for number in range(57))]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKFALL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def llama() -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = small_config("llama", num_hidden_layers=LAYERS, num_key_value_heads=2, tie_word_embeddings=True)
    return AutoModelForCausalLM.from_config(config).eval()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order in which GGUF keeps rotary rows."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, *, layers: int = LAYERS, add_bos: bool | None = None) -> Path:
    state = {name: value.detach().numpy() for name, value in llama().state_dict().items()}
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(48)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * len(TOKENS))
    writer.add_token_merges(["w 0"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    names = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    for layer in range(LAYERS):
        for short, full in names.items():
            weight = state[f"model.layers.{layer}.{full}.weight"]
            if short in ("attn_q", "attn_k"):
                weight = interleaved(weight, HEADS if short == "attn_q" else 2)
            writer.add_tensor(f"blk.{layer}.{short}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.filterwarnings("ignore")
def test_conversion_is_faithful_and_kept(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    loaded = open_model(path)
    ids = torch.arange(4, 20)[None]
    with torch.inference_mode():
        ours, theirs = loaded.network(ids).last_hidden_state, llama().model(ids).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    (kept,) = (cache / "converted").iterdir()
    stamp = (kept / "model.safetensors").stat().st_mtime_ns
    open_model(path)
    assert (kept / "model.safetensors").stat().st_mtime_ns == stamp
    assert [one.name for one in (cache / "converted").iterdir()] == [kept.name]


@pytest.mark.parametrize("layers", [1, 3, 441, 10**9])
def test_a_doctored_layer_count_is_refused(tmp_path: Path, cache: Path, layers: int) -> None:
    path = write_gguf(tmp_path / "doctored.gguf", layers=layers)
    with pytest.raises(RequestError, match=f"sound GGUF file.*{layers} layers announced, tensors of 2 there"):
        open_model(path)
    assert not cache.exists()


def test_a_truncated_gguf_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "short.gguf")
    data = path.read_bytes()
    for size, match in ((len(data) - 50, "beyond the file"), (200, "inside the header"), (2, "inside the header")):
        path.write_bytes(data[:size])
        with pytest.raises(RequestError, match=match):
            open_model(path)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 10**15, 1), "1,000,000,000,000,000 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 10**15), "facts"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 10**15), "a string of"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 4, 10**15), "an array of"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<I", 77) + bytes(16), "version 77"),
        (b"PK\x03\x04" + bytes(60), "another kind of file"),
    ],
)
def test_a_doctored_header_is_refused(tmp_path: Path, body: bytes, match: str) -> None:
    path = tmp_path / "evil.gguf"
    path.write_bytes(body)
    with pytest.raises(RequestError, match=match):
        read_gguf_header(path)
