"""Fetch the two corpora of the experiment on head rank from Debian's archive: English prose and C.

    python scripts/corpora.py corpora                 # writes corpora/prose and corpora/code
    python scripts/corpora.py corpora --mirror https://snapshot.debian.org/archive/debian/20261101T000000Z

    python scripts/corpora.py corpora --store runs    # their tokens too, into a store, for grids/text-rank.toml

prose: the GNU Collaborative International Dictionary of English, cut into documents of about 16 kB between entries,
and the English documentation of the Linux kernel, one document per file. code: C files of the kernel's core and file
systems, one document per file. Packages are fixed by version and SHA-256: what is not byte for byte the same is
refused. A point release of Debian takes old versions off the mirrors; its snapshot archive keeps them. The texts are
never committed: their licences are their own (GPL-3 for the dictionary, GPL-2 for the kernel).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import lzma
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MIRROR = "https://deb.debian.org/debian"
TOKENIZER = "bpe:4096"
PIECE = 16_384
"""Bytes after which the dictionary is cut, at the next entry."""
TIMEOUT = 120
"""Seconds without a byte."""

Files = Iterator[tuple[str, bytes]]


@dataclass(frozen=True)
class Package:
    """A binary package of the archive, fixed by its content."""

    path: str
    sha256: str


KERNEL = Package(
    "pool/main/l/linux/linux-source-6.1_6.1.176-1_all.deb",
    "9305d1a151b8e83dcb88aa11361e7b9513f0c252bdf7f5647e4542762d99c094",
)
DICTIONARY = Package(
    "pool/main/d/dict-gcide/dict-gcide_0.48.5+nmu2_all.deb",
    "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
)
CODE_FOLDERS = ("kernel", "mm", "fs", "block", "ipc", "init", "security")
TABLES = ("fs/nls/", "fs/unicode/")
"""C files that hold numbers and little else."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the texts go, in folders prose and code")
    parser.add_argument("--mirror", default=MIRROR, help=f"a mirror of Debian's archive (default: {MIRROR})")
    parser.add_argument("--store", type=Path, help="a store that the tokens go into, ready for a sweep")
    options = parser.parse_args(arguments)
    try:
        dictionary = fetched(DICTIONARY, options.mirror)
        kernel = fetched(KERNEL, options.mirror)
    except (OSError, ValueError) as error:
        print(f"corpora: {error}", file=sys.stderr)
        return 2
    written = {name: Written(options.folder / name) for name in ("prose", "code")}
    for name, text in dictionary_entries(dictionary):
        written["prose"].add(f"dictionary/{name}", text)
    for name, text in kernel_files(kernel):
        written[name.partition("/")[0]].add(name.partition("/")[2], text)
    for one in written.values():
        print(f"{one.folder}: {one.documents:,} documents, {one.bytes:,} bytes")
    if options.store is not None:
        from rankfall.training.text.corpus import prepare_corpus

        for one in written.values():
            about = prepare_corpus(one.folder, TOKENIZER, options.store).about
            print(f"{one.folder}: corpus {about.digest}, {about.training_tokens:,} tokens to train on")
    return 0


class Written:
    """A folder of documents, made anew."""

    def __init__(self, folder: Path) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        self.folder, self.documents, self.bytes = folder, 0, 0

    def add(self, name: str, text: bytes) -> None:
        """Write one document."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        self.documents += 1
        self.bytes += len(text)


def fetched(package: Package, mirror: str) -> bytes:
    """The package's bytes, if they are those that it is known by."""
    address = f"{mirror.rstrip('/')}/{package.path}"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            content: bytes = answer.read()
    except urllib.error.HTTPError as error:
        raise ValueError(
            f"{address}: {error.code} {error.reason}; older versions are in Debian's snapshot archive: --mirror"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != package.sha256:
        raise ValueError(f"{address}: SHA-256 {found}, wanted {package.sha256}")
    return content


def members(package: bytes, wanted: Callable[[str], bool]) -> Files:
    """Files of a Debian package: an ar archive that holds a compressed tar archive of the files."""
    if not package.startswith(b"!<arch>\n"):
        raise ValueError("no Debian package")
    offset = 8
    while offset < len(package):
        name, size = package[offset : offset + 16].strip(), int(package[offset + 48 : offset + 58])
        offset += 60
        if name.startswith(b"data.tar"):
            yield from _unpacked(io.BytesIO(package[offset : offset + size]), wanted)
        offset += size + size % 2


def _unpacked(archive: io.BufferedIOBase, wanted: Callable[[str], bool]) -> Files:
    with tarfile.open(fileobj=archive, mode="r|*") as files:
        for entry in files:
            name = entry.name.removeprefix("./")
            if entry.isfile() and wanted(name):
                found = files.extractfile(entry)
                assert found is not None
                yield name, found.read()


def dictionary_entries(package: bytes) -> Files:
    """The dictionary in pieces: an entry starts a line, all else of it is indented or empty."""
    (_, packed), *_ = members(package, lambda name: name.endswith("gcide.dict.dz"))
    piece: list[bytes] = []
    size = count = 0
    for line in gzip.decompress(packed).splitlines(keepends=True):
        if size >= PIECE and line[:1].isalpha():
            yield f"{count:05}.txt", b"".join(piece)
            piece, size, count = [], 0, count + 1
        piece.append(line)
        size += len(line)
    yield f"{count:05}.txt", b"".join(piece)


def kernel_files(package: bytes) -> Files:
    """`prose/PATH` for English documentation and `code/PATH` for C, of the source archive inside the package."""
    (_, packed), *_ = members(package, lambda name: name.endswith(".tar.xz"))
    with lzma.open(io.BytesIO(packed)) as archive:
        for name, text in _unpacked(archive, lambda name: kind_of(name) is not None):
            yield f"{kind_of(name)}/{name.partition('/')[2]}", text


def kind_of(name: str) -> str | None:
    """The corpus that a file of the kernel's archive belongs to; names begin with the archive's own folder."""
    path = name.partition("/")[2]
    first = path.partition("/")[0]
    if first == "Documentation" and path.endswith(".rst") and "/translations/" not in path:
        return "prose"
    if first in CODE_FOLDERS and path.endswith((".c", ".h")) and not path.startswith(TABLES):
        return "code"
    return None


if __name__ == "__main__":
    sys.exit(main())
