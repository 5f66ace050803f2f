"""Sound models open: sharded, under another file name, in another dtype, from the hub's cache, by short name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.small import same_as_saved, save_small

from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import RequestError
from rankfall.models.load import guards
from rankfall.models.load.guards import require_memory
from rankfall.models.load.named import named_path
from rankfall.models.load.open import open_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_small(tmp_path / "model")


def test_a_folder_opens_unchanged(folder: Path) -> None:
    assert same_as_saved(folder)
    loaded = open_model(folder)
    assert not loaded.network.training
    assert loaded.tokenizer("w3")["input_ids"] == [2, 7, 3]
    assert loaded.notes == ()


def test_shards_with_an_index(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, inside in halves.items():
        save_file({name: tensors[name] for name in inside}, folder / file, {"format": "pt"})
    table = {"metadata": {}, "weight_map": {name: file for file, inside in halves.items() for name in inside}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    assert same_as_saved(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(RequestError, match=r"the file model-00002-of-00002.safetensors; got nothing there"):
        open_model(folder)


def test_weights_under_another_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert same_as_saved(folder)


def test_another_dtype(folder: Path) -> None:
    network = open_model(folder, dtype="bfloat16").network
    assert {parameter.dtype for parameter in network.parameters()} == {torch.bfloat16}


def test_without_a_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert open_model(folder).tokenizer is None


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"config\.json in"):
        open_model(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(RequestError, match=r"a model folder, a \.gguf file.*got model\.onnx; name the folder"):
        open_model(tmp_path / "model.onnx")


def test_short_names_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFALL_MODELS", str(tmp_path))
    for one in NAMED_MODELS:
        with pytest.raises(RequestError, match=rf"{one.name} on this machine.*{one.requirement}"):
            open_model(one.name)
    assert named_path("something-else") is None


def test_named_models_are_listed_without_heavy_imports() -> None:
    assert [one.name for one in NAMED_MODELS] == list(NAMED_MODELS.names)
    program = (
        "import sys; from rankfall.catalogue import NAMED_MODELS; from rankfall.models.load.guards import LIMITS;"
        "print([one.meaning for one in NAMED_MODELS], LIMITS.seconds);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'scipy', 'transformers', 'pandas')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_model_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="fits into 80% of the free memory"):
        require_memory(10**15, 4)
    monkeypatch.setattr(guards, "available_memory", lambda: 10_000)
    require_memory(2_000, 4)
    with pytest.raises(RequestError, match="2,001 parameters"):
        require_memory(2_001, 4)


def test_a_folder_is_refused_before_it_is_read_into_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = open_model(folder).parameters
    monkeypatch.setattr(guards, "available_memory", lambda: 4 * parameters)
    with pytest.raises(RequestError, match="of the free memory"):
        open_model(folder)
    assert open_model(folder, dtype="bfloat16").parameters == parameters
