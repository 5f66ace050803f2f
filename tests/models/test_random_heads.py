"""Heads by chance: read from the random twin's blocks in place of the model's own, without a second model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from rankfall.errors import RequestError
from rankfall.models.controls.twin import RandomBlocks, random_weights
from rankfall.models.heads import random as random_heads
from rankfall.models.heads.random import random_head_ranks
from rankfall.models.heads.ranks import head_ranks, probe_heads, require_checked

LLAMA = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA |= {"intermediate_size": 48, "vocab_size": 50}


def llama(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaModel(transformers.LlamaConfig(**LLAMA)).to(dtype).eval()


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.named_parameters()}


def no_second_model(*_: object) -> nn.Module:
    raise AssertionError("a second model was built")


def test_no_second_model_is_built_and_the_model_keeps_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    before = weights(model)
    monkeypatch.setattr(random_heads, "separate_twin", no_second_model)
    found = random_head_ranks(model, seed=3)
    assert len(found) == 12
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    own = [one.qk_energy_rank for one in head_ranks(model)]
    assert [one.qk_energy_rank for one in found] != pytest.approx(own)


def test_the_heads_are_those_of_the_weights_with_which_the_control_runs() -> None:
    model = llama()
    projections: dict[str, torch.Tensor] = {}

    def keep(module: nn.Module, *_: object) -> None:
        projections[names[module]] = module.weight.detach().clone()  # type: ignore[operator]

    names = {module: name for name, module in model.named_modules() if name.endswith(("q_proj", "k_proj"))}
    hooks = [module.register_forward_hook(keep) for module in names]
    with random_weights(model, 5), torch.no_grad():
        model(input_ids=torch.ones(1, 4, dtype=torch.long))
    for hook in hooks:
        hook.remove()
    found = random_head_ranks(model, seed=5)
    for layer in range(3):
        query, key = (projections[f"layers.{layer}.self_attn.{one}_proj"].double() for one in "qk")
        for head in range(4):
            form = query[8 * head : 8 * head + 8].T @ key[8 * (head // 2) : 8 * (head // 2) + 8]
            squares = torch.linalg.svdvals(form)[:8].square()
            rank = float(torch.special.entr(squares / squares.sum()).sum().exp())
            assert found[4 * layer + head].qk_energy_rank == pytest.approx(rank, rel=1e-9)


def test_draws_differ_and_repeat() -> None:
    model = llama()
    first, again, other = (random_head_ranks(model, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert [one.qk_energy_rank for one in first] != [one.qk_energy_rank for one in other]


def test_weights_that_are_drawn_nowhere_but_in_a_built_model_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreached(*_: object) -> Any:
        raise RequestError(
            required="an initialisation for every parameter", got="none", remedy="build a second model"
        )

    built: list[int] = []
    whole = random_heads.separate_twin

    def twin(network: nn.Module, seed: int) -> nn.Module:
        built.append(seed)
        return whole(network, seed)

    model = llama()
    monkeypatch.setattr(random_heads, "separate_twin", twin)
    monkeypatch.setattr(RandomBlocks, "around", unreached)
    assert len(random_head_ranks(model, 1)) == 12
    assert built == [1]


def test_heads_that_are_read_by_name_need_no_second_model_either(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=50)
    model = transformers.BloomModel(config).eval()
    before = weights(model)
    monkeypatch.setattr(random_heads, "separate_twin", no_second_model)
    own, by_chance = head_ranks(model), random_head_ranks(model, seed=1)
    assert len(by_chance) == len(own) == 8
    assert {one.source for one in by_chance} == {one.source for one in own}
    assert [one.qk_energy_rank for one in by_chance] != pytest.approx([one.qk_energy_rank for one in own])
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_random_weights_by_name_are_those_that_run() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).eval()
    drawn = RandomBlocks(model, 4)
    assert len(drawn) == len(list(drawn)) == len(dict(model.named_parameters(remove_duplicate=False)))
    assert torch.equal(drawn["lm_head.weight"], drawn["model.embed_tokens.weight"])
    name = "model.layers.1.mlp.up_proj.weight"
    with drawn.around("model.layers.1.self_attn"):
        inside = model.get_parameter(name).clone()
    assert torch.equal(drawn[name], inside)
    assert not torch.equal(model.get_parameter(name), inside)
    with pytest.raises(KeyError):
        drawn["nothing"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotations_in_half_precision_pass_the_check_of_scores(dtype: torch.dtype) -> None:
    found = probe_heads(llama(dtype))
    assert not found.missing
    worst = max(one.self_check["same_position_scores"] for one in found.records)
    # They are not float32's: the tolerance follows the arithmetic in which the model turned queries and keys.
    assert 1e-5 < worst <= torch.finfo(dtype).eps
    assert max(one.self_check["linearity"] for one in found.records) < 1e-9


@pytest.mark.parametrize(
    ("name", "dtype", "passes", "fails"),
    [
        ("linearity", torch.bfloat16, 0.9e-4, 1.1e-4),
        ("same_position_scores", torch.float32, 0.9e-4, 1.1e-4),
        ("same_position_scores", torch.bfloat16, 0.007, 0.008),
        ("same_position_scores", torch.float16, 0.0009, 0.001),
        ("replay", torch.float32, 0.9e-4, 1.1e-4),
        ("replay", torch.bfloat16, 0.49, 0.51),
    ],
)
def test_tolerances_of_self_checks_follow_the_dtype(
    name: str, dtype: torch.dtype, passes: float, fails: float
) -> None:
    class Maps:
        def __init__(self, error: float) -> None:
            self.name, self.checks = "attention", {name: error}

    class Seen:
        tokens = torch.ones(1, dtype=dtype)

    require_checked(Maps(passes), Seen())  # type: ignore[arg-type]
    with pytest.raises(Exception, match=name.replace("_", " ")):
        require_checked(Maps(fails), Seen())  # type: ignore[arg-type]
