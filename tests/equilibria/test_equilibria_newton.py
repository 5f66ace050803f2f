"""Newton's method on the product of spheres: it finds equilibria nearby, quadratically, isolated or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.equilibria.documents import read_document, to_document
from rankfall.equilibria.examine import examine
from rankfall.equilibria.families import build_equilibrium, under_norm
from rankfall.equilibria.layer import NormalisedLayer
from rankfall.equilibria.newton import polish
from rankfall.equilibria.recovery import recoveries
from rankfall.errors import RequestError
from rankfall.masks import Complete
from rankfall.norms import LayerNorm


def disturbed(tokens: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    return tokens + size * torch.randn(
        tokens.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize(("family", "size"), [("window", 1e-5), ("past", 1e-7), ("chain", 1e-6), ("diagonal", 1e-3)])
def test_returns_to_an_isolated_equilibrium(family: str, size: float) -> None:
    built = build_equilibrium(5, 4, 3, family=family)
    found = polish(built.layer, disturbed(built.tokens, size, seed=2))
    assert found.converged
    assert found.residual < 1e-13
    assert (found.tokens - built.tokens).abs().max() < 1e-9


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1e-3, 1e-2, 5e-2]))
def test_finds_some_point_of_a_sphere_of_equilibria_nearby(seed: int, size: float) -> None:
    built = build_equilibrium(6, 4, 4, family="star")
    found = polish(built.layer, disturbed(built.tokens, size, seed))
    assert found.converged
    assert found.moved < 20 * size
    assert examine(built.layer, found.tokens).rank == 4


def test_converges_quadratically() -> None:
    built = build_equilibrium(5, 4, 3, family="past")
    start = disturbed(built.tokens, 1e-4, seed=0)
    lefts = [polish(built.layer, start, most_steps=steps).residual for steps in range(4)]
    assert lefts[1] < 1e3 * lefts[0] ** 2
    assert lefts[2] < 1e-3 * lefts[1]


def test_works_under_layer_norm() -> None:
    built = under_norm(build_equilibrium(5, 3, 3, family="window"), LayerNorm())
    found = polish(built.layer, disturbed(built.tokens, 1e-4, seed=1))
    assert found.converged
    assert (found.tokens - built.tokens).abs().max() < 1e-9


def test_finds_equilibria_of_attention_that_looks_at_the_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    form, noise = (torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    value = torch.eye(4, dtype=torch.float64) + 0.3 * noise
    layer = NormalisedLayer(value, Complete().dense(5), form=form)
    found = [polish(layer, torch.randn(5, 4, generator=generator, dtype=torch.float64)) for _ in range(6)]
    there = [one for one in found if one.converged]
    assert there, "from six random starts at least one is found"
    assert all(layer.residual(one.tokens) < 1e-12 for one in there)
    assert all(one.residual > 1e-6 for one in found if not one.converged)


def test_stops_and_says_so_where_there_is_no_equilibrium() -> None:
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    layer = NormalisedLayer(turn, torch.ones(1, 1, dtype=torch.bool))
    found = polish(layer, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert not found.converged
    assert found.residual > 0.1


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (torch.zeros(2, 2), "tokens that differ from zero"),
        (torch.full((2, 2), torch.nan), "finite tokens"),
        (torch.ones(3, 2), r"tokens of shape \(2, 2\)"),
    ],
)
def test_bad_starts_are_refused(start: torch.Tensor, message: str) -> None:
    layer = NormalisedLayer(torch.eye(2, dtype=torch.float64), Complete().dense(2))
    with pytest.raises(RequestError, match=message):
        polish(layer, start.double())


def test_recovery_refuses_nonsense() -> None:
    built = build_equilibrium(3, 2, 2)
    with pytest.raises(RequestError, match="a disturbance between 0 and 1"):
        recoveries(built.layer, built.tokens, 0.0)


def test_documents_go_there_and_back(tmp_path: Path) -> None:
    built = under_norm(build_equilibrium(5, 3, 2, family="chain"), LayerNorm())
    path = tmp_path / "layer.json"
    path.write_text(json.dumps(to_document(built.layer, built.tokens)))
    layer, tokens = read_document(path)
    assert torch.equal(tokens, built.tokens)
    assert layer.norm == "layer"
    assert torch.allclose(layer.step(tokens), built.layer.step(tokens), atol=1e-14)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "one JSON object"),
        ("{", "a JSON file"),
        ('{"tokens": [[1]]}', "a matrix of numbers named value"),
        ('{"tokens": [[1, 2]], "value": [[1]], "attention": [[1]]}', "a square value matrix"),
        ('{"tokens": [["a"]], "value": [[1]], "attention": [[1]]}', "a matrix of numbers named tokens"),
        ('{"tokens": [[NaN]], "value": [[1]], "attention": [[1]]}', "tokens as a matrix of finite numbers"),
    ],
)
def test_bad_documents_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=message):
        read_document(path)
