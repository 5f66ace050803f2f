"""What is captured is what `hidden_states` holds, bit for bit; padding never enters; nothing stays behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.small import small_model
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.measures.catalogue import measure
from rankfall.models.blocks import choose_stack, find_stacks
from rankfall.models.depth.capture import Place, capture
from rankfall.models.depth.measure import measure_depth
from rankfall.models.texts import from_ids


def seen(model: Any, inputs: dict[str, Any], **options: Any) -> dict[Place, Tensor]:
    found: dict[Place, Tensor] = {}
    capture(model, inputs, lambda place, tokens: found.__setitem__(place, tokens.clone()), **options)
    return found


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt2", "albert", "gpt_neox", "modernbert"])
def test_boundaries_are_the_hidden_states(kind: str) -> None:
    model = small_model(kind)
    ids = torch.randint(4, 60, (2, 12))
    found = seen(model, {"input_ids": ids})
    with torch.inference_mode():
        expected = model(ids, output_hidden_states=True).hidden_states
    boundaries = {place.layer: tokens for place, tokens in found.items() if place.part == "boundary"}
    assert sorted(boundaries) == list(range(4))
    for layer, tokens in boundaries.items():
        assert torch.equal(tokens, expected[layer]), f"layer {layer}"
    ends_in_a_norm = kind not in ("bert", "albert")
    assert (Place(3, "before_final_norm") in found) == ends_in_a_norm


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_either_stack_of_an_encoder_decoder(stack: str) -> None:
    model = small_model("t5")
    ids = torch.randint(4, 60, (1, 9))
    inputs = {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}
    found = seen(model, inputs, stack=stack)
    with torch.inference_mode():
        expected = model(**inputs, output_hidden_states=True)[f"{stack}_hidden_states"]
    for layer in range(4):
        assert torch.equal(found[Place(layer)], expected[layer]), f"layer {layer}"


def test_inside_a_pre_norm_block_the_parts_add_up() -> None:
    model = small_model("llama")
    found = seen(model, {"input_ids": torch.randint(4, 60, (1, 10))}, inside=True)
    after = found[Place(1)] + found[Place(2, "attention_output")]
    torch.testing.assert_close(found[Place(2, "after_attention")], after, rtol=1e-6, atol=1e-6)
    whole = found[Place(2, "after_attention")] + found[Place(2, "mlp_output")]
    torch.testing.assert_close(found[Place(2)], whole, rtol=1e-6, atol=1e-6)


def test_inside_a_post_norm_block_the_parts_add_up() -> None:
    model = small_model("bert")
    found = seen(model, {"input_ids": torch.randint(4, 60, (1, 10))}, inside=True)
    layer = model.encoder.layer[1]
    with torch.inference_mode():
        after = layer.attention.output.LayerNorm(found[Place(1)] + found[Place(2, "attention_output")])
        whole = layer.output.LayerNorm(found[Place(2, "after_attention")] + found[Place(2, "mlp_output")])
    torch.testing.assert_close(found[Place(2, "after_attention")], after, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[Place(2)], whole, rtol=1e-6, atol=1e-6)


def test_a_parallel_block_has_no_state_after_attention() -> None:
    model = small_model("gpt_neox", use_parallel_residual=True)
    parts = {place.part for place in seen(model, {"input_ids": torch.randint(4, 60, (1, 10))}, inside=True)}
    assert "after_attention" not in parts
    assert "mlp_output" in parts


def test_no_hook_stays() -> None:
    model = small_model("bert")
    seen(model, {"input_ids": torch.randint(4, 60, (1, 6))}, inside=True)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_padding_does_not_enter() -> None:
    model = small_model("bert")
    rows = [torch.randint(4, 60, (15,)).tolist(), torch.randint(4, 60, (9,)).tolist()]
    batch = from_ids(rows)
    found = measure_depth(model, batch.inputs(model), real=batch.kept(), names=batch.names)
    for text, row in enumerate(rows):
        with torch.inference_mode():
            alone = model(torch.tensor([row]), output_hidden_states=True).hidden_states
        for layer, tokens in enumerate(alone):
            expected = measure(tokens[0], ["effective_rank", "mu"])
            ours = found[layer].per_text[text].values["raw"]
            for name, value in expected.items():
                # Another batch shape means another order of float32 sums.
                assert ours[name] == pytest.approx(float(value), rel=1e-4)


def test_layers_can_be_chosen() -> None:
    model = small_model("llama")
    batch = from_ids([torch.randint(4, 60, (9,)).tolist()])
    rows = measure_depth(model, batch.inputs(model), real=batch.kept(), names=batch.names, layers={0, 2})
    assert [row.layer for row in rows] == [0, 2]


def test_stacks_are_found_by_what_they_hold() -> None:
    names = [stack.name for stack in find_stacks(small_model("t5"))]
    assert names == ["encoder.block", "decoder.block"]
    assert len(choose_stack(small_model("albert")).blocks) == 1
    with pytest.raises(RequestError, match="a stack among layers"):
        choose_stack(small_model("llama"), "nothing")
    with pytest.raises(RequestError, match="made of blocks"):
        find_stacks(torch.nn.Linear(2, 2))


def test_a_failure_while_measuring_is_reported_not_lost() -> None:
    model = small_model("llama")
    with torch.no_grad():
        model.layers[1].mlp.down_proj.weight.fill_(float("inf"))
    batch = from_ids([torch.randint(4, 60, (9,)).tolist()])
    with pytest.raises(RequestError, match="finite tokens"):
        measure_depth(model, batch.inputs(model), real=batch.kept(), names=batch.names)
