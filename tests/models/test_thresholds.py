"""The numbers that decide, each at its boundary, and one place for all who use them."""

from __future__ import annotations

import pytest
import torch

from rankfall.models.depth.massive import find_massive
from rankfall.models.monitor.alarms import Alarms
from rankfall.models.thresholds import THRESHOLDS


def tokens_of_length(first: float, count: int) -> torch.Tensor:
    """Orthogonal tokens of length one, the first of the given length."""
    tokens = torch.eye(count, dtype=torch.float64)
    tokens[0] *= first
    return tokens


@pytest.mark.parametrize(("count", "found"), [(7, []), (8, [0]), (9, [0])])
def test_sinks_are_looked_for_from_eight_tokens_on(count: int, found: list[int]) -> None:
    assert [sink.position for sink in find_massive(tokens_of_length(10.0, count), 0, [])] == found


@pytest.mark.parametrize(
    ("length", "count", "found"),
    [
        (5.0, 8, []),  # not longer than five times the median, and less than eight fair shares
        (5.01, 8, [0]),
        (2.9, 300, []),  # more than eight fair shares, but less than 5 % of the energy
        (4.0, 300, [0]),  # 5.08 % and 15 fair shares
        (3.0, 64, []),  # 12.5 %, but exactly eight fair shares
        (3.01, 64, [0]),
    ],
)
def test_a_sink_is_long_or_holds_much_of_the_energy(length: float, count: int, found: list[int]) -> None:
    assert [sink.position for sink in find_massive(tokens_of_length(length, count), 0, [])] == found


def test_a_monitor_warns_where_a_verdict_says_collapsed() -> None:
    alarms = Alarms()
    assert alarms.relative_mu == THRESHOLDS.collapsed_relative_mu
    assert alarms.energy_rank == THRESHOLDS.collapsed_energy_rank
    assert alarms.norm_ratio == THRESHOLDS.massive_norm_ratio
