"""Head statistics: known forms have known angles and norms."""

from __future__ import annotations

import pytest
import torch

from rankfall.training.cell import Cell
from rankfall.training.heads import head_measures, head_statistics
from rankfall.training.stack import Stack


def test_known_forms() -> None:
    """Two heads with K Q^T = -3 I and K Q^T = 2 e1 e1^T in four dimensions."""
    cell = Cell(dim=4, points=3, rank=4, multiplier=2, feed_forward=8, steps=100)
    weights = Stack([cell]).weights(0)
    weights["0.key"] = torch.cat([-3 * torch.eye(4), torch.eye(4)], dim=1)
    weights["0.query"] = torch.cat([torch.eye(4), torch.diag(torch.tensor([2.0, 0, 0, 0]))], dim=1)
    found = head_measures(cell, weights)
    assert found["angle"].tolist() == pytest.approx([180.0, 60.0], abs=1e-5)
    assert found["spectral"].tolist() == pytest.approx([3.0, 2.0])
    assert found["frobenius"].tolist() == pytest.approx([6.0, 2.0])


def test_statistics_are_quartiles_and_skip_broken_weights() -> None:
    cell = Cell(dim=8, points=3, rank=2, multiplier=3, feed_forward=8, steps=100)
    weights = Stack([cell]).weights(0)
    found = head_statistics(cell, weights)
    assert found["qk_angle_25"] <= found["qk_angle_50"] <= found["qk_angle_75"]
    forms = [
        float(torch.linalg.matrix_norm(weights["0.value"][:, h : h + 2] @ weights["0.output"][h : h + 2] / 3, 2))
        for h in range(0, 24, 2)
    ]
    assert found["value_norm_max"] == pytest.approx(max(forms), rel=1e-5)
    weights["0.key"] = weights["0.key"] * torch.nan
    assert head_statistics(cell, weights) == {}
