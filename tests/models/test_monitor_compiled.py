"""The monitor beside torch.compile: it records what an uncompiled run records, breaks no graph, or says why not."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from rankfall.models.monitor.alarms import Alarms, RankWarning
from rankfall.models.monitor.monitor import RankMonitor

# Dynamo looks at the gradients of what goes into a compiled block, and torch warns about that.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=1e9)
OPTIONS: dict[str, Any] = {"backend": "eager", "fullgraph": True}
BLOCKS = {"blocks.0", "blocks.1", "blocks.2"}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.runs.add_(1)
        return tokens + self.drop(self.inner(tokens))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            tokens = block(tokens)
        return tokens


class Headed(nn.Module):
    """A stack of blocks inside a larger model."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(tokens))
        return out


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def batch(seed: int) -> Tensor:
    return torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(seed))


def train(model: Callable[[Tensor], Tensor], parameters: Any, steps: int, first: int = 0) -> list[float]:
    optimizer = torch.optim.SGD(list(parameters), lr=0.1)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(model: Stack) -> nn.Module:
    return torch.compile(model, **OPTIONS)


def whole_in_place(model: Stack) -> nn.Module:
    model.compile(**OPTIONS)
    return model


def per_block(model: Stack) -> nn.Module:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block, **OPTIONS)
    return model


def per_block_in_place(model: Stack) -> nn.Module:
    for block in model.blocks:
        block.compile(**OPTIONS)
    return model


def whole_forward(model: Stack) -> nn.Module:
    model.forward = torch.compile(model.forward, **OPTIONS)  # type: ignore[method-assign]
    return model


def per_block_forward(model: Stack) -> nn.Module:
    for block in model.blocks:
        block.forward = torch.compile(block.forward, **OPTIONS)
    return model


WAYS = [whole, whole_in_place, whole_forward, per_block, per_block_in_place, per_block_forward]


def ran(way: Callable[[Stack], nn.Module] | None, late: bool, watched: bool) -> tuple[list[Any], list[float], Stack]:
    """What was logged, the losses and the model, of four steps, the first one before the monitor if `late`."""
    torch.manual_seed(0)
    model, logged = Stack(), []
    compiled = model if way is None else way(model)
    torch.manual_seed(1)
    losses = train(compiled, model.parameters(), 1) if late else []
    with RankMonitor(compiled, logged, every=2, alarms=QUIET) if watched else contextlib.nullcontext():
        losses += train(compiled, model.parameters(), 4 - len(losses), first=len(losses))
    return logged, losses, model


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_is_recorded_as_one_that_is_not(way: Callable[[Stack], nn.Module], late: bool) -> None:
    expected, _, _ = ran(None, late, watched=True)
    logged, losses, model = ran(way, late, watched=True)
    assert [row["step"] for row in logged] == [0, 2]
    assert len(logged[0]) == 1 + 3 * 8
    for row, other in zip(logged, expected, strict=True):
        assert row.keys() == other.keys()
        assert all(row[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6) for name in row)
    assert not counters["graph_break"]
    graphs = counters["stats"]["unique_graphs"]
    # The same graphs, losses, random numbers and buffers as in a run that is not watched.
    torch._dynamo.reset()
    counters.clear()
    _, plain, unwatched = ran(way, late, watched=False)
    assert counters["stats"]["unique_graphs"] == graphs
    assert losses == plain
    assert model.state_dict().keys() == unwatched.state_dict().keys()
    for name, value in unwatched.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_a_part_of_the_model_may_be_compiled() -> None:
    torch.manual_seed(0)
    model, logged = Headed(), []
    model.body = torch.compile(model.body, **OPTIONS)
    with RankMonitor(model, logged, every=2, alarms=QUIET):
        train(model, model.parameters(), 3)
    assert [row["step"] for row in logged] == [0, 2]
    assert {name.split("/")[1] for name in logged[0] if "/" in name} == {f"body.{name}" for name in BLOCKS}
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1


def test_blocks_may_be_compiled_while_it_watches() -> None:
    model, logged = Stack(), []
    with RankMonitor(model, logged, every=1, alarms=QUIET):
        train(model, model.parameters(), 1)
        per_block(model)
        train(model, model.parameters(), 2)
    assert [row["step"] for row in logged] == [0, 1, 2]
    assert all({name.split("/")[1] for name in row if "/" in name} == BLOCKS for row in logged)
    assert not counters["graph_break"]


@pytest.mark.parametrize("late", [False, True])
def test_a_model_whose_compiled_copy_is_trained_says_so(late: bool) -> None:
    model, logged = Stack(), []
    compiled = torch.compile(model, **OPTIONS)
    if late:
        train(compiled, model.parameters(), 1)
    with (
        RankMonitor(model, logged, every=1, alarms=QUIET),
        pytest.warns(
            RankWarning, match="nothing is recorded.*give RankMonitor the model that torch.compile"
        ) as caught,
    ):
        train(compiled, model.parameters(), 3)
    assert len(caught) == 1
    assert logged == []
    assert not counters["graph_break"]


def test_a_model_compiled_in_place_afterwards_says_so() -> None:
    model = Stack()
    with RankMonitor(model, [], alarms=QUIET):
        model.compile(**OPTIONS)
        with pytest.warns(RankWarning, match="make it after `model.compile") as caught:
            train(model, model.parameters(), 2)
    assert len(caught) == 1


def test_blocks_inside_a_compiled_function_are_said_to_be_missing() -> None:
    model, logged = Headed(), []
    step = torch.compile(lambda tokens: model.body(tokens), **OPTIONS)
    step(batch(0))
    model.forward = lambda tokens: model.head(step(tokens))  # type: ignore[method-assign]
    with (
        RankMonitor(model, logged, every=1, alarms=QUIET),
        pytest.warns(
            RankWarning, match="gap at body.blocks.0, body.blocks.1, body.blocks.2, step 0: no output"
        ) as caught,
    ):
        train(model, model.parameters(), 2)
    assert len(caught) == 1
    assert logged == []


def test_a_model_trained_in_evaluation_mode_says_so() -> None:
    model, logged = Stack().eval(), []
    with (
        RankMonitor(model, logged, alarms=QUIET),
        pytest.warns(RankWarning, match="no forward pass.*in training mode") as caught,
    ):
        train(model, model.parameters(), 3)
    assert len(caught) == 1
    assert logged == []


def test_a_failing_eager_pass_is_a_gap() -> None:
    class OnlyCompiled(Stack):
        def forward(self, tokens: Tensor) -> Tensor:
            if not torch.compiler.is_compiling():
                raise MemoryError("too large")
            return super().forward(tokens)

    model, logged = OnlyCompiled(), []
    compiled = torch.compile(model, **OPTIONS)
    with RankMonitor(compiled, logged, every=1, alarms=QUIET), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(compiled, model.parameters(), 2)
    assert [str(one.message) for one in caught if one.category is RankWarning] == [
        "gap at blocks.0, blocks.1, blocks.2, step 0: running without torch.compile failed, MemoryError: too large"
    ]
    assert logged == []


def test_weights_keep_their_gradients_under_autocast() -> None:
    def gradients(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Stack()
        compiled = torch.compile(model, **OPTIONS)
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16), RankMonitor(compiled, [], alarms=QUIET) as monitor:
            if not watched:
                monitor.__exit__(None, None, None)
            compiled(batch(0)).float().square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    plain, monitored = gradients(False), gradients(True)
    assert len(plain) == len(monitored) == 6
    assert all(torch.equal(one, other) for one, other in zip(plain, monitored, strict=True))
