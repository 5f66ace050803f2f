"""A folder made for one loading: only what was checked, under the names the library expects, gone afterwards.

An allow-list does what no list of forbidden things can: adapters, custom code, generation settings, kernels and
whatever else a later version of the library may honour are simply not there.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankfall.audit.load.config_check import read_json
from rankfall.audit.load.limits import LIMITS, require_size
from rankfall.audit.load.weight_files import INDEX, WeightFiles, inside

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
