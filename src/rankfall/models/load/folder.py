"""A model's folder becomes a model: everything checked, then only checked files handed to the library."""

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
from rankfall.models.load.adapter import merge_adapter
from rankfall.models.load.confinement import memory_limit, offline
from rankfall.models.load.files import INDEX, WeightFiles, find_weights, inside, repository_root
from rankfall.models.load.guards import LIMITS, clean_config, read_json, require_room, require_size, skeleton
from rankfall.models.load.quantised import elements_held, quantisation
from rankfall.models.load.spread import AUTO, settle, spreading
from rankfall.models.load.tokenizer import (
    TOKENIZER_FILES,
    TOKENIZER_TABLES,
    checked_table,
    has_tokenizer,
    library_tokenizer,
    require_sound_tokenizer,
)
from rankfall.models.recording.blocks import body_of


@final
@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The network, its tokenizer if it has one, where it came from, and what was ignored on the way.

    `network` is the body that is audited; `whole` is the model with its head, None where no sound head was loaded.
    """

    network: nn.Module
    tokenizer: Any | None
    name: str
    source: str
    notes: tuple[str, ...] = ()
    whole: nn.Module | None = None

    @property
    def parameters(self) -> int:
        """How many numbers the network holds, shared ones once."""
        return sum(parameter.numel() for parameter in self.network.parameters())


@final
@dataclass(frozen=True)
class CheckedFolder:
    """What of a model's folder is known before anything is loaded: its weights' headers and its configuration."""

    root: Path
    weights: WeightFiles
    config: dict[str, Any]
    quantisation: str | None
    notes: tuple[str, ...]


def checked_folder(folder: Path) -> CheckedFolder:
    """Refuse a folder without configuration or sound weights; no weight is read."""
    root = repository_root(folder)
    require(
        (folder / "config.json").exists(),
        required=f"config.json in {folder.name}",
        got="none",
        remedy="name a folder that holds a model",
    )
    weights = find_weights(folder, root)
    config, notes = clean_config(read_json(inside(folder, "config.json", root)))
    method, config = quantisation(config)
    return CheckedFolder(root, weights, config, method, notes)


@contextlib.contextmanager
def staged(folder: Path, root: Path, config: dict[str, Any], weights: WeightFiles) -> Iterator[Path]:
    """The temporary folder: links to checked files, and rewritten copies of what is configuration."""
    with tempfile.TemporaryDirectory(prefix="rankfall-") as made:
        stage = Path(made)
        (stage / "config.json").write_text(json.dumps(config))
        for name, path in weights.files.items():
            (stage / name).symlink_to(path)
        if weights.index is not None:
            (stage / INDEX).write_text(json.dumps({"metadata": {}, **weights.index}))
        for name in TOKENIZER_FILES:
            if (folder / name).exists():
                path = inside(folder, name, root)
                require_size(path, LIMITS.tokenizer_bytes)
                if name == "tokenizer.json":
                    require_sound_tokenizer(path)
                (stage / name).symlink_to(path)
        for name in TOKENIZER_TABLES:
            if (folder / name).exists():
                (stage / name).write_text(json.dumps(checked_table(inside(folder, name, root))))
        yield stage


def open_folder(
    folder: Path,
    *,
    name: str,
    source: str,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    adapter: Path | None = None,
    online: bool = False,
) -> LoadedModel:
    """Check everything, build the skeleton without storage, then load.

    Nothing that is loaded lies outside of the folder, or of its repository in the hub's cache. `adapter` is a folder
    of low-rank updates to merge. Unless `online`, nothing reaches the network meanwhile.
    """
    checked = checked_folder(folder)
    weights, method, notes = checked.weights, checked.quantisation, checked.notes
    with (
        contextlib.ExitStack() as undo,
        staged(folder, checked.root, checked.config, weights) as stage,
        offline(not online),
        memory_limit(weights.bytes),
        quiet(),
        refused_in_one_line(),
    ):
        config = library_config(checked.config, stage)
        kind = library_class(config)
        held = elements_held(weights.tensors, method)
        empty = skeleton(kind, config, elements=held, tensors=len(weights.tensors))
        if device != AUTO:
            require_room(empty, torch.finfo(dtype).bits // 8)
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
        unused = require_complete(info, network)
        notes += left_out(info)
        if method is not None:
            _forget_quantisation(network, dtype)
            notes += (f"weights in {method} were turned back into {str(dtype).removeprefix('torch.')}",)
        if adapter is not None:
            notes += merge_adapter(network, adapter)
        if device == AUTO:
            settle(network, device, undo)
        tokenizer = library_tokenizer(stage) if has_tokenizer(stage) else None
    require_finite(network)
    if unused:
        notes += (f"{len(unused)} weights outside the body are not in the files, such as {unused[0]}; not used",)
    body = body_of(network)
    whole = network if body is not network and not unused else None
    if device != AUTO:
        network.to(device)
    network.eval()
    return LoadedModel(body, tokenizer, name, source, (*notes, *weights.notes), whole)


def _forget_quantisation(network: Any, dtype: torch.dtype) -> None:
    """The weights are plain numbers now; what is left of their past would make copies of the model fail."""
    network.to(dtype)
    for owner in (network, *(one for one in network.modules() if hasattr(one, "config"))):
        for key in ("hf_quantizer", "quantization_method", "is_quantized"):
            owner.__dict__.pop(key, None)
        if hasattr(owner.config, "quantization_config"):
            del owner.config.quantization_config


def library_config(table: dict[str, Any], stage: Path) -> Any:
    """The configuration object, of a type the library knows."""
    from transformers import AutoConfig

    require_known_type(table)
    return AutoConfig.from_pretrained(stage, local_files_only=True, trust_remote_code=False)


def require_known_type(table: dict[str, Any]) -> None:
    """Refuse a configuration of a type that the library does not know."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = table.get("model_type")
    require(
        isinstance(kind, str) and kind in CONFIG_MAPPING_NAMES,
        required="a model_type that the transformers library knows",
        got=repr(kind)[:60],
        remedy="update transformers, or audit the loaded module from Python",
    )


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


