"""Rows of an ablation whose attention is decided by rounding are labelled, and only those."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

from rankfall.models.ablation.chaos import with_chaos
from rankfall.report.audit import _chaotic


def row(variant: str, layer: int, size: float, **changes: Any) -> dict[str, Any]:
    plain = {"variant": variant, "scaling": "raw", "temperature": 1.0, "mask": None, "text": 0, "layer": layer}
    return {**plain, "mu": size / 2, "relative_mu": 0.5, **changes}


def test_rounding_decides_from_a_layer_on() -> None:
    sizes = [1.0, 1e4, 1e9, 1e5]
    rows = [
        *(row("full model", layer, 10.0) for layer in range(4)),
        *(row("attention + residual", layer, size) for layer, size in enumerate(sizes)),
        *(row("attention + residual", layer, size, scaling="matched") for layer, size in enumerate(sizes)),
        *(row("attention + norm", layer, size) for layer, size in enumerate(sizes)),
        *(row("attention", layer, size, temperature=1e12) for layer, size in enumerate(sizes)),
    ]
    labelled = with_chaos(rows)
    assert [{name: one[name] for name in before} for one, before in zip(labelled, rows, strict=True)] == rows
    found = [(one["variant"], one["layer"]) for one in labelled if one["chaotic"]]
    # The matched rows, those with a norm, and the one whose scores are divided by a large temperature stand.
    assert found == [("attention + residual", 2), ("attention + residual", 3)]
    assert "attention + residual from layer 2 on" in _chaotic(pd.DataFrame(labelled))
    assert _chaotic(pd.DataFrame(labelled[:4])) == ""


def test_tokens_without_a_size_are_left_alone() -> None:
    rows = [row("full model", 0, 1.0), row("attention", 0, 1.0, mu=None, relative_mu=None), row("attention", 1, 1e20)]
    assert [one["chaotic"] for one in with_chaos(rows)] == [False, False, False]
    assert with_chaos([]) == []


@pytest.mark.parametrize(("growth", "decided"), [(1e5, False), (1e10, True)])
def test_the_rule_is_where_rounding_changes_the_answer(growth: float, decided: bool) -> None:
    """The same tokens with their coordinates summed in another order: the same attention, until rounding decides."""
    generator = torch.Generator().manual_seed(0)
    tokens = growth * torch.randn(64, 16, generator=generator, dtype=torch.float64)
    # Pairs of keys that score alike, as tokens that attend to the same thing do.
    tokens[1::2] = tokens[::2].roll(1, dims=1)
    order = torch.randperm(16, generator=generator)
    ones = torch.ones(16, dtype=torch.float64)
    scores = [tokens.sum(dim=1)[:, None] * (part @ ones)[None, :] for part in (tokens, tokens[:, order])]
    plain, turned = (one.softmax(dim=-1) for one in scores)
    assert bool((plain - turned).abs().max() > 1e-2) == decided
    rows = [row("full model", 1, 1.0), row("attention", 1, growth)]
    assert with_chaos(rows)[1]["chaotic"] == decided
