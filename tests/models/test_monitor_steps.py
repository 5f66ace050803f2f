"""What a step is, when an alarm stands, and what the precision and the checkpoints of a run change: nothing."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rankfall.measures.base import measure
from rankfall.models.monitor.alarms import Alarms, RankWarning
from rankfall.models.monitor.monitor import RankMonitor
from rankfall.models.monitor.sample import MEASURES, measured, sampled

QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=1e9)


class Counting(nn.Module):
    """A block that counts its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.runs = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.runs += 1
        return tokens + self.inner(tokens)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Counting() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            if self.reentrant is None:
                tokens = block(tokens)
            else:
                tokens = checkpoint(block, tokens, use_reentrant=self.reentrant)
        return tokens


def batch(seed: int = 0, tokens: int = 12) -> Tensor:
    return torch.randn(2, tokens, 8, generator=torch.Generator().manual_seed(seed))


def accumulated(model: nn.Module, optimizers: list[Any], steps: int, passes: int, to_none: bool = True) -> None:
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=to_none)
        for index in range(passes):
            model(batch(step * passes + index).requires_grad_()).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("to_none", [True, False])
def test_accumulated_gradients_are_one_step_of_which_the_first_pass_is_measured(to_none: bool) -> None:
    model, logged, alone = Checkpointed(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with RankMonitor(model, logged, every=1, alarms=QUIET):
        accumulated(model, [optimizer], steps=3, passes=4, to_none=to_none)
    assert [row["step"] for row in logged] == [0, 1, 2]
    for step in range(3):
        with RankMonitor(model, alone, every=1, alarms=QUIET):
            model(batch(4 * step))
    assert [{**row, "step": 0} for row in logged] == alone


def test_two_optimizers_of_one_model_make_one_step() -> None:
    model, logged = Checkpointed(), []
    halves = [torch.optim.SGD(model.blocks[0].parameters()), torch.optim.SGD(model.blocks[1:].parameters())]
    with RankMonitor(model, logged, every=1, alarms=QUIET):
        accumulated(model, halves, steps=3, passes=2)
    assert [row["step"] for row in logged] == [0, 1, 2]


def test_the_optimizer_of_another_model_does_not_count() -> None:
    model, other, logged = Checkpointed(), nn.Linear(8, 8), []
    optimizer, others = torch.optim.SGD(model.parameters()), torch.optim.SGD(other.parameters())
    with RankMonitor(model, logged, every=1, alarms=QUIET):
        for _ in range(2):
            for _ in range(3):
                model(batch()).square().mean().backward()
                others.step()
                others.step()
            optimizer.step()
            optimizer.zero_grad()
    assert [row["step"] for row in logged] == [0, 1]


def test_optimizers_are_left_alone_afterwards() -> None:
    from torch.optim import optimizer as torchs

    before = len(torchs._global_optimizer_post_hooks)
    with RankMonitor(Checkpointed(), [], alarms=QUIET):
        assert len(torchs._global_optimizer_post_hooks) == before + 1
    assert len(torchs._global_optimizer_post_hooks) == before


def test_a_pass_that_failed_leaves_no_half_a_sample() -> None:
    model, logged = Checkpointed(), []
    with RankMonitor(model, logged, every=1, alarms=QUIET) as monitor:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 12, 7))
        model.eval()(batch())
        assert monitor.latest == {}
        model.train()(batch())
    assert [row["step"] for row in logged] == [1]
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("reentrant", [True, False])
def test_blocks_that_checkpointing_runs_twice_are_seen_once(reentrant: bool) -> None:
    rows: list[Any] = []
    for model in (Checkpointed(), Checkpointed(reentrant)):
        logged: list[Any] = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with RankMonitor(model, logged, every=1, alarms=QUIET):
            accumulated(model, [optimizer], steps=2, passes=2)
        rows.append(logged)
    assert model.blocks[0].runs == 2 * 2 * 2
    assert rows[0] == rows[1]


def test_a_model_that_is_a_checkpoint_itself_is_seen_once() -> None:
    model, logged = Checkpointed(), []
    with RankMonitor(model, logged, every=1, alarms=QUIET):
        for _ in range(2):
            checkpoint(model, batch().requires_grad_(), use_reentrant=False).square().mean().backward()
            model.zero_grad()
    assert [row["step"] for row in logged] == [0, 1]


