"""The engine against the same protocol written with PyTorch's own modules and optimizer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.training import oracle

from rankfall.training.cell import Cell
from rankfall.training.stack import Stack

SMALL = {"dim": 8, "points": 5, "batch": 16, "feed_forward": 32, "steps": 100, "dtype": "float64"}


@pytest.mark.parametrize(("rank", "multiplier", "layers"), [(8, 1, 1), (2, 3, 1), (1, 2, 2)])
def test_thirty_steps_equal_modules_with_adamw(rank: int, multiplier: int, layers: int) -> None:
    """Losses and weights to 1e-10 in float64, at the full learning rate."""
    cell = Cell(**SMALL, rank=rank, multiplier=multiplier, layers=layers, data="fresh")
    stack = Stack([cell])
    model = oracle.plain_model(cell, stack.weights(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=cell.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    stack.set_rates(1.0)
    stack.run_steps(30)
    for step in range(30):
        inputs, targets = stack.batches.at(torch.tensor([step]))
        loss = (model(inputs[0]) - targets[0]).square().sum(dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = oracle.plain_model(cell, stack.weights(0)).state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10, msg=name)


def test_copies_start_as_an_encoder_of_pytorch_starts() -> None:
    """`nn.TransformerEncoder` copies the layer that it is given: so are ours, and they give what it gives."""
    cell = Cell(**SMALL, rank=2, layers=3, start="copies")
    weights = Stack([cell]).weights(0)
    alone = Stack([dataclasses.replace(cell, layers=1, start="apart")]).weights(0)
    encoder = torch.nn.TransformerEncoder(
        oracle.plain_model(cell, weights)[0], num_layers=3, enable_nested_tensor=False
    )
    ours = oracle.plain_model(cell, weights)
    assert sum(1 for _ in encoder.parameters()) == sum(1 for _ in ours.parameters()) > 0
    for theirs, mine in zip(encoder.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=0, atol=0)
    for name, value in weights.items():
        torch.testing.assert_close(value, alone[f"0.{name.partition('.')[2]}"], rtol=0, atol=0)


def test_layers_apart_differ() -> None:
    weights = Stack([Cell(**SMALL, rank=2, layers=2)]).weights(0)
    assert float((weights["0.query"] - weights["1.query"]).abs().max()) > 0.1


def test_first_chunk_from_zero_changes_no_weight() -> None:
    cell = Cell(**{**SMALL, "steps": 2000}, rank=2, layers=2, start="copies", warm_up_from="zero")
    stack = Stack([cell])
    before = stack.weights(0)
    stack.advance()
    assert all(torch.equal(before[name], value) for name, value in stack.weights(0).items())
    stack.advance()
    assert not all(torch.equal(before[name], value) for name, value in stack.weights(0).items())


def test_starts_as_modules_start() -> None:
    """Bounds and variances of a copy's weights, drawn many times, against nn.MultiheadAttention and nn.Linear."""
    cell = Cell(dim=16, points=4, rank=4, multiplier=40, feed_forward=640, steps=100)
    ours = Stack([cell]).weights(0)
    torch.manual_seed(0)
    theirs = oracle.PlainEncoder(16, 4, 40, 1, 640)[0]
    packed = torch.stack([copy.in_proj_weight for copy in theirs.attention.copies])
    outputs = torch.stack([copy.out_proj.weight for copy in theirs.attention.copies])
    pairs = [
        (ours["0.query"], packed[:, :16]),
        (ours["0.value"], packed[:, 32:]),
        (ours["0.output"], outputs),
        (ours["0.rise"], theirs.rise.weight),
        (ours["0.rise_bias"], theirs.rise.bias),
        (ours["0.fall"], theirs.fall.weight),
    ]
    for mine, learned in pairs:
        other = learned.detach()
        assert float(mine.abs().max()) == pytest.approx(float(other.abs().max()), rel=0.02)
        assert float(mine.std()) == pytest.approx(float(other.std()), rel=0.05)
    assert ours["0.query_bias"].abs().max() == ours["0.output_bias"].abs().max() == 0
