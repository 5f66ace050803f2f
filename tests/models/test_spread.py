"""A model spread over memory and disk gives the numbers of a model in one place, and is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.small import save_small, small_model

from rankfall.errors import RequestError
from rankfall.models.audit import audit
from rankfall.models.load import spread
from rankfall.models.load.open import open_model
from rankfall.models.recording.placement import alone, fetched, input_device

pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("spread") / "model")


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from numbers(item, f"{path}/{place}")
    else:
        yield path, value


def record(model: Any, **options: Any) -> dict[str, Any]:
    found = audit(model, tokens=24, draws=2, **options).record()
    assert found["missing"] == {}
    return {path: value for path, value in numbers(found) if not path.startswith("/provenance")}


@pytest.mark.parametrize(("share", "dtype"), [(0.0, "float32"), (0.6, "bfloat16")])
def test_numbers_are_those_of_a_model_in_one_place(
    folder: Path, share: float, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = open_model(folder, dtype=dtype)
    size = sum(one.numel() * one.element_size() for one in plain.network.parameters())
    monkeypatch.setattr(spread, "room", lambda: {"cpu": int(share * size)})
    loaded = open_model(folder, dtype=dtype, device="auto")
    kept_aside = [one.device.type == "meta" for one in loaded.network.parameters()]
    assert any(kept_aside)
    assert all(kept_aside) == (share == 0.0)
    before = {name: value.clone() for name, value in alone(loaded.network).state_dict().items()}
    maps = {id(module): module._hf_hook for module in loaded.network.modules() if hasattr(module, "_hf_hook")}
    assert record(loaded) == record(plain)
    # Bit for bit, and fetched by the same hooks as before.
    assert all(torch.equal(value, before[name]) for name, value in alone(loaded.network).state_dict().items())
    assert {id(m): m._hf_hook for m in loaded.network.modules() if hasattr(m, "_hf_hook")} == maps
    assert [one.device.type == "meta" for one in loaded.network.parameters()] == kept_aside
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded.network.modules())


def test_a_model_that_fits_is_not_taken_apart(folder: Path) -> None:
    loaded = open_model(folder, device="auto")
    assert {one.device.type for one in loaded.network.parameters()} == {"cpu"}
    assert fetched(loaded.network) == {}


def test_inputs_go_where_the_weights_will_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "room", lambda: {"cpu": 0})
    network = open_model(folder, device="auto").network
    assert next(network.parameters()).device.type == "meta"
    assert input_device(network) == torch.device("cpu")


def test_what_writes_to_disk_is_gone_with_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def watched(device: str, undo: Any) -> dict[str, Any]:
        options = spread.spreading(device, undo)
        made.append(options["offload_folder"])
        return options

    monkeypatch.setattr(spread, "room", lambda: {"cpu": 0})
    monkeypatch.setattr("rankfall.models.load.folder.spreading", watched)
    loaded = open_model(folder, device="auto", dtype="bfloat16")
    assert Path(made[0]).is_dir()
    del loaded
    gc.collect()
    assert not Path(made[0]).exists()


def test_without_accelerate_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"rankfall\[large\]"):
        open_model(folder, device="auto")


def test_a_copy_for_running_alone_leaves_our_hooks_behind_and_keeps_others() -> None:
    model = small_model("llama")
    attention = model.layers[0].self_attn
    attention.q_proj.register_forward_hook(lambda module, args, out: out * 2)
    from rankfall.models.recording.recorder import recorded

    with recorded(model, lambda call: None):
        made = alone(attention, torch.float64)
    assert len(made.q_proj._forward_hooks) == 1
    assert not made._forward_hooks
    assert {one.dtype for one in made.parameters()} == {torch.float64}
    assert made.q_proj.weight.data_ptr() != attention.q_proj.weight.data_ptr()
