"""The tokenizer that came with a model: its tables checked, its file tried apart, the library's own classes only."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rankfall.errors import RequestError, require
from rankfall.models.load import try_tokenizer
from rankfall.models.load.guards import GIBI, LIMITS, read_json, require_size
from rankfall.store.identity import checksum

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
# Written as 10**30 by those who mean that there is no limit.
LENGTHS = ("model_max_length", "max_length", "max_len")
# What the trial may take: a vocabulary of 262,144 tokens needs 0.3 GiB and two seconds.
TRIAL_MEMORY = 2 * GIBI
TRIAL_SECONDS = 30
TRIAL_TEXT = "The harbour lay still, and the boats did not move. aaaa 1234 ... ÄÖ 漢字\n" * 20
TOKENS_AT_MOST = 100 * len(TRIAL_TEXT)


def has_tokenizer(folder: Path) -> bool:
    """Whether any file there can hold a vocabulary."""
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def checked_table(path: Path) -> dict[str, Any]:
    """A tokenizer's table as data: no code is named, and no number asks for a list of that length."""
    table = read_json(path)
    table.pop("auto_map", None)
    for key, value in table.items():
        big = isinstance(value, (int, float)) and abs(value) > LIMITS.tokenizer_number
        require(
            not big or key in LENGTHS,
            required=f"{key[:60]} in {path.name} to be at most {LIMITS.tokenizer_number:,}",
            got=str(value)[:40],
            remedy="no real tokenizer has more; do not trust this file",
        )
    return table


def require_sound_tokenizer(path: Path) -> None:
    """Refuse a tokenizer.json that would take more memory or time than any real one, before this process loads it."""
    require_size(path, LIMITS.tokenizer_bytes)
    if why := _trial(checksum(path), str(path.resolve())):
        raise RequestError(
            required=f"a {path.name} that reads a short text within {TRIAL_MEMORY // GIBI} GiB and {TRIAL_SECONDS} s",
            got=why,
            remedy="no real tokenizer needs more; do not trust this model",
        )


@functools.lru_cache(maxsize=64)
def _trial(bytes_hash: str, path: str) -> str:
    """Why the file of that hash is refused; empty when it is sound. The process takes a tenth of a second."""
    asked = {
        "path": path,
        "memory": TRIAL_MEMORY,
        "seconds": TRIAL_SECONDS,
        "most": TOKENS_AT_MOST,
        "modules": [place for place in sys.path if place],
    }
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(Path(try_tokenizer.__file__)), json.dumps(asked)],
        input=TRIAL_TEXT.encode(),
        capture_output=True,
        timeout=10 * TRIAL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        return f"a trial that ended with status {done.returncode}: out of memory or time"
    return str(json.loads(done.stdout.decode().strip().splitlines()[-1]).get("refused", ""))


def library_tokenizer(stage: Path) -> Any:
    """The tokenizer of a folder that holds checked files only, by the library's own classes."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(stage, local_files_only=True, trust_remote_code=False)
