"""A model ready to be audited."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from rankfall.errors import RequestError, require
from rankfall.models.blocks import body_of
from rankfall.models.load.guards import (
    LIMITS,
    Limits,
    clean_config,
    read_json,
    require_memory,
    require_size,
    skeleton,
)
from rankfall.models.load.headers import TensorEntry, read_safetensors_header
from rankfall.models.load.spread import AUTO, settle, spreading


@final
@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The network, its tokenizer if it has one, where it came from, and what was ignored on the way."""

    network: nn.Module
    tokenizer: Any | None
    name: str
    source: str
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """How many numbers the network holds, shared ones once."""
        return sum(parameter.numel() for parameter in self.network.parameters())


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")


@final
@dataclass(frozen=True)
class WeightFiles:
    """Names as the library expects them, the real files, and every tensor that they hold."""

    files: dict[str, Path]
    tensors: dict[str, TensorEntry]

    @property
    def elements(self) -> int:
        """Numbers in all tensors together."""
        return sum(entry.elements for entry in self.tensors.values())


def find_weights(folder: Path, root: Path, limits: Limits = LIMITS) -> WeightFiles:
    """The folder's safetensors files; `root` is the folder that no file may lie outside of."""
    sharded = (folder / INDEX).exists()
    names = _shards(folder) if sharded else [_single_file(folder)]
    files: dict[str, Path] = {}
    tensors: dict[str, TensorEntry] = {}
    for name in names:
        path = inside(folder, name, root)
        files[name if sharded else SINGLE] = path
        tensors.update(read_safetensors_header(path, limits))
    return WeightFiles(files, tensors)


def inside(folder: Path, name: str, root: Path) -> Path:
    """The file of that plain name in the folder, its links followed, which must end inside `root`."""
    plain = Path(name).name == name and name not in ("", ".", "..") and "\\" not in name
    path = (folder / name).resolve() if plain else folder
    require(
        plain and path.is_relative_to(root.resolve()),
        required="weights inside the model's own folder",
        got=repr(name)[:80],
        remedy="do not trust this model; nothing was read",
    )
    require(path.is_file(), required=f"the file {name}", got="nothing there", remedy="download the model again")
    return path


def _shards(folder: Path) -> list[str]:
    mapping = read_json(folder / INDEX, LIMITS.header_bytes).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise RequestError(required=f"a weight_map in {INDEX}", got="none", remedy="download the model again")
    names = sorted(set(mapping.values()))
    for name in names:
        require(
            name.endswith(".safetensors"),
            required="an index that names safetensors files only",
            got=repr(name)[:80],
            remedy="pickled weights are never read; convert the model to safetensors",
        )
    return names


def _single_file(folder: Path) -> str:
    if (folder / SINGLE).exists():
        return SINGLE
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    raise RequestError(
        required=f"weights as {SINGLE} (or with an index) in {folder.name}",
        got=f"only {', '.join(pickled[:3])}" if pickled else f"{len(found)} safetensors files",
        remedy="pickled weights are never read; convert the model to safetensors",
    )


TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
TOKENIZER_TABLES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


@contextlib.contextmanager
def staged(folder: Path, root: Path, config: dict[str, Any], weights: WeightFiles) -> Iterator[Path]:
    """The temporary folder: links to checked files, and rewritten copies of what is configuration."""
    with tempfile.TemporaryDirectory(prefix="rankfall-") as made:
        stage = Path(made)
        (stage / "config.json").write_text(json.dumps(config))
        for name, path in weights.files.items():
            (stage / name).symlink_to(path)
        if (folder / INDEX).exists():
            (stage / INDEX).write_text(json.dumps(read_json(folder / INDEX, LIMITS.header_bytes)))
        for name in TOKENIZER_FILES:
            if (folder / name).exists():
                path = inside(folder, name, root)
                require_size(path, LIMITS.tokenizer_bytes)
                (stage / name).symlink_to(path)
        for name in TOKENIZER_TABLES:
            if (folder / name).exists():
                table = read_json(inside(folder, name, root))
                table.pop("auto_map", None)
                (stage / name).write_text(json.dumps(table))
        yield stage


