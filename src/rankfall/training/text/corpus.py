"""A corpus made ready: token ids on disk, named by their content, so that cells name what they are trained on."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rankfall.errors import RequestError, require
from rankfall.progress import Progress, silent
from rankfall.store.files import storage_errors, write_bytes
from rankfall.training.text.documents import Document, Split, read_split
from rankfall.training.text.tokens import Encoding, check_encoding, load_encoding, train_encoding

VERSION = 1
FOLDER = ".corpora"
ABOUT = "corpus.json"
DIGITS = 16
LITTLE = 4096
"""Held-out bytes below which a loss says little."""


@dataclass(frozen=True)
class About:
    """What a corpus holds; `digest` names it."""

    digest: str
    tokenizer: str
    vocabulary: int
    training_documents: int
    training_bytes: int
    training_tokens: int
    held_out_documents: int
    held_out_bytes: int
    held_out_tokens: int

    def sentence(self, name: str) -> str:
        """Both sides in words, and what of them a person should know before training on them."""
        said = (
            f"{name}: {self.training_bytes:,} bytes in {_documents(self.training_documents)} to train on, "
            f"{self.held_out_bytes:,} in {_documents(self.held_out_documents)} held out (corpus {self.digest[:8]})"
        )
        wanted = check_encoding(self.tokenizer)
        if wanted is not None:
            per_token = self.training_bytes / max(1, self.training_tokens)
            said += f"; {self.vocabulary:,} tokens of {per_token:.1f} bytes"
            if self.vocabulary < wanted:
                said += f", all that the text gives of the {wanted:,} asked for"
        if self.held_out_bytes < LITTLE:
            said += "; that is little to measure on: give more text, or more of it with --validation"
        elif self.held_out_bytes > self.training_bytes:
            said += "; more is held out than trained on"
        return said


def _documents(count: int) -> str:
    return f"{count:,} document{'s' * (count != 1)}"


@dataclass(frozen=True)
class Corpus:
    """Token ids of both sides, read from disk when they are asked for."""

    folder: Path
    about: About

    @cached_property
    def training(self) -> np.ndarray:
        """(training_tokens,) uint16."""
        return np.fromfile(self.folder / "training.bin", dtype=np.uint16)

    @cached_property
    def held_out(self) -> np.ndarray:
        """(held_out_tokens,) uint16."""
        return np.fromfile(self.folder / "held_out.bin", dtype=np.uint16)

    @cached_property
    def encoding(self) -> Encoding:
        """Text to ids and back."""
        return load_encoding(self.about.tokenizer, self.folder)


def prepare_corpus(
    path: Path | str,
    tokenizer: str,
    store: Path,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda text: None,
) -> Corpus:
    """The corpus of a file or folder under a tokenizer, made where the store does not hold it yet."""
    return encoded_corpus(read_split(Path(path), note, progress=progress), tokenizer, store, progress)


def encoded_corpus(split: Split, tokenizer: str, store: Path, progress: Progress = silent) -> Corpus:
    """The corpus of these documents under a tokenizer, made where the store does not hold it yet."""
    digest = _digest(tokenizer, split.training, split.held_out)
    folder = store / FOLDER / digest
    if (folder / ABOUT).exists():
        return open_corpus(digest, store)
    if check_encoding(tokenizer) is not None:
        progress("training the tokenizer", 0.0)
    encoding = train_encoding(tokenizer, (document.text for document in split.training))
    partial = folder.with_name(f".{digest}.{secrets.token_hex(4)}")
    with storage_errors(store):
        partial.mkdir(parents=True)
        try:
            encoding.save(partial)
            tokens = {
                name: _write_ids(partial / f"{name}.bin", documents, encoding, progress)
                for name, documents in (("training", split.training), ("held_out", split.held_out))
            }
            about = About(
                digest=digest,
                tokenizer=tokenizer,
                vocabulary=encoding.vocabulary,
                training_documents=len(split.training),
                training_bytes=sum(document.size for document in split.training),
                training_tokens=tokens["training"],
                held_out_documents=len(split.held_out),
                held_out_bytes=sum(document.size for document in split.held_out),
                held_out_tokens=tokens["held_out"],
            )
            write_bytes(partial / ABOUT, (json.dumps(asdict(about), indent=1) + "\n").encode())
            _rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return open_corpus(digest, store)


def open_corpus(digest: str, store: Path) -> Corpus:
    """A corpus that a store holds, its files as long as they should be."""
    folder = store / FOLDER / digest
    try:
        about = About(**json.loads((folder / ABOUT).read_text(encoding="utf-8")))
        sizes = {name: os.path.getsize(folder / f"{name}.bin") for name in ("training", "held_out")}
    except (OSError, ValueError, TypeError):
        raise RequestError(
            required=f"the corpus {digest} in {store}",
            got="none, or one that is damaged",
            remedy="run the sweep with --text once more: a corpus is made from its text",
        ) from None
    require(
        (sizes["training"], sizes["held_out"]) == (2 * about.training_tokens, 2 * about.held_out_tokens),
        required=f"all tokens of the corpus {digest} in {folder}",
        got=f"{sum(sizes.values()) // 2:,} of {about.training_tokens + about.held_out_tokens:,}",
        remedy="delete that folder: it is made again",
    )
    return Corpus(folder, about)


def _digest(tokenizer: str, training: Sequence[Document], held_out: Sequence[Document]) -> str:
    content = {
        "version": VERSION,
        "tokenizer": tokenizer,
        "training": [document.digest for document in training],
        "held_out": [document.digest for document in held_out],
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:DIGITS]


def _write_ids(path: Path, documents: Sequence[Document], encoding: Encoding, progress: Progress) -> int:
    """The ids of all documents, each after the mark; how many there are."""
    mark, count = np.array([encoding.end], dtype=np.uint16), 0
    with path.open("wb") as file:
        for number, document in enumerate(documents):
            progress(f"encoding {path.stem.replace('_', ' ')} documents", number / len(documents))
            ids = np.concatenate([mark, encoding.encode(document.text)])
            ids.tofile(file)
            count += len(ids)
    return count


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        # Another process was faster: its corpus is the same, being named by its content.
        if not (folder / ABOUT).exists():
            raise
