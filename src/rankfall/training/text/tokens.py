"""Text as numbers: bytes, or a byte-pair encoding trained on the corpus itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import numpy as np

from rankfall.errors import RequestError, require, require_count

END = "<|end|>"
"""Stands before every document."""
MOST_TOKENS = 65_536
"""Ids are kept in 16 bits."""


class Encoding(ABC):
    """How text becomes ids. Every id stands for a fixed number of bytes, the mark between documents for none."""

    vocabulary: int
    end: int

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, uint16."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; what is no UTF-8 is replaced."""

    @abstractmethod
    def sizes(self) -> np.ndarray:
        """(vocabulary,) bytes that each id stands for."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load_encoding` needs."""


@final
class Bytes(Encoding):
    """Each byte of UTF-8 is an id; 256 is the mark between documents."""

    vocabulary = 257
    end = 256

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(id for id in ids if id < 256).decode("utf-8", errors="replace")

    def sizes(self) -> np.ndarray:
        return np.array([1] * 256 + [0])

    def save(self, folder: Path) -> None:
        return


@final
class Pairs(Encoding):
    """A byte-level byte-pair encoding."""

    def __init__(self, tokenizer: Any) -> None:
        # a text that spells the mark out is text: it has bytes, and ends no document
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.vocabulary = tokenizer.get_vocab_size()
        self.end = tokenizer.token_to_id(END)

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint16)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def sizes(self) -> np.ndarray:
        """A byte-level token is written with one character per byte."""
        tokens = (self._tokenizer.id_to_token(id) for id in range(self.vocabulary))
        return np.array([0 if token == END else len(token) for token in tokens])

    def save(self, folder: Path) -> None:
        self._tokenizer.save(str(folder / "tokenizer.json"))


def check_encoding(name: str) -> int | None:
    """The size that `bpe:SIZE` asks for, None for `bytes`; an error for anything else."""
    if name == "bytes":
        return None
    kind, _, size = name.partition(":")
    require(
        kind == "bpe" and size.isdecimal() and len(size) < 9,
        required="a tokenizer: bytes or bpe:SIZE",
        got=name,
        remedy="for example bpe:4096",
    )
    require_count("tokens of a byte-pair encoding", int(size), least=257, most=MOST_TOKENS)
    return int(size)


def train_encoding(name: str, texts: Iterable[str]) -> Encoding:
    """The encoding of that name, trained on texts where it is trained at all."""
    size = check_encoding(name)
    if size is None:
        return Bytes()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Pairs(tokenizer)


def load_encoding(name: str, folder: Path) -> Encoding:
    """The encoding that was saved into a folder."""
    if check_encoding(name) is None:
        return Bytes()
    from tokenizers import Tokenizer

    try:
        return Pairs(Tokenizer.from_file(str(folder / "tokenizer.json")))
    except Exception as error:  # the library raises bare exceptions
        raise RequestError(
            required=f"a tokenizer in {folder}", got=str(error), remedy="delete that folder: it is made again"
        ) from None
