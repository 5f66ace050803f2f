"""Passages of a text: how many there are, how long they are, and which of them are too short to keep."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.small import save_small, some_text

from rankfall.errors import RequestError
from rankfall.models.inputs.texts import encode, enough_passages, read_text
from rankfall.models.load.open import open_model


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


@pytest.mark.parametrize(
    ("words", "tokens", "passages", "remedy"),
    [
        (160, 128, 4, "read this text in more passages: `--tokens 42`"),
        (160, 128, 1, "read this text in more passages: `--tokens 42 --passages 4`"),
        (600, 128, 1, "read this text in more passages: `--passages 4`"),
        (45, 128, 4, "read this text in more passages: `--tokens 17`"),
        (28, 64, 4, "read this text in more passages: `--tokens 16`"),
        (600, 8, 4, "read this text in more passages: `--tokens 128`"),
        (27, 64, 4, "give a longer `--text`: the longest has 27 tokens, and 28 are needed"),
    ],
)
def test_the_remedy_for_too_little_text_is_one_that_works(
    tokenizer: object, words: int, tokens: int, passages: int, remedy: str
) -> None:
    assert encode(tokenizer, [some_text(words)], tokens=tokens, passages=passages).remedy == remedy
    told = remedy.replace("`", " ").split()
    given = {"tokens": tokens, "passages": passages}
    given |= {name: int(told[told.index(f"--{name}") + 1]) for name in given if f"--{name}" in told}
    lengths = encode(tokenizer, [some_text(words)], **given).lengths
    assert (len([one for one in lengths if one >= 16]) >= 2) == ("longer" not in remedy)


def test_of_several_texts_the_longest_tells_how_many_passages_there_are(tokenizer: object) -> None:
    found = encode(tokenizer, [some_text(5), some_text(40)], tokens=64)
    assert found.remedy == enough_passages(40, 2, 64, 1)
    assert found.remedy == "read this text in more passages: `--tokens 22 --passages 2`"
