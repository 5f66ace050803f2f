"""B-thm3: every family's tokens are fixed, have exactly the rank asked for, and are as stable as the family says."""

from __future__ import annotations

from decimal import Decimal, localcontext
from math import comb

import pytest
import torch

from rankfall.catalogue import FAMILIES, NORMS
from rankfall.equilibria.chain import DESIGNS, chain_gram, chain_matrices
from rankfall.equilibria.examine import every_rank, examine, examine_equilibrium
from rankfall.equilibria.families import (
    EquilibriumFamily,
    build_equilibrium,
    centred_basis,
    choose_family,
    equilibrium_under,
    families,
    under_norm,
)
from rankfall.equilibria.layer import NormalisedLayer, by_coordinates
from rankfall.equilibria.recovery import recoveries
from rankfall.equilibria.shift import shift_radius, shift_tokens
from rankfall.equilibria.stability import multipliers
from rankfall.equilibria.star import star_value
from rankfall.errors import RequestError
from rankfall.masks import OutStar
from rankfall.norms import LayerNorm, Norm

RESIDUAL = 1e-12


def each() -> list[pytest.param]:
    return [pytest.param(family, id=family.name) for family in families()]


@pytest.mark.parametrize("family", each())
@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 2), (3, 5), (7, 4), (10, 6)])
def test_fixed_with_exact_rank_and_promised_stability(family: EquilibriumFamily, count: int, width: int) -> None:
    for rank in range(1, min(count, width) + 1):
        seen = examine_equilibrium(family(count, width, rank))
        assert seen.residual < RESIDUAL
        assert seen.rank == rank
        assert seen.smallest > 1e3 * seen.tolerance, "the rank must be beyond doubt"
        assert seen.next < seen.tolerance
        if width > 1:
            assert (seen.verdict == "stable") == family.strict(count, width, rank)


@pytest.mark.parametrize("rank", [1, 2, 17, 31, 32])
def test_many_tokens_of_any_rank_are_well_conditioned(rank: int) -> None:
    built = build_equilibrium(64, 32, rank)
    values = torch.linalg.svdvals(built.tokens)
    assert built.layer.residual(built.tokens) < 1e-15
    assert values[rank - 1] > 0.2 * values[0]
    assert rank == 32 or values[rank] < 1e-14


def test_diagonal_reaches_the_same_size_with_a_normal_value_matrix() -> None:
    built = build_equilibrium(64, 32, 32, family="diagonal")
    assert built.layer.residual(built.tokens) < 1e-14
    assert torch.linalg.svdvals(built.tokens)[-1] > 0.05


def test_star_has_the_predicted_multipliers() -> None:
    count = rank = 4
    built = build_equilibrium(count, 5, rank, family="star")
    delta, ratio = built.parameters["delta"], built.parameters["ratio"]
    blocks = [sorted(abs(values)) for values, _, _ in multipliers(built.layer, built.tokens)]
    height = built.tokens[1, -1]
    assert blocks[0] == pytest.approx([1 / (1 + delta)] * 4, abs=1e-12)
    across = float((1 + delta) * (1 + ratio * height))
    for block in blocks[1:]:
        assert block == pytest.approx(sorted([across, 1.0, 1.0, 1.0]), abs=1e-12)
    assert examine_equilibrium(built).stability.neutral == (rank - 1) * (5 - 2)


def test_star_keeps_full_rank_after_a_disturbance_without_returning() -> None:
    built = build_equilibrium(6, 4, 4, family="star")
    for seed in range(5):
        (back,) = recoveries(
            built.layer, built.tokens, 1e-3, layers=500, generator=torch.Generator().manual_seed(seed)
        )
        assert back.rank == 4
        assert back.residual < 1e-14, "it comes to rest on the sphere of fixed points"
        assert not back.returned


