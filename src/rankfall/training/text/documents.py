"""The documents of a file or folder of text, and which of them are held out."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankfall.errors import RequestError, require
from rankfall.progress import Progress, silent

MOST_BYTES = 4 << 30
"""Of a corpus; it is held in memory while it is read."""
LEAST_BYTES = 4096
"""Of a corpus: below that nothing can be learned or measured."""
PIECE = 2048
"""A lone file is cut at blank lines into documents of at least so many bytes."""
GAPS = ("\n\n", "\r\n\r\n", "\n")
"""Where it may be cut; each is tried when the one before leaves pieces too large."""
HELD_OUT = 0.1
"""Share of the bytes that is never trained on, and at most MOST_HELD_OUT."""
MOST_HELD_OUT = 16 << 20
LARGEST = 0.2
"""Share of the bytes beyond which no document is held out, where there is another."""
NAMED = 3
"""Files that a note names."""


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


def read_split(
    path: Path,
    note: Callable[[str], None] = lambda text: None,
    validation: Path | None = None,
    progress: Progress = silent,
) -> Split:
    """Read a corpus: each file of a folder is a document, a lone file is cut at blank lines, or else at line ends.

    Files that cannot be read or are no UTF-8 text are left out of a folder with a note, and refused alone. A document
    that occurs twice counts once, so that no copy of a held-out document is trained on. Which documents are held out
    depends on what they say and on nothing else; with `validation`, those of another file or folder are.
    """
    documents = _without_copies(_documents(path, note, progress))
    if validation is not None:
        held_out = _without_copies(_documents(validation, note, progress))
        return _validated(documents, path, held_out, validation, note)
    total = _require_enough(documents, path)
    require(
        len(documents) > 1,
        required=f"at least two documents at {path}, one of them to hold out",
        got="one",
        remedy="give a folder of files, a file of several lines, or a text to measure on with --validation",
    )
    wanted = min(HELD_OUT * total, MOST_HELD_OUT)
    apart: set[str] = set()
    taken = 0
    for document in sorted(documents, key=lambda document: document.digest):
        if taken < wanted and taken + document.size <= LARGEST * total:
            apart.add(document.digest)
            taken += document.size
    if not apart:
        apart.add(min(documents, key=lambda document: (document.size, document.digest)).digest)
    return Split(
        tuple(document for document in documents if document.digest not in apart),
        tuple(document for document in documents if document.digest in apart),
    )


def _validated(
    documents: list[Document], path: Path, held_out: list[Document], validation: Path, note: Callable[[str], None]
) -> Split:
    require(
        bool(held_out),
        required=f"text to measure on at {validation}",
        got="none",
        remedy="give a file or folder of text",
    )
    apart = {document.digest for document in held_out}
    training = [document for document in documents if document.digest not in apart]
    require(
        bool(training) or not documents,
        required=f"text to train on at {path} that is not in the validation text {validation} too",
        got=f"none: every document ({len(documents)}) is in both",
        remedy="give another text to measure on, or leave --validation out: part of --text is then held out",
    )
    if len(training) < len(documents):
        copies = len(documents) - len(training)
        note(f"{copies} of {len(documents)} documents of {path} are in {validation} too and are not trained on")
    _require_enough(training, path)
    return Split(tuple(training), tuple(held_out))


def _require_enough(documents: list[Document], path: Path) -> int:
    total = sum(document.size for document in documents)
    require(
        total >= LEAST_BYTES,
        required=f"a corpus of at least {LEAST_BYTES:,} bytes of text at {path}",
        got=f"{total:,}, each document counted once",
        remedy="give a longer file, or a folder of texts",
    )
    return total


def _documents(path: Path, note: Callable[[str], None], progress: Progress) -> Iterator[str]:
    progress(f"reading {path}", 0.0)
    if not path.is_dir():
        yield from _pieces(_text(_read(path, MOST_BYTES), str(path)))
        return
    left = MOST_BYTES
    skipped, texts = [], []
    files = sorted(path.rglob("*"))
    for number, file in enumerate(files):
        progress(f"reading {path}", number / len(files))
        if not file.is_file() or any(part.startswith(".") for part in file.relative_to(path).parts):
            continue
        try:
            content = _read(file, left)
            text = _text(content, str(file))
        except UnfitFileError:
            skipped.append(file)
            continue
        left -= len(content)
        if text.strip():
            texts.append(text)
    if skipped:
        named = ", ".join(str(file.relative_to(path)) for file in skipped[:NAMED])
        more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
        note(f"left out of {path}, since they cannot be read or are no UTF-8 text: {named}{more}")
    yield from _pieces(texts[0]) if len(texts) == 1 else texts


class UnfitFileError(RequestError):
    """A file that cannot be read, or holds no text; among others it is left out."""


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
        raise UnfitFileError(
            required=f"a readable file at {path}", got=str(error), remedy="check the file and its permissions"
        ) from None
    if len(content) > most:
        raise too_much
    return content


def _text(content: bytes, name: str) -> str:
    if b"\0" in content:
        raise UnfitFileError(
            required=f"text in {name}", got="a binary file: it holds zero bytes", remedy="give text in UTF-8"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnfitFileError(
            required=f"UTF-8 text in {name}",
            got=f"byte 0x{content[error.start]:02x} at offset {error.start:,}",
            remedy=f"convert it, for example iconv -f latin1 -t utf-8 {name}",
        ) from None


def _pieces(text: str) -> list[str]:
    """A text in pieces, long enough, cut at blank lines; at line ends where a piece would be a large part of it."""
    for gap in GAPS:
        found = list(_cut(text, gap))
        if max(map(len, found), default=0) <= max(LARGEST * len(text), 2 * PIECE):
            break
    return found


def _cut(text: str, gap: str) -> Iterator[str]:
    piece: list[str] = []
    size = 0
    for paragraph in text.split(gap):
        piece.append(paragraph)
        size += len(paragraph) + len(gap)
        if size >= PIECE:
            yield gap.join(piece)
            piece, size = [], 0
    if any(part.strip() for part in piece):
        yield gap.join(piece)


def _without_copies(texts: Iterator[str]) -> list[Document]:
    found: dict[str, Document] = {}
    for text in texts:
        digest = hashlib.sha256(text.encode()).hexdigest()
        found.setdefault(digest, Document(text, digest))
    return list(found.values())
