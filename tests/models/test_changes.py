"""What the controls change in the inputs: every input that holds ids, each within its own table, and nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from tests.models.plain import WIDTH, WholeBlock
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from rankfall.errors import RequestError
from rankfall.models.architectures.small import candidate_inputs, small_models
from rankfall.models.audit import audit
from rankfall.models.controls.changes import Given, input_changes
from rankfall.models.controls.lookups import looked_up, table_size
from rankfall.models.inputs.calling import as_calls
from rankfall.models.inputs.given import Reading, read_by_library, read_by_module

WORDS, TAGS = 90, 7
SHUFFLED, RANDOM = 0, 1


def given(reading: Reading) -> Given:
    return Given(reading.calls, reading.real, reading.names, reading.batch, None, reading.text_axis)


def changed(model: nn.Module, inputs: Any, which: int, seed: int = 0, tokenizer: Any = None) -> dict[str, Any]:
    """The one call of a control."""
    read = read_by_library if hasattr(model, "main_input_name") else read_by_module
    found = input_changes(model, given(read(model, inputs, tokenizer)))[which].of(seed)
    (call,) = as_calls(found.inputs)
    return dict(call)


def ids(size: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(size, shape, generator=torch.Generator().manual_seed(seed))


def running_model(model_type: str) -> tuple[Any, dict[str, Tensor]]:
    """A small model of this type and inputs on which it runs."""
    for model in small_models(model_type):
        for inputs in candidate_inputs(model):
            with contextlib.suppress(ValueError, TypeError, RuntimeError, AttributeError), torch.no_grad():
                model(**inputs)
                return model, inputs
    raise AssertionError(model_type)


class Tagged(nn.Module):
    """Each token is a word and a tag, at a position, in a text with a label."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.tags = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(TAGS, WIDTH))
        self.positions, self.labels = nn.Embedding(64, WIDTH), nn.Embedding(3, WIDTH)
        self.blocks = nn.ModuleList(WholeBlock() for _ in range(2))

    def forward(
        self, words: Tensor, tags: Tensor, positions: Tensor | None = None, label: Tensor | None = None
    ) -> Tensor:
        x = self.words(words) + self.tags[tags]
        x = x if positions is None else x + self.positions(positions)
        x = x if label is None else x + self.labels(label)[:, None]
        for block in self.blocks:
            x = block(x)
        return x


TAGGED = {"words": ids(WORDS, 3, 20, seed=1), "tags": ids(TAGS, 3, 20, seed=2)}


def test_words_and_tags_are_both_drawn_each_from_its_own_table() -> None:
    found = changed(Tagged(), TAGGED, RANDOM)
    for name, size in (("words", WORDS), ("tags", TAGS)):
        assert found[name].shape == TAGGED[name].shape
        assert not torch.equal(found[name], TAGGED[name])
        assert 0.7 * size < int(found[name].max()) < size


def test_words_and_tags_are_shuffled_together() -> None:
    found = changed(Tagged(), TAGGED, SHUFFLED)
    for text in range(3):
        pairs = [list(zip(*(one[name][text].tolist() for name in TAGGED), strict=True)) for one in (TAGGED, found)]
        assert pairs[0] != pairs[1]
        assert sorted(pairs[0]) == sorted(pairs[1])


def test_positions_and_segments_say_where_and_stay() -> None:
    where = torch.arange(20).repeat(3, 1)
    for positions in (where, where // 10, torch.zeros_like(where)):
        for which in (SHUFFLED, RANDOM):
            found = changed(Tagged(), {**TAGGED, "positions": positions}, which)
            assert torch.equal(found["positions"], positions)
            assert not torch.equal(found["tags"], TAGGED["tags"])


def test_a_label_of_each_text_is_drawn_and_has_no_order() -> None:
    label = torch.tensor([2, 0, 1])
    drawn = [changed(Tagged(), {**TAGGED, "label": label}, RANDOM, seed)["label"] for seed in range(8)]
    assert len({tuple(one.tolist()) for one in drawn}) > 2
    assert all(one.shape == (3,) and int(one.max()) < 3 for one in drawn)
    assert torch.equal(changed(Tagged(), {**TAGGED, "label": label}, SHUFFLED)["label"], label)


def test_an_audit_of_a_module_with_two_inputs_of_ids_has_all_controls() -> None:
    result = audit(Tagged(), inputs=TAGGED, heads=False, ablation=False)
    assert result.missing == {}
    assert {one.name for one in result.controls} == {"random_weights", "shuffled_tokens", "random_tokens"}


def test_as_many_texts_as_tokens_in_columns() -> None:
    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.tags = nn.Embedding(WORDS, WIDTH), nn.Embedding(TAGS, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=False)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, words: Tensor, tags: Tensor) -> Tensor:
            return self.encoder(self.words(words) + self.tags(tags))

    # One text in each column, of words that no other text has.
    words = torch.arange(36).reshape(6, 6).mT.contiguous()
    found = changed(Columns().eval(), {"words": words, "tags": ids(TAGS, 6, 6)}, SHUFFLED)["words"]
    assert not torch.equal(found, words)
    assert torch.equal(found.sort(dim=0).values, words)


