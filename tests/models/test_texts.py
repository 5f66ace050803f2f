"""Passages of a text: how many there are, how long they are, and which of them are too short to keep."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.small import save_small, some_text

from rankfall.errors import RequestError
from rankfall.models.load.open import open_model
from rankfall.models.texts import encode, read_text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    """One token a word, with one token put before and one after each text."""
    return open_model(save_small(tmp_path_factory.mktemp("text") / "model")).tokenizer


@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        (10, [12]),
        (14, [12]),  # a second passage of 4 words, less than half of 10
        (15, [12, 7]),  # of exactly half
        (20, [12, 12]),
        (24, [12, 12]),
        (25, [12, 12, 7]),
        (3, [5]),  # the only passage is kept however short
    ],
)
def test_a_passage_of_less_than_half_the_length_is_left_out(
    tokenizer: object, words: int, lengths: list[int]
) -> None:
    assert encode(tokenizer, [some_text(words)], tokens=12, passages=9).lengths == lengths


def test_passages_follow_one_another(tokenizer: object) -> None:
    batch = encode(tokenizer, [some_text(30)], tokens=12, passages=2)
    words = [word for row in batch.names for word in row if word.startswith("w")]
    assert words == some_text(30).split()[:20]
    assert [row[0] for row in batch.names] == ["[CLS]", "[CLS]"]


def test_texts_that_cannot_be_read_are_refused(tokenizer: object, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="more than 2 tokens"):
        encode(tokenizer, ["w1"], tokens=2)
    with pytest.raises(RequestError, match="text 2 to hold some words"):
        encode(tokenizer, ["w1", " "], tokens=8)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(RequestError, match=r"UTF-8 in latin\.txt"):
        read_text(tmp_path / "latin.txt")
