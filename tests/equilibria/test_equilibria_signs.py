"""Dynamic tanh keeps every pattern of signs: equilibria of every rank, strictly stable, under one layer."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from tests.sampling import normal

import rankfall
from rankfall.equilibria import signs
from rankfall.equilibria.examine import every_rank, examine_equilibrium
from rankfall.equilibria.families import equilibrium_under
from rankfall.equilibria.layer import NormalisedLayer
from rankfall.equilibria.newton import polish
from rankfall.equilibria.signs import GAIN, LEVEL, OWN_WEIGHT, own_attention, walsh_signs
from rankfall.errors import RequestError
from rankfall.norms import parse_norm

CONTRACTION = GAIN * (1 - LEVEL**2)


def test_the_level_meets_both_conditions_of_the_proof() -> None:
    assert OWN_WEIGHT > 0.5
    assert math.tanh(GAIN * (OWN_WEIGHT * LEVEL - (1 - OWN_WEIGHT))) >= LEVEL
    assert CONTRACTION < 1


@pytest.mark.parametrize("norm", ["dyt", "dyt:2.0", "dyt:0.1"])
@pytest.mark.parametrize(("count", "width"), [(1, 1), (5, 3), (3, 5), (9, 9), (12, 7)])
def test_every_rank_is_there_and_strictly_stable(norm: str, count: int, width: int) -> None:
    for rank in range(1, min(count, width) + 1):
        built = equilibrium_under(norm, count, width, rank, stable=True)
        seen = examine_equilibrium(built)
        assert (built.family, seen.rank, seen.verdict) == ("signs", rank, "stable")
        assert seen.residual < 1e-15
        assert seen.smallest > 0.2
        assert seen.spectral_radius <= CONTRACTION
        assert built.tokens.abs().min() >= LEVEL
        assert torch.equal(built.tokens.sign(), walsh_signs(count, rank)[:, torch.arange(width) % rank])


def test_every_pattern_of_signs_has_one_equilibrium() -> None:
    layer = equilibrium_under("dyt", 4, 1, 1).layer
    ends = set()
    for pattern in itertools.product((-1.0, 1.0), repeat=4):
        wanted = torch.tensor(pattern, dtype=torch.float64)[:, None]
        reached = []
        for start in (wanted, LEVEL * wanted):
            tokens = start
            for _ in range(30):
                tokens = layer.step(tokens)
            reached.append(tokens)
        assert torch.equal(reached[0], reached[1])
        assert torch.equal(reached[0].sign(), wanted)
        ends.add(tuple(reached[0].flatten().tolist()))
    assert len(ends) == 2**4


def test_the_tokens_are_fixed_to_forty_digits() -> None:
    with mpmath.workdps(40):
        norm = parse_norm("dyt:2.0")
        built = equilibrium_under("dyt:2.0", 3, 2, 2)
        weights = mpmath.matrix([[1, 0, 0], ["0.25", "0.75", 0], ["0.125", "0.125", "0.75"]])
        tokens = mpmath.matrix(walsh_signs(3, 2).tolist())
        for _ in range(40):
            mixed = weights * tokens * (mpmath.mpf(GAIN) / 2)
            tokens = mpmath.matrix([norm.reference([mixed[i, j] for j in range(2)]) for i in range(3)])
        for i, j in itertools.product(range(3), range(2)):
            assert float(abs(tokens[i, j] - float(built.tokens[i, j]))) < 1e-15


def test_without_gain_nothing_is_left() -> None:
    layer = NormalisedLayer.with_weights(own_attention(5), 2.0 * torch.eye(3, dtype=torch.float64), "dyt")
    tokens = walsh_signs(5, 3)
    sizes = []
    for _ in range(400):
        sizes.append(float(tokens.abs().max()))
        tokens = layer.step(tokens)
    assert all(after < before for before, after in itertools.pairwise(sizes))
    # x' = tanh x falls like sqrt(3 / 2t).
    assert sizes[-1] == pytest.approx(math.sqrt(3 / (2 * 400)), rel=0.02)


def test_patterns_are_independent() -> None:
    for count in range(1, 21):
        assert int(torch.linalg.matrix_rank(walsh_signs(count, count))) == count


def test_attention_gives_a_token_its_own_weight_and_the_rest_to_those_before() -> None:
    weights = own_attention(4)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(weights, weights.tril())
    assert weights.diagonal().tolist() == [1.0, 0.75, 0.75, 0.75]
    assert weights[3, :3].tolist() == pytest.approx([0.25 / 3] * 3)


def test_one_layer_has_all_ranks() -> None:
    found = every_rank(7, 5, norm="dyt", stable=True)
    assert [seen.rank for _, seen in found] == [1, 2, 3, 4, 5]
    assert all(seen.verdict == "stable" for _, seen in found)
    assert all(torch.equal(built.layer.value, found[0][0].layer.value) for built, _ in found)


def test_newton_finds_it_and_leaves_free_tokens_where_they_are() -> None:
    built = equilibrium_under("dyt", 4, 3, 3)
    noise = normal(0, *built.tokens.shape)
    found = polish(built.layer, built.tokens + 1e-3 * noise)
    assert found.converged
    assert torch.allclose(found.tokens, built.tokens, atol=1e-12)
    nothing = polish(built.layer, torch.zeros(4, 3, dtype=torch.float64))
    assert nothing.converged
    assert not nothing.tokens.any()


def test_what_the_verb_says() -> None:
    found = rankfall.equilibrium(tokens=6, width=4, rank=3, norm="dyt", stable=True, disturb=0.2, draws=5, layers=50)
    assert (found.family, found.rank, found.stable, found.as_asked) == ("signs", 3, True, True)
    assert found.found["statement"] == "extends B-thm3"
    assert found.found["parameters"]["gain"] == GAIN
    recovery = found.found["recovery"]
    assert (recovery["returned_draws"], recovery["lowest_rank"]) == (5, 3)
    again = rankfall.equilibrium(polish=found.record())
    assert again.as_asked
    assert again.found["norm"] == "dyt"
    assert again.found["statement"] == "extends B-thm3"
    assert rankfall.equilibrium(tokens=6, width=4, norm="dyt", all_ranks=True).found["statement"] == "extends B-thm3"
    assert rankfall.equilibrium(tokens=6, width=4).found["statement"] == "B-thm3"


@pytest.mark.parametrize("all_ranks", [False, True])
def test_other_families_are_for_spheres(all_ranks: bool) -> None:
    with pytest.raises(RequestError, match=r"family signs under the norm dyt, .* got star; leave the family out"):
        rankfall.equilibrium(tokens=6, width=4, norm="dyt", family="star", all_ranks=all_ranks)


def test_a_norm_that_does_not_saturate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "GAIN", 1.0)
    with pytest.raises(RequestError, match=r"a norm that saturates.*got dyt, whose layer still moves tokens by"):
        equilibrium_under("dyt", 4, 3, 2)
