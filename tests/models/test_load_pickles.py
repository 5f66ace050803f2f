"""Pickled weights: tensors are taken out by another process; anything else in them is refused and never runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.small import same_as_saved, save_small

from rankfall.errors import RequestError
from rankfall.models.load import unpickle, whisper
from rankfall.models.load.open import open_model


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFALL_CACHE", str(cache))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = save_small(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def test_a_folder_with_pickled_weights_opens(folder: Path, cache: Path) -> None:
    """Whatever they are called, and without reading what a trainer left beside them."""
    assert same_as_saved(folder)
    assert "pytorch_model.bin, a pickled file" in open_model(folder).notes[0]
    (folder / "training_args.bin").write_bytes(b"not even a pickle")
    (folder / "pytorch_model.bin").rename(folder / "weights.pt")
    assert same_as_saved(folder)
    assert not list((cache / "converted").glob(".*"))


def test_pickled_shards_with_an_index(folder: Path) -> None:
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    (folder / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, inside in halves.items():
        torch.save({"state_dict": {name: tensors[name] for name in inside}}, folder / file)
    table = {"weight_map": {name: file for file, inside in halves.items() for name in inside}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(table))
    assert same_as_saved(folder)


class Payload:
    """Unpickled, it would call this."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


def test_nothing_in_it_is_executed(folder: Path, tmp_path: Path) -> None:
    witness = tmp_path / "executed"
    torch.save({"weight": torch.zeros(3), "evil": Payload(os.mkdir, str(witness))}, folder / "pytorch_model.bin")
    with pytest.raises(RequestError, match=r"only tensors in pytorch_model\.bin.*safe_serialization") as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)
    assert not witness.exists()


@pytest.mark.parametrize("event", ["os.system", "subprocess.Popen", "socket.connect", "os.mkdir", "os.rename"])
def test_what_a_payload_would_want_is_forbidden_besides(event: str) -> None:
    with pytest.raises(unpickle.RefusedFileError, match="do not trust it"):
        unpickle._refuse(event, ())
    unpickle._refuse("open", ("x", "r", 0))


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"a": torch.zeros(2), "b": 3}, "'b', a int, where only tensors"),
        ([torch.zeros(2)], "a list where a table of tensors"),
        ({"a": torch.zeros(1).expand(1 << 40)}, "larger than the file"),
        ({"a": torch.eye(3).to_sparse()}, "sparse"),
        ({}, "a dict where a table of tensors"),
    ],
    ids=["number", "list", "stretched", "sparse", "empty"],
)
def test_only_tensors_are_accepted(value: Any, match: str) -> None:
    with pytest.raises(unpickle.RefusedFileError, match=match):
        unpickle.tensors_of(value, limit=1 << 20)


def test_weights_among_other_things_are_found() -> None:
    inner = {"a": torch.zeros(2)}
    for table in ({"model": inner, "step": 3}, {"state_dict": {"module": inner}}, inner):
        assert set(unpickle.tensors_of(table, limit=1 << 20)) == {"a"}


def test_shared_tensors_get_memory_of_their_own() -> None:
    shared = torch.arange(6.0)
    kept = unpickle.tensors_of({"a": shared, "b": shared[2:], "c": shared.reshape(2, 3).T}, limit=1 << 20)
    assert torch.equal(kept["b"], shared[2:])
    assert torch.equal(kept["c"], shared.reshape(2, 3).T)
    assert len({tensor.data_ptr() for tensor in kept.values()}) == 3


def test_a_lone_file_without_a_configuration_says_what_would_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"x.weight": torch.zeros(2)}, tmp_path / "tensors.safetensors")
    monkeypatch.setattr(whisper, "as_safetensors", lambda path: tmp_path / "tensors.safetensors")
    (tmp_path / "lone.pt").write_bytes(b"")
    with pytest.raises(RequestError, match=r"folder with config\.json.*got lone\.pt with tensors such as x\.weight"):
        open_model(tmp_path / "lone.pt")
