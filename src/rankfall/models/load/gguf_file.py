"""GGUF files: converted once to safetensors, kept under the hash of their bytes, opened like a folder after that.

The library's reader takes every token of the vocabulary apart, three times, which for 262,144 tokens is a minute:
configuration and tensors are therefore read from a copy without the vocabulary, and the tokenizer from the file
alone, linked into a folder in which nothing else lies.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rankfall.errors import RequestError
from rankfall.models.load.confinement import memory_limit, offline
from rankfall.models.load.converted import folder_beside, kept_place, written_at_once
from rankfall.models.load.folder import LoadedModel, open_folder, quiet, refused_in_one_line, require_complete
from rankfall.models.load.guards import clean_config, require_memory, skeleton
from rankfall.models.load.headers import UINT32, GgufHeader, read_gguf_header

# Raised when the conversion changes, so that old copies are not used.
CONVERSION = 2
NAME = "model.gguf"
# Vocabularies of which the file does not say whether a text begins with a special token, but which always do.
BEGINS_WITH_BOS = ("llama",)
BYTE_LEVEL_WITH_BOS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")


def open_gguf(
    path: Path,
    *,
    name: str,
    source: str,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    adapter: Path | None = None,
) -> LoadedModel:
    """The model in a GGUF file; the first time takes up to a minute, after that it opens like a folder."""
    header = read_gguf_header(path)
    folder = kept_place(path, str(CONVERSION))
    if not (folder / "config.json").exists():
        convert(path, header, folder)
    return open_folder(folder, name=name, source=source, dtype=dtype, device=device, adapter=adapter)


def convert(path: Path, header: GgufHeader, folder: Path) -> None:
    """Write configuration, weights and tokenizer beside the cache, then move them in at once; or leave nothing."""
    size = path.stat().st_size
    with (
        written_at_once(folder) as made,
        folder_beside(folder) as alone,
        offline(),
        memory_limit(2 * size),
        quiet(),
        refused_in_one_line(),
    ):
        write_without_vocabulary(path, header, alone / "weights.gguf")
        _convert_weights(made, alone / "weights.gguf", header)
        (alone / "weights.gguf").unlink()
        (alone / NAME).symlink_to(path.resolve())
        _convert_tokenizer(made, alone, header)


def write_without_vocabulary(path: Path, header: GgufHeader, out: Path) -> None:
    """A copy of the file whose facts about the tokenizer are left out; only the vocabulary's size is kept."""
    size_key = f"{header.architecture}.vocab_size"
    kept = [span for key, span in header.spans.items() if not key.startswith("tokenizer.")]
    added = size_key not in header.facts and header.vocabulary > 0
    with path.open("rb") as file, out.open("wb") as copy:
        copy.write(file.read(8))
        copy.write(struct.pack("<QQ", len(header.elements), len(kept) + added))
        for span in kept:
            _copy(file, copy, *span)
        if added:
            encoded = size_key.encode()
            copy.write(struct.pack("<Q", len(encoded)) + encoded + struct.pack("<II", UINT32, header.vocabulary))
        _copy(file, copy, *header.table)
        copy.write(bytes(-copy.tell() % header.alignment))
        file.seek(header.data)
        shutil.copyfileobj(file, copy, 1 << 22)


def _copy(file: BinaryIO, copy: BinaryIO, begin: int, end: int) -> None:
    file.seek(begin)
    copy.write(file.read(end - begin))


def _convert_weights(made: Path, path: Path, header: GgufHeader) -> None:
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    table, _ = clean_config(load_gguf_checkpoint(str(path))["config"])
    if not isinstance(model_type := table.pop("model_type", None), str):
        raise RequestError(
            required="a GGUF architecture that transformers knows", got=header.architecture, remedy="use safetensors"
        )
    config = AutoConfig.for_model(model_type, **table)
    elements = sum(header.elements.values())
    kind = _class_for(AutoModelForCausalLM, config)
    empty = skeleton(kind, config, elements=elements, tensors=len(header.elements))
    require_memory(2 * elements, 4)
    tensors: dict[str, torch.Tensor] = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)[
        "tensors"
    ]
    wanted = empty.state_dict()
    tied = set(getattr(empty, "all_tied_weights_keys", None) or ())
    require_complete(
        {
            "missing_keys": [key for key in wanted if key not in tensors and key not in tied],
            "mismatched_keys": [key for key in tensors if key in wanted and tensors[key].shape != wanted[key].shape],
        },
        empty,
    )
    config.architectures = [type(empty).__name__]
    save_file(
        {key: value.contiguous() for key, value in tensors.items()}, made / "model.safetensors", {"format": "pt"}
    )
    config.save_pretrained(made)


def _convert_tokenizer(made: Path, alone: Path, header: GgufHeader) -> None:
    """From the file alone, by the class that reads GGUF without looking for a configuration or for code."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        alone, gguf_file=NAME, local_files_only=True, trust_remote_code=False
    )
    if begins_with_bos(header) and tokenizer.bos_token_id is not None:
        _begin_with(tokenizer, str(tokenizer.bos_token), int(tokenizer.bos_token_id))
    tokenizer.save_pretrained(made)


def begins_with_bos(header: GgufHeader) -> bool:
    """Whether the model was trained on texts that begin with its beginning-of-sequence token, as the file says.

    Files that do not say: vocabularies of SentencePiece begin with it, byte-level ones do not, but for some families.
    """
    said = header.facts.get("tokenizer.ggml.add_bos_token")
    if isinstance(said, bool):
        return said
    kind, split = header.facts.get("tokenizer.ggml.model"), header.facts.get("tokenizer.ggml.pre")
    return kind in BEGINS_WITH_BOS or (kind == "gpt2" and split in BYTE_LEVEL_WITH_BOS)


def _begin_with(tokenizer: Any, word: str, number: int) -> None:
    """Put the token before every text, unless the tokenizer does so already."""
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

    if number in tokenizer("a")["input_ids"][:1]:
        return
    before = tokenizer.backend_tokenizer.post_processor
    bos = TemplateProcessing(
        single=f"{word}:0 $A:0", pair=f"{word}:0 $A:0 {word}:1 $B:1", special_tokens=[(word, number)]
    )
    keeps = isinstance(before, ByteLevel)
    tokenizer.backend_tokenizer.post_processor = Sequence([before, bos]) if keeps else bos


def _class_for(auto: Any, config: Any) -> Any:
    mapping = auto._model_mapping
    if type(config) not in mapping:
        raise RequestError(
            required="a language model", got=f"model_type {config.model_type}", remedy="use safetensors instead"
        )
    return mapping[type(config)]