def require_complete(info: dict[str, Any], network: nn.Module) -> list[str]:
    """Weights of the body that are not in the files would be random numbers: refuse. Gives those missing outside."""
    missing = sorted(str(key) for key in info.get("missing_keys", ()))
    wrong = sorted(str(key) for key in info.get("mismatched_keys", ()))
    needed = _body_names(network)
    absent = [key for key in missing if key in needed]
    require(
        not absent and not wrong,
        required="weights for every part of the model",
        got=f"{len(absent)} missing and {len(wrong)} of another shape, such as {(absent + wrong)[:1]}",
        remedy="the files do not belong to this configuration; download the model again",
    )
    return [key for key in missing if key not in needed]


def left_out(info: dict[str, Any]) -> tuple[str, ...]:
    """A note on weights of the files for which the configuration has no place: it may ask for fewer layers."""
    extra = sorted(str(key) for key in info.get("unexpected_keys", ()))
    if not extra:
        return ()
    return (f"{len(extra)} weights of the files have no place in this configuration, such as {extra[0]}; left out",)


def _body_names(network: nn.Module) -> set[str]:
    """The names of all that the token stream runs through; a pooler reads it at its end and changes nothing in it."""
    body = body_of(network)
    mine = {id(tensor) for name, tensor in _named_tensors(body) if "pooler" not in name.split(".")}
    return {name for name, tensor in _named_tensors(network) if id(tensor) in mine}


def _named_tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)


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
    except MemoryError as error:
        raise RequestError(
            required="a model that fits into the free memory",
            got="an allocation beyond it while loading",
            remedy="check config.json, use --dtype bfloat16, or a larger machine",
        ) from error
    except BaseException as error:
        # Compiled libraries panic with something that is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(error).strip().splitlines() or [""]
        raise RequestError(
            required="a model that the transformers library can load",
            got=f"{type(error).__name__}: {lines[0][:200]}",
            remedy=OFFLINE_REMEDY if _wanted_network(error) else REMEDY,
        ) from error


REMEDY = "check the files, or audit the loaded module from Python"
OFFLINE_REMEDY = (
    "its configuration names another model on the hub, such as a backbone: --allow-download lets it be fetched"
)


def _wanted_network(error: BaseException | None) -> bool:
    """Whether the library failed because it was kept from the network, here or in what led to this."""
    while error is not None:
        if "Offline" in type(error).__name__ or "network is off" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
