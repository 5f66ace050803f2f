"""Open a folder of safetensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankfall.audit.load.config_check import clean_config, read_json
from rankfall.audit.load.construct import skeleton
from rankfall.audit.load.limits import require_memory
from rankfall.audit.load.loaded import LoadedModel
from rankfall.audit.load.stage import has_tokenizer, staged
from rankfall.audit.load.weight_files import find_weights
from rankfall.errors import RequestError, require


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
    with staged(folder, root, config_table, weights) as stage, quiet(), refused_in_one_line():
        config = library_config(config_table, stage)
        kind = library_class(config)
        empty = skeleton(kind, config, elements=weights.elements, tensors=len(weights.tensors))
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
        )
        check_complete(info)
        tokenizer = library_tokenizer(stage) if has_tokenizer(stage) else None
    check_numbers(network)
    body = getattr(network, "base_model", network)
    return LoadedModel(body.to(device).eval(), tokenizer, name, source, notes)


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


def check_complete(info: dict[str, Any]) -> None:
    """Weights that are not in the files would be random numbers: refuse."""
    missing = sorted(str(key) for key in info.get("missing_keys", ()))
    wrong = sorted(str(key) for key in info.get("mismatched_keys", ()))
    require(
        not missing and not wrong,
        required="weights for every part of the model",
        got=f"{len(missing)} missing and {len(wrong)} of another shape, such as {(missing + wrong)[:1]}",
        remedy="the files do not belong to this configuration; download the model again",
    )


def check_numbers(network: nn.Module) -> None:
    """NaN or infinite weights make every number that follows meaningless: refuse."""
    for name, parameter in network.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
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