def test_star_full_rank_comes_from_an_open_set_of_starts() -> None:
    """Token 1 in place, w-vector of length 3, delta = 0: about one start in six ends with full rank."""
    layer = NormalisedLayer(star_value(4, 3 / 3**0.5, 0.0), OutStar().dense(6))
    generator = torch.Generator().manual_seed(0)
    starts = layer.project(torch.randn(1000, 6, 4, generator=generator, dtype=torch.float64))
    starts[:, 0] = torch.eye(4, dtype=torch.float64)[-1]
    tokens = starts
    for _ in range(400):
        tokens = layer.step(tokens)
    ranks = (torch.linalg.svdvals(tokens) > 1e-6).sum(dim=-1)
    assert float((ranks == 4).double().mean()) == pytest.approx(0.17, abs=0.05)
    # The direction of each token's first coordinates is conserved, but where they vanish.
    kept = torch.nn.functional.cosine_similarity(starts[..., :-1], tokens[..., :-1], dim=-1)
    apart = tokens[..., :-1].norm(dim=-1) > 1e-3
    assert kept[apart].min() > 1 - 1e-9


def test_diagonal_is_unstable_but_all_tokens_at_the_strongest_direction_are_stable() -> None:
    for width in (2, 3, 5):
        built = build_equilibrium(6, width, width, family="diagonal")
        assert examine_equilibrium(built).spectral_radius == pytest.approx(3.0 ** (width - 1), rel=1e-12)
        together = torch.zeros(6, width, dtype=torch.float64)
        together[:, -1] = 1.0
        seen = examine(built.layer, together)
        assert seen.rank == 1
        assert seen.spectral_radius == pytest.approx(1 / 3, abs=1e-12)


def test_normal_value_matrices_have_no_stable_rank_two_beside_a_dominant_leader() -> None:
    """Token 1 at the dominant eigenvector of diag(1, r): x = (-c/(1-r), ...) exists for c <= 1-r, and grows."""
    generator = torch.Generator().manual_seed(1)
    feasible = 0
    for _ in range(150):
        r, c = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        if c >= 1 - r:
            continue
        feasible += 1
        own = 1 / (1 + c)
        weights = torch.tensor([[1.0, 0.0], [1 - own, own]], dtype=torch.float64)
        layer = NormalisedLayer.with_weights(weights, torch.diag(torch.tensor([1.0, r], dtype=torch.float64)))
        first = -c / (1 - r)
        tokens = torch.tensor([[1.0, 0.0], [first, (1 - first**2) ** 0.5]], dtype=torch.float64)
        assert layer.residual(tokens) < 1e-9
        assert abs(multipliers(layer, tokens)[1][0][0]) > 1
    assert feasible > 50


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6, 7, 8, 9])
def test_window_has_every_rank_strictly_stable_under_one_layer(width: int) -> None:
    found = every_rank(width + 1, width, family="window", stable=True)
    first = found[0][0].layer
    for rank, (built, seen) in enumerate(found, start=1):
        assert torch.equal(built.layer.value, first.value)
        assert seen.rank == rank
        assert seen.residual < 1e-15
        assert seen.verdict == "stable"
        assert seen.spectral_radius == pytest.approx(1 - built.parameters["delta"], abs=1e-12)


def test_window_without_delta_is_a_signed_pascal_triangle_and_only_marginal() -> None:
    width, weight = 5, 6.0
    tokens, growth = shift_tokens(width, width, width, weight, 0.0, sees_all=False)
    with localcontext(prec=100):
        for i in range(1, width):
            for m in range(1, i + 1):
                # The last coordinate of each earlier token j comes down by m columns in i - j steps.
                expected = sum(
                    (-1) ** (i - j) * comb(i - j - 1, m - 1) * tokens[j][-1] / Decimal(weight) ** m
                    for j in range(i - m + 1)
                )
                assert abs(tokens[i][width - 1 - m] - expected) < Decimal("1e-50")
    assert shift_radius(tokens, growth, weight, 0.0) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("rank", "radius"), [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.3673754936)])
def test_past_without_delta_is_marginal_up_to_rank_three_only(rank: int, radius: float) -> None:
    tokens, growth = shift_tokens(4, 4, rank, 2.0, 0.0, sees_all=True)
    assert shift_radius(tokens, growth, 2.0, 0.0) == pytest.approx(radius, abs=1e-9)


def test_window_of_width_four_recovers_from_small_disturbances() -> None:
    built = build_equilibrium(4, 4, 4, family="window")
    for seed in range(10):
        (back,) = recoveries(
            built.layer, built.tokens, 1e-4, layers=300, generator=torch.Generator().manual_seed(seed)
        )
        assert back.returned
        assert back.rank == 4


