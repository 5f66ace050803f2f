"""Corpora: what is a document, what is held out, what is refused; tokens that give the text back."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from rankfall.errors import RequestError
from rankfall.training.text.batches import unigram_nats_per_byte
from rankfall.training.text.corpus import FOLDER, open_corpus, prepare_corpus
from rankfall.training.text.documents import read_split
from rankfall.training.text.tokens import Bytes, train_encoding


def written(folder: Path, count: int = 30) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02}.txt").write_text(f"Chapter {number}: naïve words. " * (20 + number))
    return folder


def test_every_document_is_on_one_side_and_copies_count_once(tmp_path: Path) -> None:
    folder = written(tmp_path / "books")
    (folder / "copy.txt").write_text((folder / "03.txt").read_text())
    split = read_split(folder)
    texts = [document.text for document in (*split.training, *split.held_out)]
    assert sorted(texts) == sorted({file.read_text() for file in folder.iterdir()})
    share = sum(d.size for d in split.held_out) / sum(len(text.encode()) for text in texts)
    assert 0.1 <= share < 0.2


def test_sides_depend_on_content_alone(tmp_path: Path) -> None:
    first = written(tmp_path / "one")
    second = tmp_path / "two"
    second.mkdir()
    for number, file in enumerate(sorted(first.iterdir(), reverse=True)):
        (second / f"{number}.md").write_text(file.read_text())
    sides = [{d.digest for d in read_split(folder).held_out} for folder in (first, second)]
    assert sides[0] == sides[1]


def test_a_lone_file_is_cut_at_blank_lines(tmp_path: Path) -> None:
    parts = [f"Paragraph {n} " + "word " * 300 for n in range(12)]
    file = tmp_path / "book.txt"
    file.write_text("\n\n".join(parts))
    split = read_split(file)
    assert len(split.training) + len(split.held_out) == 6


def test_packed_files_are_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "books")
    plain = {d.digest for d in read_split(folder).training}
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert {d.digest for d in read_split(folder).training} == plain


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "0"),
        (b"short", "5"),
        (b"text\0" * 2000, "binary"),
        (b"caf\xe9 " * 2000, "0xe9 at offset 3"),
        (b"one piece without a blank line " * 200, "one"),
        (b"\n\n".join([b"again " * 400] * 4), "2,400, each document counted once"),
    ],
)
def test_bad_corpora_are_refused_in_one_line(content: bytes, got: str, tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(content)
    with pytest.raises(RequestError) as refused:
        read_split(file)
    assert got in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_leaves_binary_files_out_and_says_so(tmp_path: Path) -> None:
    folder = written(tmp_path / "books")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0\0")
    (folder / "old.txt").write_bytes("déjà".encode("latin1") * 100)
    notes: list[str] = []
    assert len(read_split(folder, notes.append).training) > 20
    assert len(notes) == 1
    assert notes[0].endswith("cannot be read or are no UTF-8 text: old.txt, picture.png")


def test_reading_a_folder_is_followed_from_file_to_file(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    folder = written(tmp_path / "books")
    read_split(folder, progress=lambda what, share: told.append((what, share)))
    shares = [share for _, share in told]
    assert {what for what, _ in told} == {f"reading {folder}"}
    assert len(told) > len(list(folder.iterdir()))
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] < 1


def test_a_folder_leaves_out_what_cannot_be_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "books")
    whole = {d.digest for d in read_split(folder).training}
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"words " * 9000)[:40])
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    (folder / ".notes").write_text("hidden " * 900)
    notes: list[str] = []
    assert {d.digest for d in read_split(folder, notes.append).training} == whole
    assert notes == [f"left out of {folder}, since they cannot be read or are no UTF-8 text: cut.txt.gz"]
    with pytest.raises(RequestError, match="a readable file"):
        read_split(folder / "cut.txt.gz")


@pytest.mark.parametrize("gap", ["\r\n\r\n", "\n"], ids=["windows", "lines"])
def test_a_lone_file_is_cut_where_it_can_be(gap: str, tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_bytes(gap.join(f"Paragraph {n} " + "word " * 300 for n in range(12)).encode())
    split = read_split(file)
    assert len(split.training) + len(split.held_out) == 6
    folder = tmp_path / "folder"
    folder.mkdir()
    file.rename(folder / "book.txt")
    assert read_split(folder) == split, "a folder of one file is that file"


def test_the_larger_part_of_a_text_is_never_held_out(tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "large.txt").write_text(f"{number} words of a long book. " * 500)
        (folder / "small.txt").write_text(f"{number} a short one. " * 100)
        assert [len(d.text) < 5000 for d in read_split(folder).held_out] == [True]


def test_a_text_to_measure_on_is_held_out_and_never_trained_on(tmp_path: Path) -> None:
    folder, notes = written(tmp_path / "books"), list[str]()
    other = tmp_path / "other"
    other.mkdir()
    (other / "known.txt").write_text((folder / "03.txt").read_text())
    (other / "new.txt").write_text("Nothing of this is in a book. " * 40)
    split = read_split(folder, notes.append, other)
    assert {d.text for d in split.held_out} == {file.read_text() for file in other.iterdir()}
    assert len(split.training) == len(list(folder.iterdir())) - 1
    assert notes == [
        f"1 of {len(list(folder.iterdir()))} documents of {folder} are in {other} too and are not trained on"
    ]
    with pytest.raises(RequestError, match=r"every document \(30\) is in both"):
        read_split(folder, notes.append, folder)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(RequestError, match="text to measure on"):
        read_split(folder, notes.append, tmp_path / "nothing")


def test_both_sides_are_described(tmp_path: Path) -> None:
    about = prepare_corpus(written(tmp_path / "books"), "bytes", tmp_path / "store").about
    sides = f"books: {about.training_bytes:,} bytes in {about.training_documents} documents to train on"
    assert about.sentence("books").startswith(f"{sides}, {about.held_out_bytes:,} in ")
    assert "little to measure on" in about.sentence("books")
    pairs = prepare_corpus(tmp_path / "books", "bpe:9000", tmp_path / "store").about
    assert f"; {pairs.vocabulary} tokens of" in pairs.sentence("books")
    assert "all that the text gives of the 9,000 asked for" in pairs.sentence("books")


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_tokens_give_the_text_back(tokenizer: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "books")
    corpus = prepare_corpus(folder, tokenizer, tmp_path / "store")
    about, encoding = corpus.about, corpus.encoding
    split = read_split(folder)
    for ids, documents, count in (
        (corpus.training, split.training, about.training_bytes),
        (corpus.held_out, split.held_out, about.held_out_bytes),
    ):
        pieces = np.split(ids, np.flatnonzero(ids == encoding.end))[1:]
        assert [encoding.decode(piece[1:].tolist()) for piece in pieces] == [d.text for d in documents]
        assert encoding.sizes()[ids].sum() == count
    assert about.vocabulary == (257 if tokenizer == "bytes" else 300)


def test_a_corpus_is_made_once_and_named_by_what_it_holds(tmp_path: Path) -> None:
    folder, store = written(tmp_path / "books"), tmp_path / "store"
    first = prepare_corpus(folder, "bytes", store)
    stamp = (first.folder / "training.bin").stat().st_mtime_ns
    again = prepare_corpus(folder, "bytes", store)
    assert again.about == first.about
    assert (again.folder / "training.bin").stat().st_mtime_ns == stamp
    (folder / "00.txt").write_text("Something else. " * 40)
    assert prepare_corpus(folder, "bytes", store).about.digest != first.about.digest
    assert [path.name for path in (store / FOLDER).glob(".*")] == []


def test_a_damaged_corpus_says_how_to_mend_it(tmp_path: Path) -> None:
    corpus = prepare_corpus(written(tmp_path / "books"), "bytes", tmp_path / "store")
    (corpus.folder / "training.bin").write_bytes(b"12")
    with pytest.raises(RequestError, match="made again"):
        open_corpus(corpus.about.digest, tmp_path / "store")


def test_unigram_loss_by_hand(tmp_path: Path) -> None:
    corpus = prepare_corpus(written(tmp_path / "books"), "bytes", tmp_path / "store")
    train, held = corpus.training.tolist(), corpus.held_out.tolist()
    nats = -sum(np.log((train.count(id) + 1) / (len(train) + 257)) * held.count(id) for id in set(held))
    assert unigram_nats_per_byte(corpus) == pytest.approx(nats / sum(id < 256 for id in held), rel=1e-12)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_a_text_that_spells_the_mark_out_is_text(tokenizer: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "books")
    text = "The mark <|end|> stands between documents. " * 30
    (folder / "marks.txt").write_text(text)
    encoding = prepare_corpus(folder, tokenizer, tmp_path / "store").encoding
    ids = encoding.encode(text)
    assert encoding.end not in ids
    assert encoding.decode(ids) == text
    assert encoding.sizes()[ids].sum() == len(text)


def test_byte_pairs_know_every_byte() -> None:
    encoding = train_encoding("bpe:280", ["abc abc abc " * 20])
    text = "日本 ÿ \x01 new"
    assert encoding.decode(encoding.encode(text).tolist()) == text
    assert encoding.sizes()[encoding.encode(text)].sum() == len(text.encode())
    assert Bytes().decode(Bytes().encode(text).tolist()) == text