def has_tokenizer(folder: Path) -> bool:
    """Whether any file there can hold a vocabulary."""
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def open_folder(
    folder: Path,
    *,
    name: str,
    source: str,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    root: Path | None = None,
) -> LoadedModel:
    """Check everything, build the skeleton without storage, then load; `root` bounds where links may lead."""
    root = folder if root is None else root
    require(
        (folder / "config.json").exists(),
        required=f"config.json in {folder.name}",
        got="none",
        remedy="name a folder that holds a model",
    )
    weights = find_weights(folder, root)
    config_table, notes = clean_config(read_json(folder / "config.json"))
    with (
        contextlib.ExitStack() as undo,
        staged(folder, root, config_table, weights) as stage,
        quiet(),
        refused_in_one_line(),
    ):
        config = library_config(config_table, stage)
        kind = library_class(config)
        empty = skeleton(kind, config, elements=weights.elements, tensors=len(weights.tensors))
        if device != AUTO:
            require_memory(sum(p.numel() for p in empty.parameters()), torch.finfo(dtype).bits // 8)
        network, info = kind.from_pretrained(
            stage,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa" if getattr(kind, "_supports_sdpa", False) else "eager",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **spreading(device, undo),
        )
        require_complete(info)
        settle(network, device, undo)
        tokenizer = library_tokenizer(stage) if has_tokenizer(stage) else None
    require_finite(network)
    return LoadedModel(body_of(network).eval(), tokenizer, name, source, notes)


def library_config(table: dict[str, Any], stage: Path) -> Any:
    """The configuration object, of a type the library knows."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = table.get("model_type")
    require(
        isinstance(kind, str) and kind in CONFIG_MAPPING_NAMES,
        required="a model_type that the transformers library knows",
        got=repr(kind)[:60],
        remedy="update transformers, or audit the loaded module from Python",
    )
    return AutoConfig.from_pretrained(stage, local_files_only=True, trust_remote_code=False)


def library_class(config: Any) -> Any:
    """The class that saved the weights, where the configuration names one of the library's; else the bare model."""
    import transformers

    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            own: Any = getattr(found, "config_class", None)
            if getattr(own, "model_type", None) == config.model_type:
                return found
    return transformers.AutoModel._model_mapping[type(config)]


def library_tokenizer(stage: Path) -> Any:
    """The tokenizer, by the library's own classes only."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(stage, local_files_only=True, trust_remote_code=False)


def require_complete(info: dict[str, Any]) -> None:
    """Weights that are not in the files would be random numbers: refuse."""
    missing = sorted(str(key) for key in info.get("missing_keys", ()))
    wrong = sorted(str(key) for key in info.get("mismatched_keys", ()))
    require(
        not missing and not wrong,
        required="weights for every part of the model",
        got=f"{len(missing)} missing and {len(wrong)} of another shape, such as {(missing + wrong)[:1]}",
        remedy="the files do not belong to this configuration; download the model again",
    )


def require_finite(network: nn.Module) -> None:
    """NaN or infinite weights make every number that follows meaningless: refuse. Weights that stay on disk are not
    read for this: what they give is refused when it is measured."""
    for name, parameter in network.named_parameters():
        if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
            bad = int((~torch.isfinite(parameter)).sum())
            raise RequestError(
                required="finite weights",
                got=f"{bad:,} NaN or infinite numbers in {name}",
                remedy="the training diverged or the file is damaged",
            )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The library's warnings and progress bars off, and on again as they were."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def refused_in_one_line() -> Iterator[None]:
    """What the library cannot load becomes one line; our own refusals pass through."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise RequestError(
            required="a model that the transformers library can load",
            got=f"{type(error).__name__}: {lines[0][:200]}",
            remedy="check the files, or audit the loaded module from Python",
        ) from error
