"""What is captured is what `hidden_states` holds, bit for bit; padding never enters; nothing stays behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.small import small_model
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.measures.base import measure
from rankfall.models.depth.capture import Place, capture
from rankfall.models.depth.measure import measure_depth
from rankfall.models.inputs.texts import from_ids
from rankfall.models.recording.blocks import as_tokens, choose_blocks, choose_stack, find_stacks


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


def test_hidden_states_of_images_end_before_the_final_norm() -> None:
    model = small_model("vit", image_size=16, patch_size=4)
    inputs = {"pixel_values": torch.randn(1, 3, 16, 16)}
    found = seen(model, inputs)
    with torch.inference_mode():
        expected = model(**inputs, output_hidden_states=True)
    for layer in range(3):
        assert torch.equal(found[Place(layer)], expected.hidden_states[layer])
    assert torch.equal(found[Place(3, "before_final_norm")], expected.hidden_states[3])
    assert torch.equal(found[Place(3)], expected.last_hidden_state)


def test_streams_that_are_no_rows_become_tokens() -> None:
    ids = torch.zeros(2, 5)
    grid, row = torch.randn(3, 4, 6, 8), torch.randn(7, 8)
    assert torch.equal(as_tokens(grid), grid.reshape(3, 24, 8))
    assert torch.equal(as_tokens(row), row[None])
    several = torch.randn(2, 5, 3, 8)
    assert torch.equal(as_tokens(several, ids), several.reshape(2, 5, 24))
    assert torch.equal(as_tokens(several.movedim(2, 0), ids), several.reshape(2, 5, 24))


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


# Where a block's attention and feed-forward end, by hand: block, last map of attention, last of the feed-forward.
ENDS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "albert": (
        "encoder.albert_layer_groups.0.albert_layers.0",
        "attention.dense",
        "ffn_output",
        {},
    ),
    "distilbert": ("transformer.layer.2", "attention.out_lin", "ffn.lin2", {"dim": 32, "n_layers": 3, "n_heads": 4}),
    "bart": (
        "encoder.layers.2",
        "self_attn.out_proj",
        "fc2",
        {"d_model": 32, "encoder_layers": 3, "decoder_layers": 1},
    ),
    "opt": ("decoder.layers.2", "self_attn.out_proj", "fc2", {"word_embed_proj_dim": 32, "ffn_dim": 48}),
    "olmo2": ("layers.2", "self_attn.o_proj", "mlp.down_proj", {}),
    "gemma2": ("layers.2", "self_attn.o_proj", "mlp.down_proj", {"head_dim": 8, "num_key_value_heads": 2}),
    "mixtral": ("layers.2", "self_attn.o_proj", "mlp", {"num_key_value_heads": 2, "num_local_experts": 7}),
    "bloom": ("h.2", "self_attention.dense", "mlp.dense_4h_to_h", {"n_layer": 3, "n_head": 4}),
    "falcon": ("h.2", "self_attention.dense", "mlp.dense_4h_to_h", {}),
    "cohere": ("layers.2", "self_attn.o_proj", "mlp.down_proj", {}),
    "dinov2": ("encoder.layer.2", "attention.o_proj", "mlp.fc2", {"image_size": 16, "patch_size": 4}),
    "modernbert": ("layers.0", "attn.Wo", "mlp.Wo", {}),
}
PARALLEL = ("falcon", "cohere")


@pytest.mark.parametrize("kind", ENDS)
def test_the_inside_of_a_block_is_what_its_modules_gave(kind: str) -> None:
    path, attention, mlp, changes = ENDS[kind]
    model: Any = small_model(kind, **changes)
    with torch.no_grad():
        # Fresh weights are so small that a branch hardly shows in the stream.
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    ids = torch.randint(4, 60, (2, 10))
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16)} if kind == "dinov2" else {"input_ids": ids}
    block = model.get_submodule(path)
    gave: dict[str, Tensor] = {}
    handles = [
        block.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: gave.update(
                {name: (out[0] if isinstance(out, tuple) else out).clone()}
            )
        )
        for name in (attention, mlp)
    ]
    found = seen(model, inputs, inside=True)
    for handle in handles:
        handle.remove()
    layer = 1 if kind == "modernbert" else 3
    assert torch.equal(found[Place(layer, "attention_output")], gave[attention])
    assert torch.equal(found[Place(layer, "mlp_output")], gave[mlp].reshape(found[Place(layer)].shape))
    assert (Place(layer, "after_attention") in found) == (kind not in PARALLEL)


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
            expected = measure(tokens[0], ["energy_rank", "mu"])
            ours = found[layer].per_text[text].values["raw"]
            for name, value in expected.items():
                # Another batch shape means another order of float32 sums.
                assert ours[name] == pytest.approx(float(value), rel=1e-4)


def test_layers_can_be_chosen() -> None:
    model = small_model("llama")
    batch = from_ids([torch.randint(4, 60, (9,)).tolist()])
    rows = measure_depth(model, batch.inputs(model), real=batch.kept(), names=batch.names, layers={0, 2})
    # The last layer, before and after the final norm, is always there.
    assert [row.layer for row in rows] == [0, 2, 3, 3]


def test_stacks_are_found_by_what_they_hold() -> None:
    names = [stack.name for stack in find_stacks(small_model("t5"))]
    assert names == ["encoder.block", "decoder.block"]
    assert len(choose_stack(small_model("albert")).blocks) == 1
    with pytest.raises(RequestError, match="a stack among layers"):
        choose_stack(small_model("llama"), "nothing")
    with pytest.raises(RequestError, match="made of blocks"):
        find_stacks(torch.nn.Linear(2, 2))


class Mixture(nn.Module):
    """A block of a plain mixture of experts: every token goes to one expert."""

    def __init__(self, experts: int, width: int = 8) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(width, width), nn.GELU())
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(experts))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.mix(tokens).mean(dim=1, keepdim=True)
        chosen = self.router(tokens).argmax(dim=-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            out[chosen == number] = expert(tokens[chosen == number])
        return tokens + out


class Model(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


def stack_cases() -> dict[str, tuple[nn.Module, list[str]]]:
    """A model, and the names of its blocks."""
    mixtures = [Mixture(experts=9) for _ in range(3)]
    return {
        "mixture of experts": (Model(blocks=nn.ModuleList(mixtures)), [f"blocks.{n}" for n in range(3)]),
        "mixture in a Sequential": (nn.Sequential(nn.Linear(4, 8), *mixtures), ["1", "2", "3"]),
        "one beside many outputs": (
            Model(heads=nn.ModuleList(nn.Linear(8, 2) for _ in range(9)), body=nn.Sequential(*mixtures)),
            ["body.0", "body.1", "body.2"],
        ),
        "nested Sequential": (
            nn.Sequential(nn.Sequential(layer(), layer()), nn.Sequential(layer(), layer()), nn.Linear(8, 2)),
            ["0.0", "0.1", "1.0", "1.1"],
        ),
        "layers that are Sequentials": (
            nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3))),
            ["0", "1", "2"],
        ),
        "torch's encoder": (nn.TransformerEncoder(layer(), 4), [f"layers.{n}" for n in range(4)]),
        "shared block": (
            small_model("albert"),
            ["encoder.albert_layer_groups.0"],
        ),
        "encoder and decoder": (small_model("t5"), [f"encoder.block.{n}" for n in range(3)]),
        "experts of a real mixture": (
            small_model("mixtral", num_local_experts=7, num_key_value_heads=2),
            [f"layers.{n}" for n in range(3)],
        ),
    }


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_blocks_are_what_the_stream_runs_through_not_what_is_inside_them() -> None:
    for case, (model, names) in stack_cases().items():
        chosen = choose_stack(model)
        assert list(chosen.names) == names, case
        assert [model.get_submodule(name) for name in names] == list(chosen.blocks), case
        assert list(choose_blocks(model, 99)) == names, case


def test_a_mixture_of_experts_is_measured_block_by_block() -> None:
    model = nn.Sequential(*(Mixture(experts=9) for _ in range(3)))
    tokens = torch.randn(2, 12, 8)
    found = seen(model, {"input": tokens})
    assert sorted(found, key=lambda place: place.layer) == [Place(layer) for layer in range(4)]
    with torch.inference_mode():
        assert torch.equal(found[Place(2)], model[:2](tokens))


def test_modules_that_run_side_by_side_are_not_blocks() -> None:
    class Committee(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4))

        def forward(self, tokens: Tensor) -> Tensor:
            return torch.stack([expert(tokens) for expert in self.experts]).mean(dim=0)

    with pytest.raises(RequestError, match="run one after the other; got two of them that took the same tokens"):
        seen(Committee(), {"tokens": torch.randn(1, 12, 8)})


@pytest.mark.parametrize(("tokens", "sinks"), [(7, 0), (8, 1)])
def test_sinks_are_looked_for_among_eight_tokens_or_more(tokens: int, sinks: int) -> None:
    given = torch.randn(1, tokens, 8, generator=torch.Generator().manual_seed(0))
    given[0, 2] *= 100
    model = nn.Sequential(*(Mixture(experts=2) for _ in range(2)))
    rows = measure_depth(model, {"input": given}, real=[None], names=[["w"] * tokens], layers={0})
    assert len(rows[0].sinks) == sinks


def test_a_failure_while_measuring_is_reported_not_lost() -> None:
    model = small_model("llama")
    with torch.no_grad():
        model.layers[1].mlp.down_proj.weight.fill_(float("inf"))
    batch = from_ids([torch.randint(4, 60, (9,)).tolist()])
    with pytest.raises(RequestError, match="finite tokens"):
        measure_depth(model, batch.inputs(model), real=batch.kept(), names=batch.names)