def test_a_decoder_with_ids_of_its_own_is_changed_and_its_padding_stays() -> None:
    model = next(small_models("t5"))
    own = ids(100, 2, 9, seed=3) + 10
    own[1, 6:] = 0
    mask = (own > 0).long()
    inputs = {"input_ids": ids(100, 2, 12), "decoder_input_ids": own, "decoder_attention_mask": mask}
    mixed = changed(model, inputs, SHUFFLED)["decoder_input_ids"]
    assert not torch.equal(mixed, own)
    assert torch.equal(mixed.sort().values, own.sort().values)
    for found in (mixed, changed(model, inputs, RANDOM)["decoder_input_ids"]):
        assert torch.equal(found[1, 6:], own[1, 6:])
        assert not torch.equal(found[1, :6], own[1, :6])


def test_a_decoder_that_is_given_the_text_is_given_the_changed_text() -> None:
    model = next(small_models("t5"))
    for which in (SHUFFLED, RANDOM):
        found = changed(model, ids(100, 2, 12), which)
        assert torch.equal(found["input_ids"], found["decoder_input_ids"])
        assert not torch.equal(found["input_ids"], ids(100, 2, 12))


def test_the_text_that_a_model_of_sound_is_to_give_is_changed_with_the_sound() -> None:
    model = next(small_models("whisper"))
    inputs = next(one for one in candidate_inputs(model) if "decoder_input_ids" in one)
    for which in (SHUFFLED, RANDOM):
        found = changed(model, inputs, which)
        assert all(not torch.equal(found[name], inputs[name]) for name in inputs)


def test_what_stands_for_an_image_stays_in_place() -> None:
    image = 5
    model = next(small_models("llava", image_token_id=image))
    text = ids(50, 1, 12) + 10
    text[0, 3] = image
    for which in (SHUFFLED, RANDOM):
        found = changed(model, text, which)["input_ids"]
        assert not torch.equal(found, text)
        assert (found == image).nonzero().tolist() == [[0, 3]]


def test_random_tokens_of_a_model_of_two_halves_are_words_of_its_text() -> None:
    """Its table of positions is longer than that of its words."""
    model, inputs = running_model("align")
    words = model.config.text_config.vocab_size
    found = changed(model, {**inputs, "input_ids": ids(60, 2, 40)}, RANDOM)["input_ids"]
    assert 0.9 * words < int(found.max()) < words


@pytest.mark.parametrize("model_type", ["clvp", "csm_depth_decoder_model", "ibert"])
def test_no_control_of_ids_fails(model_type: str) -> None:
    """Tokens put around the text, a table for each position in one, and a table of the model's own kind."""
    model, inputs = running_model(model_type)
    result = audit(model, inputs=inputs, heads=False, ablation=False, attention=False)
    assert [one.reason for one in result.controls] == [None] * 9


class Around(nn.Module):
    """Ids are moved along by one and framed; padding is counted for the positions, and types are none."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.types = nn.Embedding(WORDS, 4), nn.Embedding(30, 4), nn.Embedding(2, 4)

    def forward(self, ids: Tensor) -> Tensor:
        moved = ids.new_zeros(ids.shape[0], ids.shape[1] + 1)
        moved[:, 1:] = ids
        counted = moved.ne(0).long().cumsum(-1)
        return self.words(moved) + self.positions(counted) + self.types(torch.zeros_like(moved))


def test_ids_are_followed_to_their_table_and_what_is_counted_by_them_is_not() -> None:
    assert looked_up(Around(), {"ids": ids(WORDS, 2, 9)}) == {"ids": WORDS}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_ids_are_followed_beside_attention_of_a_function_of_scores() -> None:
    class Flexible(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)[:, None]
            return flex_attention(x, x, x)  # type: ignore[return-value]

    assert looked_up(Flexible().requires_grad_(False), {"ids": ids(WORDS, 1, 128)}) == {"ids": WORDS}


def test_one_tensor_under_two_names_is_looked_up_in_two_tables() -> None:
    same = ids(TAGS, 2, 9)
    assert looked_up(Tagged(), {"words": same, "tags": same}) == {"words": WORDS, "tags": TAGS}


@pytest.mark.parametrize(
    ("starts", "rows", "size"),
    [
        ([0, 0, 0, 0], 40, 40),
        ([2, 2, 2, 2], 40, 38),
        ([0, 0, 10, 20], 40, 10),
        ([0, 10, 20, 35], 40, 5),
        # Not by position: ids that were hashed.
        ([7, 3, 9, 1], 40, 40),
    ],
)
def test_tables_that_stand_in_one(starts: list[int], rows: int, size: int) -> None:
    some = ids(5, 2, 4)
    assert table_size(rows, some, some + torch.tensor(starts)) == size


def test_random_tokens_need_a_table() -> None:
    class Numbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(WholeBlock() for _ in range(2))

        def forward(self, ids: Tensor) -> Tensor:
            x = nn.functional.one_hot(ids, WIDTH).float()
            for block in self.blocks:
                x = block(x)
            return x

    assert not torch.equal(changed(Numbers(), ids(WIDTH, 1, 9), SHUFFLED)["ids"], ids(WIDTH, 1, 9))
    with pytest.raises(RequestError, match="a table of token embeddings"):
        changed(Numbers(), ids(WIDTH, 1, 9), RANDOM)
