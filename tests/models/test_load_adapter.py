"""LoRA adapters: merged weights equal W + scale B A; what cannot be merged is refused, and says what would work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file
from tests.models.small import save_small, small_model
from tests.models.test_load_hub import fill
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.models.load.open import open_model

Q = "encoder.layer.1.attention.self.query"
WORDS = "embeddings.word_embeddings"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def transposed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("base") / "gpt2", "gpt2")


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def adapter(folder: Path, tensors: dict[str, Tensor], **table: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": "org/base"} | table)
    )
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    return folder


def pair(name: str, rows: int = 32, columns: int = 32, rank: int = 4) -> dict[str, Tensor]:
    return {f"{name}.lora_A.weight": normal(rank, columns), f"{name}.lora_B.weight": normal(rows, rank)}


@pytest.mark.parametrize(
    ("table", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"self.query": 2}}, 0.5),
        ({"rank_pattern": {Q: 16}}, 0.5),
        ({"alpha_pattern": {"elsewhere": 2}}, 2.0),
    ],
)
def test_linear_layers(base: Path, tmp_path: Path, table: dict[str, Any], scale: float) -> None:
    tensors = pair(Q)
    loaded = open_model(base, adapter=adapter(tmp_path / "lora", tensors, **table))
    before = small_model("bert").get_submodule(Q).weight
    update = scale * tensors[f"{Q}.lora_B.weight"] @ tensors[f"{Q}.lora_A.weight"]
    torch.testing.assert_close(loaded.network.get_submodule(Q).weight, before + update, rtol=1e-5, atol=1e-6)
    other = Q.replace("query", "key")
    assert torch.equal(loaded.network.get_submodule(other).weight, small_model("bert").get_submodule(other).weight)
    assert loaded.notes == ("merged the adapter lora: 1 modules of rank 4",)


def test_embeddings_biases_and_modules_saved_whole(base: Path, tmp_path: Path) -> None:
    a, b = normal(4, 64), normal(32, 4)
    whole, bias = normal(32), normal(48)
    tensors = {
        f"{WORDS}.lora_embedding_A": a,
        f"{WORDS}.lora_embedding_B": b,
        "embeddings.LayerNorm.modules_to_save.default.weight": whole,
        "encoder.layer.0.intermediate.dense.bias": bias,
    }
    loaded = open_model(base, adapter=adapter(tmp_path / "lora", tensors))
    expected = small_model("bert").get_submodule(WORDS).weight + 2 * (b @ a).T
    torch.testing.assert_close(loaded.network.get_submodule(WORDS).weight, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(loaded.network.embeddings.LayerNorm.weight, whole)
    assert torch.equal(loaded.network.encoder.layer[0].intermediate.dense.bias, bias)


def test_weights_that_are_kept_transposed(transposed: Path, tmp_path: Path) -> None:
    name = "h.0.attn.c_attn"
    tensors = pair(name, rows=96)
    loaded = open_model(transposed, adapter=adapter(tmp_path / "lora", tensors, fan_in_fan_out=True))
    update = 2 * (tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]).T
    before = small_model("gpt2").get_submodule(name).weight
    torch.testing.assert_close(loaded.network.get_submodule(name).weight, before + update, rtol=1e-5, atol=1e-6)


def test_an_adapter_finds_its_base_in_the_cache(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = adapter(tmp_path / "lora", pair(Q))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(RequestError, match=r"org/base in the local hub cache.*audit MODEL --adapter lora"):
        open_model(folder)
    fill(tmp_path / "hub", "org/base", base)
    loaded = open_model(folder)
    assert loaded.source == "adapter lora"
    assert loaded.notes[0].startswith("merged the adapter lora")


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "a/b/c", ""])
def test_a_path_in_an_adapter_is_not_followed(tmp_path: Path, path: str) -> None:
    folder = adapter(tmp_path / "lora", pair(Q), base_model_name_or_path=path)
    with pytest.raises(RequestError, match=r"which is no hub id; name both: rankfall audit MODEL --adapter lora"):
        open_model(folder)


@pytest.mark.parametrize(
    ("tensors", "table", "match"),
    [
        (pair(Q), {"peft_type": "IA3"}, "of type LORA; got IA3; merge it with peft"),
        (pair(Q), {"use_dora": True}, "a plain LORA adapter; got use_dora"),
        (pair(Q), {"r": None}, "a rank r"),
        (pair("layers.0.q_proj"), {}, r"adapter of this model; got layers\.0\.q_proj"),
        (pair(Q, rows=31), {}, "of another shape"),
        ({f"{Q}.lora_A.weight": torch.zeros(4, 32)}, {}, "adapter of this model"),
        ({"encoder.layer.0.nothing": torch.zeros(4)}, {}, "adapter of this model"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    base: Path, tmp_path: Path, tensors: dict[str, Tensor], table: dict[str, Any], match: str
) -> None:
    with pytest.raises(RequestError, match=match):
        open_model(base, adapter=adapter(tmp_path / "lora", tensors, **table))


def test_a_folder_without_an_adapter(base: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"adapter_config\.json in"):
        open_model(base, adapter=tmp_path)
    with pytest.raises(RequestError, match="a folder for the adapter"):
        open_model(base, adapter=tmp_path / "nothing")
