"""What a model is given to read: passages are cut in a row, and short ends are left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.small import save_small, some_text

from rankfall.models.load.open import open_model
from rankfall.models.texts import encode


@pytest.mark.parametrize(("words", "lengths"), [(14, [12]), (15, [12, 7]), (20, [12, 12]), (4, [6])])
def test_a_passage_is_kept_from_half_of_its_length_on(words: int, lengths: list[int], tmp_path: Path) -> None:
    tokenizer = open_model(save_small(tmp_path / "model")).tokenizer
    # Ten words fit between the two tokens that the tokenizer adds; the first passage is kept however short.
    assert encode(tokenizer, [some_text(words)], tokens=12, passages=3).lengths == lengths
