"""Heads by chance: read from the random twin's blocks in place of the model's own, without a second model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from rankfall.models.heads import random as random_heads
from rankfall.models.heads.random import random_head_ranks
from rankfall.models.heads.ranks import head_ranks, probe_heads, require_checked
from rankfall.models.twin import random_blocks, random_weights

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
    built: list[nn.Module] = []
    whole = random_heads.separate_twin

    def twin(network: nn.Module, seed: int) -> nn.Module:
        built.append(whole(network, seed))
        return built[-1]

    model = llama()
    monkeypatch.setattr(random_heads, "separate_twin", twin)
    monkeypatch.setattr(type(model), "_init_weights", lambda self, module: None)
    for kind in (nn.Linear, nn.Embedding, type(model.norm)):
        monkeypatch.delattr(kind, "reset_parameters", raising=False)
    with pytest.raises(Exception, match="initialisation"), random_blocks(model)("layers.0.self_attn"):
        pass
    monkeypatch.undo()
    monkeypatch.setattr(random_heads, "separate_twin", twin)
    monkeypatch.setattr(random_heads, "random_blocks", lambda network, seed: random_blocks_that_fail)
    assert len(random_head_ranks(model, 1)) == 12
    assert len(built) == 1


def random_blocks_that_fail(name: str) -> Any:
    from rankfall.errors import RequestError

    raise RequestError(required="an initialisation", got="none", remedy="build a second model")


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
