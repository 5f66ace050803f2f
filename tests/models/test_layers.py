"""One number for a layer: heads, masks and attention have that of their block, in every stack of the model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.models.small import small_model
from torch import nn

from rankfall.drawing.audit import draw_head_ranks
from rankfall.drawing.head_needs import draw_needed_ranks
from rankfall.models.audit import audit
from rankfall.models.recording.layers import as_in_tokens, layers_told, place_told
from rankfall.models.result import AuditFindings


@pytest.fixture(scope="module")
def t5() -> AuditFindings:
    ids = torch.randint(4, 60, (2, 20), generator=torch.Generator().manual_seed(0))
    return audit(small_model("t5"), inputs=ids, controls=False, ablation=False, head_needs=True)


def test_the_decoders_blocks_are_counted_and_cross_attention_is_no_layer(t5: AuditFindings) -> None:
    expected = {
        *((block + 1, f"encoder.block.{block}.layer.0.SelfAttention") for block in range(3)),
        *((block + 1, f"decoder.block.{block}.layer.0.SelfAttention") for block in range(3)),
        *((block + 1, f"decoder.block.{block}.layer.1.EncDecAttention") for block in range(3)),
    }
    for records in (t5.heads, t5.masks, t5.attention, t5.key_values, t5.head_needs, t5.head_spectra):
        assert {(one.layer, one.module) for one in records} == expected
    kinds = {one.module.rpartition(".")[2]: one.kind for one in t5.heads}
    assert kinds == {"SelfAttention": "self", "EncDecAttention": "cross"}
    assert {(one.module, one.kind) for one in t5.heads} == {(one.module, one.kind) for one in t5.attention}


def test_sentences_name_the_module_where_a_number_stands_for_several(t5: AuditFindings) -> None:
    said = {one.topic: one.text for one in t5.verdict.reasons}
    lowest = said["head rank"].partition("lowest heads: ")[2].split(", ")
    assert all("code" in one and "Attention) with" in one for one in lowest)
    assert "of 24 heads of self-attention" in said["attention sinks"]
    assert len(t5.heads) == 36
    lowest = next(one for one in t5.verdict.reasons if one.topic == "head rank").numbers["lowest_layers"]
    assert all(one["title"] == f"layer {one['layer']} ({one['module']})" for one in lowest)
    by_layer = next(one for one in t5.verdict.reasons if one.topic == "attention entropy").numbers
    assert len(by_layer["relative_entropy_by_layer"]) == 6


def test_pictures_have_a_column_for_every_attention_module(t5: AuditFindings) -> None:
    tables = t5.tables()
    for figure in (draw_head_ranks(tables["heads"], "t"), draw_needed_ranks(tables["head_needs"], "t")):
        panel = figure.axes[0]
        assert panel.get_images()[0].get_array().shape == (4, 9)
        assert panel.get_xlabel() == "attention module, in order"


def test_a_block_that_runs_again_is_another_layer() -> None:
    ids = torch.randint(4, 60, (2, 20), generator=torch.Generator().manual_seed(0))
    found = audit(small_model("albert"), inputs=ids, controls=False, ablation=False)
    assert [one.layer for one in found.masks] == [1, 2, 3]
    assert {one.layer for one in found.attention} == {1, 2, 3}


def test_layers_left_out_keep_their_numbers() -> None:
    ids = torch.randint(4, 60, (2, 20), generator=torch.Generator().manual_seed(0))
    found = audit(small_model("bert"), inputs=ids, controls=False, ablation=False, layers=[2])
    assert [row.layer for row in found.boundaries] == [0, 2, 3]
    assert {(one.layer, one.module.split(".")[2]) for one in found.heads} == {(1, "0"), (2, "1"), (3, "2")}


@dataclass(frozen=True)
class Somewhere:
    layer: int
    module: str


def test_layers_in_words() -> None:
    one_stack = [Somewhere(layer, f"h.{layer - 1}.attn") for layer in (1, 2, 3, 5)]
    assert layers_told(one_stack, one_stack) == "layers 1-3, 5"
    assert layers_told(one_stack[:1], one_stack) == "layer 1"
    assert place_told(one_stack[0], one_stack) == "layer 1"
    two = [*one_stack, Somewhere(1, "decoder.0.attn"), Somewhere(2, "decoder.1.attn")]
    assert layers_told([two[0], two[1], two[4]], two) == "layers 1-2 of h, layer 1 of decoder"
    assert place_told(two[4], two) == "layer 1 (decoder.0.attn)"
    assert place_told(two[3], two) == "layer 5"
    assert [one.layer for one in as_in_tokens([Somewhere(0, "a.attn"), Somewhere(1, "b.attn")])] == [1, 2]


class TwoWidths(nn.Module):
    """Layers whose heads differ in number."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, heads, 32, batch_first=True) for heads in (2, 4, 4)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_of_different_shape_are_not_called_alike() -> None:
    torch.manual_seed(0)
    found = audit(TwoWidths(), inputs=torch.randint(50, (2, 20)), controls=False, ablation=False)
    said = next(one.text for one in found.verdict.reasons if one.topic == "head rank")
    assert said.startswith("2 of 3 layers have 4 heads of rank 4 in width 16")
    assert " directions (energy rank)" in said
    assert " of 4 directions" not in said
