"""Whisper as OpenAI published it, one pickled file: its tensors renamed as the library names them.

The sizes of the model are read off the tensors; what else the file holds is not used. Every head has 64 dimensions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankfall.errors import RequestError
from rankfall.models.load.converted import written_at_once
from rankfall.models.load.folder import LoadedModel, open_folder
from rankfall.models.load.headers import TensorEntry, read_safetensors_header
from rankfall.models.load.pickles import as_safetensors

HEAD_SIZE = 64
# In order: a later rule sees what the earlier ones made.
RENAMES = (
    (r"\.blocks\.", ".layers."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.attn\.", ".self_attn."),
    (r"attn\.query\.", "attn.q_proj."),
    (r"attn\.key\.", "attn.k_proj."),
    (r"attn\.value\.", "attn.v_proj."),
    (r"attn\.out\.", "attn.out_proj."),
    (r"^(encoder|decoder)\.positional_embedding$", r"\1.embed_positions.weight"),
    (r"^decoder\.token_embedding\.", "decoder.embed_tokens."),
    (r"^encoder\.ln_post\.", "encoder.layer_norm."),
    (r"^decoder\.ln\.", "decoder.layer_norm."),
)
MARKS = ("encoder.conv1.weight", "encoder.positional_embedding", "decoder.token_embedding.weight")


def open_whisper(path: Path, **options: Any) -> LoadedModel:
    """The model of a lone pickled file, which must be Whisper: any other needs config.json beside it."""
    tensors_file = as_safetensors(path)
    header = read_safetensors_header(tensors_file)
    if not all(mark in header for mark in MARKS):
        raise RequestError(
            required="a folder with config.json for pickled weights, or Whisper in OpenAI's format",
            got=f"{path.name} with tensors such as {next(iter(header), 'none')[:60]}",
            remedy="name the folder that holds the file and its config.json",
        )
    folder = tensors_file.with_suffix("")
    if not (folder / "config.json").exists():
        _write(folder, tensors_file, header)
    return open_folder(folder, **options)


def library_name(name: str) -> str:
    """Where the library keeps the tensor that OpenAI's file calls so."""
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return f"model.{name}"


def library_configuration(header: Mapping[str, TensorEntry]) -> dict[str, Any]:
    """The configuration that these tensors have."""
    width, mels, _ = header["encoder.conv1.weight"].shape
    vocabulary, _ = header["decoder.token_embedding.weight"].shape
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": width,
        "num_mel_bins": mels,
        "vocab_size": vocabulary,
        "max_source_positions": header["encoder.positional_embedding"].shape[0],
        "max_target_positions": header["decoder.positional_embedding"].shape[0],
        "encoder_layers": _count(header, "encoder"),
        "decoder_layers": _count(header, "decoder"),
        "encoder_attention_heads": width // HEAD_SIZE,
        "decoder_attention_heads": width // HEAD_SIZE,
        "encoder_ffn_dim": header["encoder.blocks.0.mlp.0.weight"].shape[0],
        "decoder_ffn_dim": header["decoder.blocks.0.mlp.0.weight"].shape[0],
    }


def _count(names: Iterable[str], half: str) -> int:
    found = {int(match[1]) for name in names if (match := re.match(rf"{half}\.blocks\.(\d+)\.", name))}
    return len(found)


def _write(folder: Path, tensors_file: Path, header: Mapping[str, TensorEntry]) -> None:
    from safetensors.torch import load_file, save_file

    with written_at_once(folder) as made:
        try:
            configuration = library_configuration(header)
        except (KeyError, ValueError) as error:
            raise RequestError(
                required="all tensors of Whisper", got=f"none that gives {error}", remedy="download the file again"
            ) from None
        tensors = {library_name(name): tensor for name, tensor in load_file(tensors_file).items()}
        save_file(tensors, made / "model.safetensors", {"format": "pt"})
        (made / "config.json").write_text(json.dumps(configuration))
