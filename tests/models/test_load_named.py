"""Named models: parts are joined and verified before use; the real ones open and give what is known of them."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.models.real import needs

from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import RequestError
from rankfall.models.audit import audit
from rankfall.models.load import named
from rankfall.models.load.named import GEMMA3, MPNET, named_path
from rankfall.models.load.open import open_model
from rankfall.models.load.whisper import library_name

ROOT = Path(__file__).parents[2]


def test_every_requirement_stands_in_the_file_that_make_installs() -> None:
    for file, light in (("models.txt", True), ("models-all.txt", False)):
        wanted = [word for one in NAMED_MODELS if one.light == light for word in one.requirement.split()]
        assert sorted((ROOT / file).read_text().split()) == sorted(wanted)


def test_the_heavy_ones_have_sizes_hashes_and_licences() -> None:
    for one in NAMED_MODELS:
        assert one.licence
        assert one.light or (one.size > 0 and len(one.sha256) == 64)


@pytest.fixture
def installed_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKFALL_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("RANKFALL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def install(folder: Path, files: tuple[str, ...], whole: bytes) -> None:
    size = -(-len(whole) // len(files))
    for place, file in enumerate(files):
        path = folder / "models" / file
        path.parent.mkdir(parents=True)
        path.write_bytes(whole[place * size : (place + 1) * size])


def known(monkeypatch: pytest.MonkeyPatch, one: named.NamedModel, whole: bytes) -> None:
    """The model's entry as if these bytes were the ones that we know."""
    changed = replace(one, size=len(whole), sha256=hashlib.sha256(whole).hexdigest())
    monkeypatch.setattr(named, "NAMED_MODELS", {one.name: changed})


def test_parts_are_joined_once(installed_parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytes(range(256)) * 5
    install(installed_parts, GEMMA3.files, whole)
    known(monkeypatch, GEMMA3, whole)
    path = named_path("gemma3-270m")
    assert path is not None
    assert path.name == "gemma-3-270m-q4_k_m.gguf"
    assert path.read_bytes() == whole
    stamp = path.stat().st_mtime_ns
    assert named_path("gemma3-270m") == path
    assert path.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("change", ["one byte", "a byte more"])
def test_other_bytes_are_refused_and_nothing_is_kept(
    installed_parts: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    whole = bytes(range(256)) * 5
    known(monkeypatch, GEMMA3, whole)
    install(installed_parts, GEMMA3.files, b"x" + whole[1:] if change == "one byte" else whole + b"x")
    with pytest.raises(RequestError, match=r"the files of gemma3-270m: 1,280 bytes.*install its packages again"):
        named_path("gemma3-270m")
    assert list((installed_parts / "cache" / "joined").iterdir()) == []


def test_only_a_models_own_files_leave_a_zip(installed_parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = installed_parts / "made.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for name in (
            "all-mpnet-base-v2/config.json",
            "all-mpnet-base-v2/evil.py",
            "all-mpnet-base-v2/../../out.json",
        ):
            made.writestr(name, "{}")
    whole = archive.read_bytes()
    install(installed_parts, MPNET.files, whole)
    known(monkeypatch, MPNET, whole)
    folder = named_path("all-mpnet-base-v2")
    assert folder is not None
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["all-mpnet-base-v2"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("encoder.blocks.3.attn.query.weight", "model.encoder.layers.3.self_attn.q_proj.weight"),
        ("decoder.blocks.0.cross_attn.out.bias", "model.decoder.layers.0.encoder_attn.out_proj.bias"),
        ("decoder.blocks.0.cross_attn_ln.bias", "model.decoder.layers.0.encoder_attn_layer_norm.bias"),
        ("decoder.blocks.1.mlp.2.weight", "model.decoder.layers.1.fc2.weight"),
        ("decoder.positional_embedding", "model.decoder.embed_positions.weight"),
        ("encoder.ln_post.weight", "model.encoder.layer_norm.weight"),
    ],
)
def test_names_of_whisper(theirs: str, ours: str) -> None:
    assert library_name(theirs) == ours


@needs("gemma3-270m")
def test_gemma_begins_with_its_token_and_predicts_the_text() -> None:
    found = audit("gemma3-270m", tokens=128, passages=1, heads=False, controls=False, ablation=False)
    assert found.model.parameters == 268_098_176
    assert found.model.notes == ()
    assert found.text.loss == pytest.approx(3.74, abs=0.3)
    loaded = open_model("gemma3-270m")
    assert loaded.tokenizer("harbour")["input_ids"][0] == 2


@needs("qwen2.5-coder-0.5b")
def test_qwen_predicts_the_text_without_a_first_token() -> None:
    found = audit("qwen2.5-coder-0.5b", tokens=64, passages=1, heads=False, controls=False, ablation=False)
    assert (found.model.layers, found.model.width) == (24, 896)
    assert found.text.loss is not None
    assert found.text.loss < 5


@needs("all-mpnet-base-v2")
def test_mpnet_opens_without_its_unused_head() -> None:
    found = audit("all-mpnet-base-v2", tokens=64, passages=1, heads=False, controls=False, ablation=False)
    assert (found.model.layers, found.model.width) == (12, 768)
    assert "such as lm_head.bias" in found.model.notes[0]


@needs("whisper-tiny.en")
def test_whisper_opens_from_openais_file() -> None:
    loaded = open_model("whisper-tiny.en")
    assert loaded.parameters == 37_760_256
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "input_features": torch.randn(1, 80, 3000, generator=generator),
        "decoder_input_ids": torch.tensor([[50257, 50362, 464, 12088]]),
    }
    found = audit(loaded, inputs=inputs, stack="encoder", heads=False, controls=False, ablation=False)
    assert (found.model.layers, found.text.loss) == (4, None)
