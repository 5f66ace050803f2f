"""Hostile files, written here: each refused in one line, nothing executed, nothing left behind."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.calls import refused
from tests.models.small import save_small

from rankfall.errors import RequestError
from rankfall.models.load.open import open_model


class Payload:
    """Unpickled, it would leave a file."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.witness),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_small(tmp_path / "model")


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.fixture(autouse=True)
def _nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    scratch, cache = tmp_path / "scratch", tmp_path / "cache"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("RANKFALL_CACHE", str(cache))
    yield
    assert list(scratch.glob("rankfall-*")) == []
    assert not cache.exists() or all(not list(part.iterdir()) for part in cache.iterdir())


def assert_refused(path: Path, match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)


def edit(path: Path, **changes: Any) -> None:
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, **changes}))


def test_a_pickle_renamed_safetensors_is_not_read(folder: Path, witness: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Payload(witness)) + bytes(64))
    assert_refused(folder, "sound safetensors.*pickle or archive renamed")
    assert not witness.exists()


def test_a_torch_archive_renamed_safetensors_is_not_read(folder: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, folder / "model.safetensors")
    assert_refused(folder, "sound safetensors.*pickle or archive renamed")


def test_a_pickle_beside_sound_weights_is_ignored(folder: Path, witness: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(witness)))
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "../elsewhere", "peft_type": "LORA"}')
    assert open_model(folder).parameters > 0
    assert not witness.exists()


@pytest.mark.parametrize("target", ["../outside.safetensors", "/etc/passwd.safetensors", "sub/../../x.safetensors"])
def test_an_index_that_leads_outside_is_refused(folder: Path, target: str) -> None:
    weights = folder / "model.safetensors"
    weights.rename(folder.parent / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"embeddings": target}}))
    assert_refused(folder, "inside the model's own folder")


def test_an_index_that_names_a_pickle_is_refused(folder: Path, witness: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(witness)))
    index = {"weight_map": {"embeddings": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_refused(folder, "safetensors files only")
    assert not witness.exists()


def test_a_link_that_leads_outside_is_refused(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    (folder / "model.safetensors").rename(outside)
    (folder / "model.safetensors").symlink_to(outside)
    assert_refused(folder, "inside the model's own folder")


def test_a_truncated_file_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) - 100])
    assert_refused(folder, "truncated")
    weights.write_bytes(data[:5])
    assert_refused(folder, "only 5 bytes")


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}, "of shape"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}, "overlap or leave a gap"),
        ({"dtype": "EVIL", "shape": [1], "data_offsets": [0, 4]}, "known dtype"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "shape or place"),
    ],
)
def test_a_doctored_header_is_refused(folder: Path, entry: dict[str, Any], match: str) -> None:
    header = json.dumps({"x": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert_refused(folder, match)


def test_a_billion_layers_are_refused_before_any_is_built(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=10**9)
    assert_refused(folder, "num_hidden_layers.*at most 10,000; got 1,000,000,000")


def test_more_layers_than_the_weights_hold_are_refused(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=9000)
    assert_refused(folder, "configuration that matches its weights")


def test_one_layer_more_than_the_weights_hold_is_refused(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=4)
    assert_refused(folder, "weights for every part.*16 missing")


def test_a_huge_vocabulary_is_refused(folder: Path) -> None:
    edit(folder / "config.json", vocab_size=2_000_000_000)
    assert_refused(folder, "configuration that matches its weights")


def test_nan_weights_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    tensors[name][3, 4] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert_refused(folder, f"finite weights; got 1 NaN or infinite numbers in {name}")


def test_code_that_came_with_the_weights_is_refused(folder: Path, witness: Path) -> None:
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(witness)!r})\n")
    edit(folder / "config.json", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    assert_refused(folder, "auto_map")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    table = json.loads((folder / "config.json").read_text())
    del table["auto_map"]
    (folder / "config.json").write_text(json.dumps(table))
    assert open_model(folder).tokenizer is not None
    assert not witness.exists()


def test_an_unknown_model_type_is_refused(folder: Path) -> None:
    edit(folder / "config.json", model_type="evil")
    assert_refused(folder, "model_type that the transformers library knows; got 'evil'")


def test_an_implementation_named_in_the_config_is_not_honoured(folder: Path) -> None:
    edit(folder / "config.json", attn_implementation="evil/kernels")
    assert_refused(folder, "attn_implementation.*got 'evil/kernels'")
    edit(folder / "config.json", attn_implementation="flash_attention_2")
    loaded = open_model(folder)
    assert loaded.network.config._attn_implementation == "sdpa"
    assert loaded.notes == ("ignored attn_implementation = flash_attention_2 in config.json",)


def test_quantised_weights_are_refused(folder: Path) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": "evil"})
    assert_refused(folder, "quantization_config")


def test_a_deep_config_is_refused(folder: Path) -> None:
    nested: Any = 1
    for _ in range(50):
        nested = {"more": nested}
    edit(folder / "config.json", extra=nested)
    assert_refused(folder, "nested at most 8 deep")


def test_the_command_refuses_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder / "config.json", num_hidden_layers=10**9)
    said = refused(capsys, "audit", folder, "--json")
    assert said.startswith("rankfall: required config.json") or "num_hidden" in said