def test_window_of_width_three_catches_random_starts_in_the_known_shares() -> None:
    built = FAMILIES["window"]()(5, 3, 3, shared=True)
    generator = torch.Generator().manual_seed(0)
    tokens = built.layer.project(torch.randn(5000, 5, 3, generator=generator, dtype=torch.float64))
    for _ in range(300):
        tokens = built.layer.step(tokens)
    assert built.layer.residual(tokens) < 1e-9
    found = (torch.linalg.svdvals(tokens) > 1e-6).sum(dim=-1)
    shares = (torch.bincount(found, minlength=4) / 5000).tolist()
    # An independent simulation gave 69, 29 and 2 per cent; three standard errors of 5000 draws are two per cent.
    assert shares[1:] == pytest.approx([0.69, 0.29, 0.02], abs=0.03)


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_chain_places_its_poles(rank: int) -> None:
    """Multipliers of token i: lam_m / lam_i for later m, and the poles asked for, all over lam_i."""
    _, ratio, below, spread = DESIGNS[rank]
    built = FAMILIES["chain"]()(rank, rank, rank)
    for i, (values, _, _) in enumerate(multipliers(built.layer, built.tokens)):
        later = [ratio ** (m - i) for m in range(i + 1, rank)]
        poles = [1 - below - spread * m / max(1, i - 1) for m in range(i)]
        # A pole met i times moves by eps^(1/i).
        assert sorted(abs(values)) == pytest.approx(sorted(later + poles), abs=2e-2)
        assert float(abs(values).sum()) == pytest.approx(sum(later + poles), abs=1e-6)


def test_chain_tokens_have_the_gram_matrix_and_the_attention_they_were_designed_for() -> None:
    built = FAMILIES["chain"]()(5, 7, 4)
    gram = chain_gram(4, DESIGNS[4])
    assert torch.allclose((built.tokens @ built.tokens.mT)[:4, :4], gram, atol=1e-14)
    bidiagonal, attention = chain_matrices(4, DESIGNS[4])
    inverse = torch.linalg.inv(bidiagonal)
    assert torch.allclose(attention, inverse / inverse.sum(dim=-1, keepdim=True), atol=1e-13)
    assert torch.allclose(built.layer.attention(built.tokens)[:4, :4], attention, atol=1e-14)


def test_stable_tokens_can_be_well_conditioned_but_then_disturbances_grow() -> None:
    chain, window = (examine_equilibrium(FAMILIES[name]()(4, 4, 4)) for name in ("chain", "window"))
    assert chain.verdict == window.verdict == "stable"
    assert chain.smallest > 100 * window.smallest
    assert chain.stability.growth is not None
    assert window.stability.growth is not None
    assert chain.stability.growth > 10 * window.stability.growth > 1000


@pytest.mark.parametrize("norm", [norm for kind in NORMS for norm in kind.examples()], ids=str)
def test_every_norm_that_keeps_sizes_has_equilibria_and_others_are_refused(norm: Norm) -> None:
    if norm.length(5) is None and not by_coordinates(norm):
        with pytest.raises(RequestError, match="which fix the length of tokens or bound their coordinates; got"):
            equilibrium_under(str(norm), 6, 5, 3)
        return
    built = equilibrium_under(str(norm), 6, 5, 3)
    assert built.layer.norm == str(norm)
    assert built.layer.on_spheres == (norm.length(5) is not None)
    assert examine_equilibrium(built).rank == 3
    assert built.layer.residual(built.tokens) < 1e-13
    if built.layer.on_spheres:
        assert torch.allclose(built.tokens.norm(dim=-1), torch.full((6,), norm.length(5), dtype=torch.float64))


