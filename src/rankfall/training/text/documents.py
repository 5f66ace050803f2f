"""The documents of a file or folder of text, and which of them are held out."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankfall.errors import RequestError, require

MOST_BYTES = 4 << 30
"""Of a corpus; it is held in memory while it is read."""
LEAST_BYTES = 4096
"""Of a corpus: below that nothing can be learned or measured."""
PIECE = 2048
"""A lone file is cut at blank lines into documents of at least so many bytes."""
HELD_OUT = 0.1
"""Share of the bytes that is never trained on, and at most MOST_HELD_OUT."""
MOST_HELD_OUT = 16 << 20


@dataclass(frozen=True)
class Document:
    """One text, with the hash that decides on which side it falls."""

    text: str
    digest: str

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Split:
    """Documents to train on and documents never trained on, each in the order of the files."""

    training: tuple[Document, ...]
    held_out: tuple[Document, ...]


def read_split(path: Path, note: Callable[[str], None] = lambda text: None) -> Split:
    """Read a corpus: each file of a folder is a document, a lone file is cut at blank lines.

    Files that are no UTF-8 text are left out of a folder with a note, and refused alone. A document that occurs twice
    counts once, so that no copy of a held-out document is trained on. Which documents are held out depends on what
    they say and on nothing else.
    """
    documents = _without_copies(_documents(path, note))
    total = sum(document.size for document in documents)
    require(
        total >= LEAST_BYTES,
        required=f"a corpus of at least {LEAST_BYTES:,} bytes of text at {path}",
        got=f"{total:,}",
        remedy="give a longer file, or a folder of texts",
    )
    require(
        len(documents) > 1,
        required=f"at least two documents at {path}, one of them to hold out",
        got="one",
        remedy="give a folder of files, or a file with blank lines between its parts",
    )
    wanted = min(HELD_OUT * total, MOST_HELD_OUT)
    apart: set[str] = set()
    taken = 0
    for document in sorted(documents, key=lambda document: document.digest):
        # A document that would take more than a fifth of everything stays with the training side.
        if taken < wanted and (taken + document.size <= total / 5 or not apart):
            apart.add(document.digest)
            taken += document.size
    return Split(
        tuple(document for document in documents if document.digest not in apart),
        tuple(document for document in documents if document.digest in apart),
    )


def _documents(path: Path, note: Callable[[str], None]) -> Iterator[str]:
    if not path.is_dir():
        yield from _pieces(_text(_read(path, MOST_BYTES), str(path)))
        return
    left, skipped = MOST_BYTES, 0
    for file in sorted(path.rglob("*")):
        if not file.is_file() or any(part.startswith(".") for part in file.relative_to(path).parts):
            continue
        content = _read(file, left)
        left -= len(content)
        try:
            text = _text(content, str(file))
        except RequestError:
            skipped += 1
            continue
        if text.strip():
            yield text
    if skipped:
        note(f"{skipped} files under {path} are no UTF-8 text and were left out")


def _read(path: Path, most: int) -> bytes:
    """The bytes of a regular file, unpacked where its name ends in .gz."""
    require(path.is_file(), required=f"a text file or a folder at {path}", got="neither", remedy="check the path")
    too_much = RequestError(
        required=f"a corpus of at most {MOST_BYTES >> 30} GiB", got="more", remedy="leave some of its files out"
    )
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content: bytes = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RequestError(
            required=f"a readable file at {path}", got=str(error), remedy="check the file and its permissions"
        ) from None
    if len(content) > most:
        raise too_much
    return content


def _text(content: bytes, name: str) -> str:
    require(
        b"\0" not in content,
        required=f"text in {name}",
        got="a binary file: it holds zero bytes",
        remedy="give text in UTF-8",
    )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            required=f"UTF-8 text in {name}",
            got=f"byte 0x{content[error.start]:02x} at offset {error.start:,}",
            remedy=f"convert it, for example iconv -f latin1 -t utf-8 {name}",
        ) from None


def _pieces(text: str) -> Iterator[str]:
    """A text cut at blank lines, each piece long enough."""
    piece: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        piece.append(paragraph)
        size += len(paragraph) + 2
        if size >= PIECE:
            yield "\n\n".join(piece)
            piece, size = [], 0
    if any(part.strip() for part in piece):
        yield "\n\n".join(piece)


def _without_copies(texts: Iterator[str]) -> list[Document]:
    found: dict[str, Document] = {}
    for text in texts:
        digest = hashlib.sha256(text.encode()).hexdigest()
        found.setdefault(digest, Document(text, digest))
    return list(found.values())
