"""The folders that inputs start from: paths of every awkward kind, a small store, a small model, results."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from pathlib import Path

from fuzz.case import EDITS

GRID = """points = 4
dim = 8
feed_forward = 16
batch = 4
steps = 100
rank = [2, 4, 8]
seed = [0, 1]
learning_rate = 0.003
"""
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(60))]
LINKS = {
    **{f"dangling{ending}": "nowhere" for ending in ("", ".csv", ".png")},
    **{f"loop{ending}": f"loop{ending}" for ending in ("", ".csv", ".png")},
    **{f"todevice{ending}": "/dev/null" for ending in (".csv", ".png")},
    **{f"tofile{ending}": "file" for ending in (".csv", ".png")},
}


def build(folder: Path) -> None:
    """Write the templates `plain`, `model` and `store` into a folder."""
    common = folder / "store"
    common.mkdir(parents=True)
    for name in ("file", "file.csv", "file.png"):
        (common / name).write_text("kept\n")
    for name in ("folder", "folder.csv", "folder.png", "empty"):
        (common / name).mkdir()
    (common / "folder" / "inside").write_text("kept\n")
    (common / "text.txt").write_text(" ".join(WORDS[4:40]) * 3)
    (common / "binary").write_bytes(bytes(range(256)) * 4)
    (common / "grid.toml").write_text(GRID)
    _layer(common / "layer.json")
    _runs(common)
    shutil.copytree(common, folder / "plain")
    _model(folder / "plain" / "model")
    (folder / "model").mkdir()
    shutil.copytree(folder / "plain" / "model", folder / "model" / "model")


def place(template: Path, sandbox: Path) -> None:
    """A fresh copy of a template, with the entries that cannot be copied made anew; one that nobody touched stays."""
    mark = sandbox.with_name(f"{sandbox.name}.mark")
    if mark.exists() and mark.read_text() == _state(template, sandbox):
        return
    if sandbox.exists():
        with contextlib.suppress(OSError):
            os.chmod(sandbox / "readonly", 0o700)
        shutil.rmtree(sandbox)
    shutil.copytree(template, sandbox)
    if template.name == "plain":
        _add_awkward(sandbox)
    mark.write_text(_state(template, sandbox))


def _state(template: Path, sandbox: Path) -> str:
    """The template and every entry of its copy with what the system changes when anything is done to it."""
    found = [str(template)]
    for folder, folders, files in os.walk(sandbox):
        for name in sorted([".", *folders, *files]):
            told = os.lstat(f"{folder}/{name}")
            found.append(f"{folder}/{name} {told.st_ino} {told.st_mode} {told.st_size} {told.st_ctime_ns}")
    return "\n".join(found)


def _add_awkward(sandbox: Path) -> None:
    for name, target in LINKS.items():
        (sandbox / name).symlink_to(target)
    os.chdir(sandbox)
    for ending in ("", ".csv", ".png"):
        EDITS["fifo"](Path(f"fifo{ending}"))
        EDITS["socket"](Path(f"socket{ending}"))
        _device(Path(f"device{ending}"))
    Path("zero").symlink_to("/dev/zero")
    Path("readonly").mkdir(mode=0o500)


def _device(path: Path) -> None:
    """A device that swallows everything: one of our own where we may make it, since a fault might replace it."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError:
        path.symlink_to("/dev/null")


def run_folders(template: Path) -> tuple[str, ...]:
    """The runs of the template's store, as paths in it."""
    return tuple(sorted(f"runs/{one.parent.name}" for one in (template / "runs").glob("*/manifest.json")))


def _layer(path: Path) -> None:
    from rankfall.api.equilibrium import equilibrium

    found = equilibrium(4, 3, 2).record()
    path.write_text(json.dumps({name: found[name] for name in ("tokens", "value", "attention")}))


def _runs(folder: Path) -> None:
    from rankfall.store.results import export_results
    from rankfall.store.store import Store
    from rankfall.training.grid import read_grid
    from rankfall.training.sweep import sweep

    sweep(read_grid(folder / "grid.toml")[:3], folder / "runs")
    page, notes = export_results(Store(folder / "runs").runs(), folder / "results")
    page.rename(folder / "results" / "a.csv")
    notes.rename(folder / "results" / "a.json")


def _model(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    AutoModel.from_config(
        AutoConfig.for_model("bert", vocab_size=64, max_position_embeddings=32, **sizes)
    ).save_pretrained(folder)
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(folder)