@pytest.mark.parametrize("family", each())
def test_layer_norm_has_the_same_equilibria_one_width_up(family: EquilibriumFamily) -> None:
    inner = family(5, 3, 3)
    outer = under_norm(inner, LayerNorm())
    assert outer.layer.norm == "layer"
    seen, before = examine_equilibrium(outer), examine_equilibrium(inner)
    assert seen.residual < 1e-12
    assert seen.rank == 3
    assert seen.verdict == before.verdict
    assert seen.stability.spectral_radius == pytest.approx(before.stability.spectral_radius, abs=1e-6)
    means = outer.tokens.mean(dim=-1)
    assert means.abs().max() < 1e-14
    assert torch.allclose(outer.tokens.var(dim=-1, correction=0), torch.ones(5, dtype=torch.float64))


def test_adding_a_multiple_of_the_mean_changes_nothing_under_layer_norm() -> None:
    outer = under_norm(FAMILIES["star"]()(5, 3, 3), LayerNorm())
    moved = NormalisedLayer(outer.layer.value + 7.0, outer.layer.allowed, "layer")
    assert moved.residual(outer.tokens) < 1e-13


def test_centred_basis_is_orthonormal_and_centred() -> None:
    basis = centred_basis(6)
    assert torch.allclose(basis @ basis.mT, torch.eye(5, dtype=torch.float64), atol=1e-15)
    assert basis.sum(dim=-1).abs().max() < 1e-15


def test_star_serves_every_rank_of_one_layer_and_says_so() -> None:
    found = every_rank(12, 6)
    assert [seen.rank for _, seen in found] == [1, 2, 3, 4, 5, 6]
    assert {built.family for built, _ in found} == {"star"}
    assert [seen.verdict for _, seen in found] == ["stable"] + ["marginal"] * 5


def test_choice_prefers_conditioning_and_honours_stability() -> None:
    assert choose_family(8, 4, 3).name == "star"
    assert choose_family(8, 4, 3, stable=True).name == "window"
    assert choose_family(40, 30, 9, stable=True).name == "window"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_equilibrium(4, 3, 0), "the rank to be a whole number of at least 1"),
        (lambda: build_equilibrium(4, 3, 4), "a rank of at most 3, the lesser of 4 tokens and width 3; got 4"),
        (lambda: build_equilibrium(0, 3, 1), "the number of tokens to be a whole number"),
        (lambda: build_equilibrium(30, 20, 10, stable=True), "a rank of at most 9 for a strictly stable"),
        (lambda: build_equilibrium(8, 6, 4, family="past", stable=True), "strictly stable member of family past"),
        (lambda: build_equilibrium(8, 6, 4, family="moon"), "a family among star, window"),
        (lambda: build_equilibrium(64, 40, 20, family="past"), "a rank of at most 0 for family past"),
        (lambda: equilibrium_under("layer", 4, 3, 3), "a rank of at most 2 under LayerNorm"),
        (lambda: equilibrium_under("none", 4, 3, 3), "a norm among unit, layer"),
        (lambda: every_rank(12, 11, stable=True), "a width of at most 9 for strictly stable"),
        (lambda: every_rank(5, 4, family="chain"), "a family with one layer for all ranks"),
        (lambda: NormalisedLayer(torch.ones(2, 3), torch.ones(2, 2).bool()), "a square value matrix"),
        (
            lambda: NormalisedLayer(torch.eye(2), torch.ones(2, 2).bool(), "none"),
            "a norm among unit, layer, rms, dyt, layer-scaled, which",
        ),
        (lambda: NormalisedLayer(torch.eye(2), torch.ones(2, 2).bool(), form=torch.eye(3)), "form of shape"),
        (lambda: NormalisedLayer.with_weights(torch.eye(2) * 2, torch.eye(2)), "rows that sum to one"),
    ],
)
def test_wrong_requests_say_what_is_wrong(call: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call()  # type: ignore[operator]


def test_noise_in_every_layer_wears_the_star_down() -> None:
    """A disturbance that is harmless once is not harmless in every layer."""
    built = build_equilibrium(8, 4, 4, family="star")
    kept = {
        (size, every): [
            one.rank == 4
            for one in recoveries(
                built.layer,
                built.tokens,
                size,
                layers=400,
                draws=6,
                every_layer=every,
                generator=torch.Generator().manual_seed(0),
            )
        ]
        for size, every in ((1e-3, False), (1e-3, True), (1e-6, True))
    }
    assert all(kept[1e-3, False])
    assert all(kept[1e-6, True])
    assert not all(kept[1e-3, True])
