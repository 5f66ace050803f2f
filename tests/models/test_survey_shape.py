"""Reading shapes from configurations: spellings, parts, stages, layers that differ, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankfall.models.architectures.survey import HeadShape, read_shape, survey_configurations


def shape_of(**attributes: Any) -> HeadShape | str:
    return read_shape("tried", SimpleNamespace(**attributes))


class Part(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return vars(self)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 6}, (768, 12, 12, 64, 6)),
        ({"d_model": 512, "num_heads": 6, "d_kv": 64, "num_layers": 8}, (512, 6, 6, 64, 8)),
        ({"n_embd": 64, "n_head": 4, "multi_query": True, "n_layer": 2}, (64, 4, 1, 16, 2)),
        (
            {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
            (64, 8, 2, 16, None),
        ),
        (
            {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": None, "head_dim": None},
            (64, 8, 8, 8, None),
        ),
        ({"hidden_sizes": [32, 64], "num_attention_heads": (1, 2), "depths": [3, 4]}, (64, 2, 2, 32, 7)),
        ({"hidden_size": 100, "num_attention_heads": 7}, (100, 7, 7, 14, None)),
    ],
)
def test_spellings(attributes: dict[str, Any], expected: tuple[int, ...]) -> None:
    found = shape_of(**attributes)
    assert isinstance(found, HeadShape)
    assert (found.width, found.heads, found.kv_heads, found.head_dim, found.layers) == expected


def test_latent_attention_adds_both_parts_of_the_head() -> None:
    found = shape_of(
        hidden_size=7168,
        num_attention_heads=128,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        head_dim=64,
        kv_lora_rank=512,
    )
    assert isinstance(found, HeadShape)
    assert (found.head_dim, found.latent, found.derived) == (192, True, False)
    assert (found.kv_latent, found.rope_dims, found.structural_rank) == (512, 64, 192)
    assert found.heads_times_rank_over_width == pytest.approx(128 * 192 / 7168)


def test_rank_behind_a_narrow_latent_is_less_than_the_head_size() -> None:
    narrow = {"hidden_size": 1024, "num_attention_heads": 8, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    keys = read_shape("narrow", {**narrow, "kv_lora_rank": 96})
    queries = read_shape("narrow", {**narrow, "kv_lora_rank": 96, "q_lora_rank": 128})
    assert isinstance(keys, HeadShape)
    assert isinstance(queries, HeadShape)
    assert (keys.head_dim, keys.structural_rank, queries.structural_rank) == (192, 160, 128)
    assert (keys.heads_times_rank_over_width, keys.departs) == (1.25, True)
    assert (queries.heads_times_rank_over_width, queries.departs) == (1.0, False)
    assert queries.record()["structural_rank"] == 128


def test_parts_are_tried_text_first_and_named() -> None:
    vision, text = Part(hidden_size=32, num_attention_heads=2), Part(hidden_size=64, num_attention_heads=2)
    whole = SimpleNamespace(
        sub_configs={"vision_config": Part, "text_config": Part}, vision_config=vision, text_config=text
    )
    found = read_shape("tried", whole)
    assert isinstance(found, HeadShape)
    assert (found.width, found.part) == (64, "text_config")
    nested = read_shape("tried", SimpleNamespace(sub_configs={"vlm_config": Part}, vlm_config=Part(**vars(whole))))
    assert isinstance(nested, HeadShape)
    assert nested.part == "vlm_config.text_config"


def test_layers_that_differ_are_read_and_said() -> None:
    class Differs(SimpleNamespace):
        def __getattribute__(self, name: str) -> Any:
            if name == "head_dim":
                raise RuntimeError("differs between layers")
            return super().__getattribute__(name)

    found = read_shape("tried", Differs(hidden_size=64, num_attention_heads=2, head_dim=16))
    assert isinstance(found, HeadShape)
    assert (found.head_dim, found.varies, found.derived) == (16, True, False)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({}, "names no attention heads"),
        ({"hidden_size": 64}, "names no attention heads"),
        ({"num_attention_heads": 4}, "names no width"),
        ({"hidden_size": 64, "num_heads": 4, "state_size": 16}, "recurrence"),
        ({"hidden_size": 4, "num_attention_heads": 8}, "8 heads share a width of 4"),
        ({"hidden_size": True, "num_attention_heads": 4}, "names no width"),
        ({"hidden_size": 64, "num_attention_heads": 0}, "names no attention heads"),
    ],
)
def test_what_gives_no_row_says_why(attributes: dict[str, Any], reason: str) -> None:
    found = shape_of(**attributes)
    assert isinstance(found, str)
    assert reason in found


def test_departures_and_groups() -> None:
    shape = HeadShape("tried", width=64, heads=8, kv_heads=2, head_dim=16, layers=None)
    assert (shape.departs, shape.grouped, shape.heads_times_rank_over_width, shape.rank_over_width) == (
        True,
        True,
        2,
        0.25,
    )
    assert not HeadShape("tried", 64, 8, 8, 8, None).departs


@pytest.mark.parametrize("model_type", ["mobilebert", "convbert", "perceiver", "zamba", "zamba2"])
def test_shapes_are_those_of_the_modules_that_are_built(model_type: str) -> None:
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type]()
    read = read_shape(model_type, config)
    assert isinstance(read, HeadShape)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    found = {
        (one.weight.shape[1], one.weight.shape[0])
        for name, one in model.named_modules()
        if name.endswith(("self_attn.q_proj", "self.query")) and "cross_attention" not in name
    }
    assert found == {(read.width, read.heads * read.head_dim)}


def test_shapes_are_counted_beside_classes() -> None:
    survey = survey_configurations(["bert", "roberta", "gpt2", "gemma"])
    counts = survey.summary()
    assert (counts["with_heads"], counts["distinct_shapes"]) == (4, 2)
    assert (counts["equal_to_one"], counts["distinct_equal_to_one"]) == (3, 1)
