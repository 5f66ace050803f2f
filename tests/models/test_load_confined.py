"""Hostile models while they load: no code, no prompt, no network, bounded memory; every refusal one line."""

from __future__ import annotations

import builtins
import contextlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from tests.calls import refused
from tests.models.small import save_small, some_text
from tests.models.test_gguf import TOKENS, write_gguf
from tests.models.test_load_adapter import Q, adapter, pair
from tests.models.test_load_hub import fill

from rankfall.errors import RequestError
from rankfall.models.audit import audit
from rankfall.models.load.confinement import memory_limit, offline
from rankfall.models.load.gguf_file import begins_with_bos, write_without_vocabulary
from rankfall.models.load.headers import GgufHeader, read_gguf_header
from rankfall.models.load.open import open_model
from rankfall.models.load.tokenizer import checked_table, require_sound_tokenizer


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFALL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.fixture(autouse=True)
def _no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who answers yes to everything."""
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("a prompt"))


def booby_trap(folder: Path, witness: Path) -> None:
    """Code beside the model, and every table naming it."""
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(witness)!r})\nclass Tokenizer: pass\n")
    code = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"], "AutoProcessor": "evil.Tokenizer"}}
    for name in ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json"):
        path = folder / name
        table = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(table | code | {"trust_remote_code": True}))


@pytest.mark.parametrize("way", ["folder", "snapshot", "gguf", "pickle", "adapter", "adapter alone"])
@pytest.mark.filterwarnings("ignore")
def test_code_beside_a_model_never_runs(
    tmp_path: Path, witness: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_small(tmp_path / "model")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    options: dict[str, Any] = {}
    target: Path = folder
    if way == "gguf":
        target = write_gguf(folder / "m.gguf")
    if way == "pickle":
        from safetensors.torch import load_file

        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    booby_trap(folder, witness)
    if way == "snapshot":
        target = fill(tmp_path / "hub", "org/small", folder)
    if way.startswith("adapter"):
        lora = adapter(tmp_path / "lora", pair(Q))
        booby_trap(lora, witness)
        fill(tmp_path / "hub", "org/base", folder)
        target, options = (lora, {}) if way == "adapter alone" else (folder, {"adapter": lora})
    loaded = open_model(target, **options)
    assert loaded.tokenizer is not None
    assert not witness.exists()
    assert "evil" not in sys.modules


class Network:
    """Counts who asks for an address, and gives none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        monkeypatch.setattr(socket, "getaddrinfo", self.refuse)
        monkeypatch.setattr(socket.socket, "connect", self.refuse)

    def refuse(self, *arguments: Any, **options: Any) -> Any:
        self.asked.append(arguments)
        raise OSError("no network here")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_model_type_reaches_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may name parts that lie on the hub; some types (detr, dpt, vitmatte) would fetch them."""
    from safetensors.torch import save_file
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    parts = {"backbone": "microsoft/resnet-50", "use_pretrained_backbone": True, "use_timm_backbone": False}
    save_file({"x": torch.zeros(4)}, tmp_path / "model.safetensors", {"format": "pt"})
    network = Network(monkeypatch)
    reached: list[str] = []
    for kind in CONFIG_MAPPING_NAMES:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "backbone_config": None} | parts))
        with pytest.raises(RequestError) as caught:
            open_model(tmp_path)
        assert "\n" not in str(caught.value)
        if network.asked:
            reached.append(kind)
            network.asked.clear()
    assert reached == []
    assert len(CONFIG_MAPPING_NAMES) > 300
    assert constants.HF_HUB_OFFLINE is False


def test_nothing_in_the_thread_reaches_the_network_offline() -> None:
    with offline(), pytest.raises(OSError, match="the network is off while a model is loaded"):
        socket.create_connection(("127.0.0.1", 9))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", 9))


def test_memory_beyond_what_is_free_is_refused_not_taken() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit(), pytest.raises((MemoryError, RuntimeError)):
        torch.empty(1 << 44, dtype=torch.uint8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_two_billion_labels_are_refused(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "model")
    path = folder / "config.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps(table | {"num_labels": 2_000_000_000}))
    with pytest.raises(RequestError, match=r"num_labels in config\.json to be at most 1,000,000; got 2,000,000,000"):
        open_model(folder)
    names = {f"stumbling block {number}": 20_000 + number for number in range(3)}
    path.write_text(json.dumps(table | {"label2id": names, "id2label": {v: k for k, v in names.items()}}))
    assert open_model(folder).parameters > 0


WORDS = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}
PAD = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
GROW = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
LONG = {"id": "x", "ids": [0] * 1000, "tokens": ["x"] * 1000}
BOMBS: dict[str, dict[str, Any]] = {
    "padding to a length": {"padding": PAD | {"strategy": {"Fixed": 10**11}}},
    "padding to a multiple": {"padding": PAD | {"strategy": "BatchLongest", "pad_to_multiple_of": 10**11}},
    "a letter becomes thousands": {"normalizer": {"type": "Sequence", "normalizers": [GROW, GROW, GROW]}},
    "a frame of thousands": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 2000,
            "pair": [],
            "special_tokens": {"x": LONG},
        }
    },
    "a panic": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_tokenizers_that_ask_for_too_much_are_refused(tmp_path: Path, bomb: str) -> None:
    table = {"version": "1.0", "added_tokens": [], "model": WORDS, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(table))
    require_sound_tokenizer(path)
    path.write_text(json.dumps(table | BOMBS[bomb]))
    with pytest.raises(RequestError, match=r"a tokenizer\.json that reads a short text within") as caught:
        require_sound_tokenizer(path)
    assert "\n" not in str(caught.value)


def test_tables_that_ask_for_a_long_list_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"extra_ids": 10**9}))
    with pytest.raises(RequestError, match=r"extra_ids in tokenizer_config\.json to be at most 1,000,000"):
        checked_table(path)
    path.write_text(json.dumps({"model_max_length": 10**30, "extra_ids": 100, "auto_map": {"x": "y"}}))
    assert checked_table(path) == {"model_max_length": 10**30, "extra_ids": 100}


def test_the_library_does_not_read_a_vocabulary_twice(tmp_path: Path) -> None:
    """The copy that configuration and tensors are read from holds no word of it, whatever its size."""
    path = write_gguf(tmp_path / "m.gguf")
    header = read_gguf_header(path)
    write_without_vocabulary(path, header, tmp_path / "slim.gguf")
    slim = read_gguf_header(tmp_path / "slim.gguf")
    assert header.vocabulary == len(TOKENS)
    assert slim.vocabulary == 0
    assert not [key for key in slim.facts if key.startswith("tokenizer.")]
    assert slim.facts["llama.vocab_size"] == len(TOKENS)
    assert slim.elements == header.elements
    assert (tmp_path / "slim.gguf").read_bytes()[slim.data :] == path.read_bytes()[header.data :]


@pytest.mark.parametrize(
    ("facts", "begins"),
    [
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.model": "gpt2"}, True),
        ({"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.model": "llama"}, False),
        ({"tokenizer.ggml.model": "llama"}, True),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}, False),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"}, True),
    ],
)
def test_which_texts_begin_with_a_token_of_their_own(facts: dict[str, Any], begins: bool) -> None:
    assert begins_with_bos(GgufHeader(facts, {}, {}, (0, 0), 0, 32, 0)) is begins


@pytest.mark.filterwarnings("ignore")
def test_the_beginning_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    plain = open_model(write_gguf(tmp_path / "plain.gguf")).tokenizer
    with_bos = open_model(write_gguf(tmp_path / "bos.gguf", add_bos=True)).tokenizer
    assert with_bos("w0")["input_ids"] == [2, *plain("w0")["input_ids"]]
    assert with_bos("w0", add_special_tokens=False)["input_ids"] == plain("w0")["input_ids"]


def test_token_ids_beyond_the_embeddings_are_refused(tmp_path: Path) -> None:
    folder = save_small(tmp_path / "model", vocab_size=40)
    with pytest.raises(RequestError, match=r"token ids below 40.*the tokenizer belongs to another model"):
        audit(folder, [some_text(60)], tokens=32)


def test_a_failure_inside_the_forward_pass_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import BertModel

    def fail(*arguments: Any, **options: Any) -> Any:
        raise IndexError("line one\nline two \x1b[2J")

    folder = save_small(tmp_path / "mo\x9bdel")
    monkeypatch.setattr(BertModel, "forward", fail)
    said = refused(capsys, "audit", folder, "--tokens", "16", "--no-controls")
    assert "to run on these inputs; got IndexError: line one line two [2J;" in said
    assert "\x9b" not in said


def test_xlnet_is_audited_or_refused_in_one_line(tmp_path: Path) -> None:
    from transformers import XLNetConfig, XLNetLMHeadModel

    folder = save_small(tmp_path / "model")
    config = XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=48, vocab_size=64, bos_token_id=2, eos_token_id=3)
    XLNetLMHeadModel(config).save_pretrained(folder)
    # Nothing but a refusal may come out of it.
    with contextlib.suppress(RequestError):
        assert audit(folder, [some_text(20)], tokens=12).text.loss is None


def test_what_is_built_without_files_is_built_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Default configurations, small models and random twins: each could name a part that lies on the hub."""
    from rankfall.models.architectures import small, survey
    from rankfall.models.controls import twin

    said: list[str] = []

    def ask(*_: object, **__: object) -> str:
        with pytest.raises(OSError, match="the network is off") as caught:
            socket.getaddrinfo("huggingface.co", 443)
        said.append(str(caught.value))
        assert constants.HF_HUB_OFFLINE
        raise RuntimeError("asked")

    before = constants.HF_HUB_OFFLINE
    monkeypatch.setattr(survey, "_read", ask)
    monkeypatch.setattr(small, "_build", ask)
    with pytest.raises(RuntimeError, match="asked"):
        survey.survey_configurations(["bert"])
    with pytest.raises(RequestError, match="a recipe of small sizes"):
        next(small.small_models("bert"))

    class Asking(torch.nn.Linear):
        config = None
        _from_config = staticmethod(ask)

    with pytest.raises(RuntimeError, match="asked"):
        twin.separate_twin(Asking(2, 2))
    assert len(said) >= 3
    assert constants.HF_HUB_OFFLINE is before
