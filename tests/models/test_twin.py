"""A model runs with random weights in place of its own, and has its own again, bit for bit, whatever happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models.small import small_model
from torch import Tensor, nn

from rankfall.models.controls import controls
from rankfall.models.controls.changes import Given
from rankfall.models.controls.controls import run_controls
from rankfall.models.controls.twin import _seed, draw_seed, random_weights, separate_twin
from rankfall.models.depth.capture import capture
from rankfall.models.inputs.texts import from_ids
from rankfall.models.recording.placement import alone, hollow

IDS = torch.arange(4, 40).reshape(2, 18)
WEIGHT = "layers.1.mlp.up_proj.weight"


def states(model: nn.Module, ids: Tensor = IDS) -> list[Tensor]:
    found: list[Tensor] = []
    capture(model, {"input_ids": ids}, lambda place, tokens: found.append(tokens.clone()))
    return found


def given(model: nn.Module) -> Given:
    batch = from_ids(IDS.tolist())
    return Given(batch.inputs(model), batch.kept(), batch.names, batch)


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def seen_weights(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """What each block has while it runs, and what the rest has."""
    found: dict[str, Tensor] = {}
    handles = []
    for path, block in model.named_modules():
        if type(block).__name__.endswith(("DecoderLayer", "Block", "BertLayer")):

            def keep(module: nn.Module, args: Any, path: str = path) -> None:
                found.update({f"{path}.{name}": value.detach().clone() for name, value in module.named_parameters()})

            handles.append(block.register_forward_pre_hook(keep))
    with random_weights(model, seed):
        states(model)
        rest = {name: value.detach().clone() for name, value in model.named_parameters() if name not in found}
    for handle in handles:
        handle.remove()
    return found | rest


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_weights_are_as_the_library_draws_them(kind: str) -> None:
    model = small_model(kind)
    before = copied(model)
    ours = seen_weights(model, 5)
    theirs = dict(separate_twin(model, 5).named_parameters())
    assert set(ours) == set(theirs)
    kinds: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, value in ours.items():
        kinds.setdefault(".".join(part for part in name.split(".") if not part.isdigit()), []).append(
            (value, theirs[name].detach())
        )
    for name, pairs in kinds.items():
        one, other = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
        if float(other.std()) == 0:
            assert torch.equal(one, other), name
        else:
            assert not torch.equal(one, other)
            # Of n normal numbers the deviation is known to 1/sqrt(2n): five standard errors of a difference.
            assert abs(float(one.std() / other.std()) - 1) < 5 / one.numel() ** 0.5, name
            assert abs(float(one.mean() - other.mean())) < 10 * float(other.std()) / one.numel() ** 0.5, name
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_seed_is_a_twin_and_only_one_block_is_random_at_a_time() -> None:
    model = small_model("llama")
    real, before = states(model), copied(model)
    others: list[bool] = []
    watched = model.layers[0].register_forward_pre_hook(
        lambda module, args: others.append(torch.equal(model.get_parameter(WEIGHT), before[WEIGHT]))
    )
    runs = []
    for seed in (3, 3, 4):
        with random_weights(model, seed):
            runs.append(states(model))
    watched.remove()
    assert others == [True] * 3
    assert all(torch.equal(one, other) for one, other in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][-1], runs[2][-1])
    assert not torch.equal(runs[0][0], real[0])
    assert all(torch.equal(one, other) for one, other in zip(states(model), real, strict=True))


def test_seeds_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        expected = torch.rand(3)
        _seed(11, [torch.device("cpu")])
        assert torch.equal(torch.rand(3), expected)
        asked: list[int] = []
        monkeypatch.setattr(torch, "manual_seed", asked.append)
        _seed(12, [torch.device("cpu"), torch.device("mps")])
        assert asked == [12], "devices of other kinds have seeds of their own"


def test_what_has_no_storage_is_not_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("llama")
    library, places = type(model)._init_weights, list[set[str]]()

    def watched(self: Any, module: nn.Module) -> None:
        places.append({one.device.type for one in module.parameters(recurse=False)})
        library(self, module)

    monkeypatch.setattr(type(model), "_init_weights", watched)
    with random_weights(model, 5):
        states(model)
    assert {"cpu"} in places
    assert {"meta"} not in places


@pytest.mark.parametrize("made", [alone, hollow])
def test_a_copy_has_a_configuration_of_its_own(made: Callable[[nn.Module], nn.Module]) -> None:
    model: Any = small_model("llama")
    module = model.layers[0].self_attn
    copy: Any = made(model.layers[0])
    assert type(copy.self_attn.config) is type(module.config)
    assert copy.self_attn.config is not module.config
    assert copy.self_attn.config is copy.mlp.config
    before = module.config._attn_implementation
    copy.self_attn.config._attn_implementation_internal = "another"
    assert module.config._attn_implementation == before


def test_the_state_of_the_random_generator_is_left_alone() -> None:
    model = small_model("llama")
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    with random_weights(model, 1):
        states(model)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("where", ["layers.1.mlp", "layers.2", "norm"])
def test_an_exception_leaves_the_model_as_it_was(where: str) -> None:
    model = small_model("llama")
    before, storages = copied(model), {name: value.data_ptr() for name, value in model.named_parameters()}

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("on purpose")

    failing = model.get_submodule(where).register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError), random_weights(model):
        states(model)
    failing.remove()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: value.data_ptr() for name, value in model.named_parameters()} == storages
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_shared_blocks_have_one_twin() -> None:
    model = small_model("albert")
    with random_weights(model):
        first = states(model)
    with random_weights(model):
        second = states(model)
    assert torch.equal(first[-1], second[-1])


class PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.linear = nn.Linear(16, 16)
        self.raw = nn.Parameter(torch.full((16, 16), 3.0) * torch.arange(16).sub(7.5).sign())
        self.shift = nn.Parameter(torch.full((16,), 7.0))

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = tokens + self.linear(self.norm(tokens)) @ self.raw / 16 + self.shift
        return out


def test_plain_modules_are_reset_and_bare_parameters_drawn_with_their_size() -> None:
    model = nn.Sequential(nn.Embedding(50, 16), nn.Sequential(PlainBlock(), PlainBlock()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(5)
    real = model[1][0].raw.detach().clone()
    found: dict[str, Tensor] = {}
    model[1][0].register_forward_pre_hook(
        lambda module, args: found.update({name: one.detach().clone() for name, one in module.named_parameters()})
    )
    with random_weights(model):
        model(IDS)
    assert float(found["linear.weight"].abs().max()) <= 0.25
    assert torch.equal(found["norm.weight"], torch.ones(16))
    assert torch.equal(found["shift"], torch.zeros(16))
    assert float(found["raw"].std()) == pytest.approx(float(real.std()), rel=0.2)
    assert torch.equal(model[1][0].raw, real)


def test_what_is_initialised_only_when_a_model_is_built_takes_a_second_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_model("llama")
    model.register_parameter("extra", nn.Parameter(torch.ones(3)))
    built: list[int] = []

    def twin(network: nn.Module, seed: int) -> nn.Module:
        built.append(seed)
        return separate_twin(network, seed)

    monkeypatch.setattr(controls, "separate_twin", twin)
    made = run_controls(model, given(model), layers=3, draws=2)
    assert built == [draw_seed(0, 0), draw_seed(0, 1)]
    assert [one.reason for one in made] == [None] * 6


def test_draws_are_distinct_and_later_ones_are_measured_at_both_ends_and_the_middle() -> None:
    model = small_model("llama")
    made = run_controls(model, given(model), layers=3, draws=2, seed=7)
    again = run_controls(model, given(model), layers=3, draws=2, seed=7)
    assert [one.rows[-1].values for one in made] == [one.rows[-1].values for one in again]
    layers = [sorted({row.layer for row in one.rows}) for one in made]
    assert layers == [[0, 1, 2, 3]] * 3 + [[0, 2, 3]] * 3
    ends = {(one.name, one.rows[-1].values["unit"]["energy_rank"]) for one in made}
    assert len(ends) == 6
    assert [one.record()["draw"] for one in made] == [0, 0, 0, 1, 1, 1]


def test_controls_of_large_matrices_are_measured_at_a_few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "EVERY_LAYER_BELOW", 8)
    monkeypatch.setattr(controls, "LARGE_LAYERS", 2)
    model = small_model("llama")
    made = run_controls(model, given(model), layers=3, draws=1)
    assert all(sorted({row.layer for row in one.rows}) == [0, 3] for one in made)