def test_autocast_does_not_round_what_is_measured() -> None:
    model, seen = Checkpointed(), []
    handle = model.blocks[2].register_forward_hook(lambda _, __, out: seen.append(out))
    with torch.autocast("cpu", torch.bfloat16), RankMonitor(model, [], alarms=QUIET, blocks=1) as monitor:
        model(batch())
    handle.remove()
    tokens = seen[0][0].detach().double()
    expected = measure(tokens / tokens.norm(dim=-1, keepdim=True))
    for name in MEASURES:
        assert monitor.latest[f"rankfall/blocks.2/{name}"] == pytest.approx(float(expected[name]), rel=1e-5)


def test_blocks_of_different_shapes_precisions_and_places_are_measured_each() -> None:
    long, short = torch.randn(1, 40, 8), torch.randn(1, 12, 4, dtype=torch.float64)
    far = torch.randn(1, 80, 8)
    far[0, 79] *= 50
    samples = {name: sampled(tokens, 12) for name, tokens in {"long": long, "short": short, "far": far}.items()}
    together = measured(samples)
    assert list(together) == ["long", "short", "far"]
    assert together == {name: measured({name: sample})[name] for name, sample in samples.items()}
    assert together["far"]["longest_token"] == 79


@pytest.mark.parametrize(("placed", "fits"), [("batch", True), ("tokens", True), ("width", False), ("sum", False)])
def test_of_spread_tokens_the_part_here_is_measured_if_it_is_whole(placed: str, fits: bool) -> None:
    class Placement:
        def is_partial(self) -> bool:
            return placed == "sum"

        def is_shard(self, dim: int) -> bool:
            return placed == {0: "batch", 1: "tokens", 2: "width"}[dim]

    class Spread(Tensor):
        placements = (Placement(),)

        def to_local(self) -> Tensor:
            return self.as_subclass(Tensor)

    tokens = batch()
    if fits:
        assert torch.equal(sampled(tokens.as_subclass(Spread), 12)[0], tokens[0])
    else:
        with pytest.raises(ValueError, match="whole tokens on each process"):
            sampled(tokens.as_subclass(Spread), 12)


VALUES = {"relative_mu": 1.0, "energy_rank": 9.0, "norm_ratio": 1.0, "longest_token": 3.0}


@pytest.mark.parametrize(
    ("kind", "name", "values", "stands"),
    [
        ("collapse", "relative_mu", [0.11, 0.099, 0.11, 0.124, 0.126, 0.11, 0.09], [0, 1, 1, 1, 0, 0, 1]),
        ("collapse", "energy_rank", [2.1, 1.9, 2.4, 2.6, 2.1, 1.9], [0, 1, 1, 0, 0, 1]),
        ("massive_token", "norm_ratio", [4.9, 5.1, 4.1, 3.9, 4.9, 5.1], [0, 1, 1, 0, 0, 1]),
    ],
)
def test_an_alarm_lasts_until_the_value_has_recovered(
    kind: str, name: str, values: list[float], stands: list[int]
) -> None:
    alarms, before, found = Alarms(), {}, []
    for value in values:
        before = alarms.raised({**VALUES, name: value}, before)
        found.append(int(kind in before))
    assert found == stands


def test_what_is_not_finite_neither_raises_nor_clears_the_other_alarms() -> None:
    alarms = Alarms()
    assert set(alarms.raised({"nonfinite": 1.0}, {"massive_token": ""})) == {"nonfinite", "massive_token"}
    assert set(alarms.raised({**VALUES, "nonfinite": 1.0})) == {"nonfinite"}
    assert set(alarms.raised(VALUES, {"nonfinite": ""})) == set()


def test_a_recovery_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="a recovery of at least 1"):
        Alarms(recovery=0.9)


def test_an_alarm_warns_again_after_it_had_gone_and_is_logged() -> None:
    model, logged = Checkpointed(), []
    alike = torch.ones(1, 12, 8) + 1e-3 * batch()[:1]
    with RankMonitor(model, logged, every=1, blocks=(-1,)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for tokens in (batch(), alike, alike, batch(), alike):
            model(tokens)
    told = [str(one.message).split(":")[0] for one in caught if one.category is RankWarning]
    assert told == ["collapse at blocks.2, step 1", "collapse at blocks.2, step 4"]
    assert [row["rankfall/blocks.2/collapse"] for row in logged] == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert {row["rankfall/blocks.2/massive_token"] for row in logged} == {0.0}
