"""The lower bounds: against the reference table, 50-digit arithmetic and each other; wrong requests by message."""

from __future__ import annotations

import functools

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.errors import RequestError
from rankfall.figures.base import published
from rankfall.theory.harmonics import dimension, invariant_dimension, sign_spectrum
from rankfall.theory.head_bounds import HeadClass, floor_value, heads_needed, mse_floor, plateau, prefix_floor

COLUMNS = [
    (f"{kind}{error}", {"generalised": kind == "genV_"}, float(error))
    for kind in ("H_mse", "genV_")
    for error in ("0.1", "0.05", "0.01")
]


@pytest.mark.parametrize(("column", "options", "error"), COLUMNS, ids=[column for column, _, _ in COLUMNS])
def test_heads_needed_agree_with_the_table(column: str, options: dict[str, bool], error: float) -> None:
    """Every rank, numbers up to 2e57. The table keeps four digits of large counts and stops at a lower degree, which
    can only make it smaller: by one head at r=59, by 1e-6 elsewhere (see the next test for which is right)."""
    for row in published("heads_needed_d64.csv"):
        ours = heads_needed(HeadClass(64, int(row["r"]), **options), error)
        theirs = float(row[column])
        slack = 5.1e-4 * theirs if "e" in row[column] else max(1.0, 2e-6 * theirs) if ours != theirs else 0.0
        assert abs(ours - theirs) <= slack, f"r={row['r']}: {ours} against {theirs}"


def exact_floor(dim: int, rank: int, heads: int, top: int) -> mpmath.mpf:
    total, tail, last = mpmath.mpf(0), mpmath.mpf(1), mpmath.mpf(0)
    for degree in range(1, top + 1, 2):
        size = dimension(dim, degree)
        energy = size * (mpmath.beta(mpmath.mpf(degree) / 2, mpmath.mpf(dim) / 2) / mpmath.pi) ** 2
        last = max(mpmath.mpf(0), 1 - mpmath.mpf(heads * invariant_dimension(rank, degree)) / size)
        total, tail = total + energy * last, tail - energy
    return (total + tail * last) / 2


@pytest.mark.parametrize(("rank", "heads"), [(59, 159), (32, 37278), (8, 12954), (1, 23_000_000)])
def test_floor_against_fifty_digits(rank: int, heads: int) -> None:
    with mpmath.workdps(50):
        exact = float(exact_floor(64, rank, heads, 1001))
    assert floor_value(HeadClass(64, rank), heads, 1001) == pytest.approx(exact, rel=1e-12)
    if rank == 59:
        assert exact > 0.01  # so 159 heads are too few, and the table's entry is one short


@pytest.mark.parametrize(
    ("rank", "heads", "expected"),
    [
        (1, 64, 0.1791),
        (8, 8, 0.1780),
        (32, 2, 0.1628),
        (48, 1, 0.2260),
        (63, 1, 0.0320),
        (8, 64, 0.1700),
        (32, 128, 0.0798),
    ],
)
def test_known_floors(rank: int, heads: int, expected: float) -> None:
    assert mse_floor(HeadClass(64, rank), heads).mse == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(
    ("points", "expected"), [(4, (0.38, 0.34, 0.19)), (16, (0.71, 0.63, 0.36)), (64, (0.87, 0.77, 0.44))]
)
def test_known_floors_for_more_points(points: int, expected: tuple[float, ...]) -> None:
    floors = [mse_floor(HeadClass(64, rank, points), 64 // rank).mse for rank in (1, 8, 32)]
    assert floors == pytest.approx(expected, abs=6e-3)


@given(dim=st.integers(2, 200), share=st.floats(0, 1), heads=st.integers(1, 10**12), skip=st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_order_of_the_bounds(dim: int, share: float, heads: int, skip: bool) -> None:
    rank = 1 + round(share * (dim - 1))
    standard = HeadClass(dim, rank, skip=skip)
    floor = functools.partial(floor_value, top=301)
    assert 0 <= floor(standard, heads) <= floor(standard, 0) <= 0.5 + 1e-12
    assert floor(standard, heads + 1) <= floor(standard, heads)
    assert floor(HeadClass(dim, rank, skip=True), heads) <= floor(HeadClass(dim, rank), heads)
    assert floor(HeadClass(dim, rank, skip=skip, generalised=True), heads) <= floor(standard, heads) + 1e-12
    assert floor(HeadClass(dim, rank, skip=skip, generalised=True, values="scalar"), heads) == floor(standard, heads)
    if rank < dim:
        assert floor(HeadClass(dim, rank + 1, skip=skip), heads) <= floor(standard, heads) + 1e-12


def test_a_finer_cut_only_raises_the_bound() -> None:
    for options in ({}, {"generalised": True}, {"generalised": True, "skip": True}):
        floors = [floor_value(HeadClass(32, 20, **options), 50, top) for top in (11, 51, 251, 1001)]
        assert floors == sorted(floors)


def test_prefix_form_matches_a_plain_greedy_loop() -> None:
    dim, rank, heads, top = 12, 5, 40, 61
    spectrum = sign_spectrum(dim, top)
    used, budget, total = 0, heads * rank, 0.0
    for energy, degree in zip(spectrum.energies, spectrum.degrees.tolist(), strict=True):
        budget += heads * invariant_dimension(rank, degree + 2)
        taken = min(dimension(dim, degree), budget - used)
        used += taken
        total += energy * (1 - taken / dimension(dim, degree))
    plain = 0.5 * total
    ours = prefix_floor(spectrum, rank, heads)
    assert plain <= ours <= plain + 0.5 * spectrum.tail


@pytest.mark.parametrize("dim", [2, 3, 64, 768, 4096])
def test_extreme_widths(dim: int) -> None:
    floor = mse_floor(HeadClass(dim, 1), dim - 1 or 1)
    assert plateau(dim, 1) - 1e-12 <= floor.mse < floor.baseline or dim == 2
    assert mse_floor(HeadClass(dim, dim), 1).vacuous
    assert heads_needed(HeadClass(dim, dim), 0.1) == 1
    needed = heads_needed(HeadClass(dim, 1, skip=True), 0.05)
    assert needed >= 1
    assert floor_value(HeadClass(dim, 1, skip=True), needed, 10_001) <= 0.05 + 1e-12


def test_counts_beyond_any_float() -> None:
    needed = heads_needed(HeadClass(4096, 1), 0.004)
    assert needed > 10**309
    assert (
        floor_value(HeadClass(4096, 1), needed, 20_001)
        <= 0.004
        < floor_value(HeadClass(4096, 1), needed // 2, 20_001)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HeadClass(64, 65), "the rank r to be at most 64; got 65; a head's rank cannot exceed the width d"),
        (lambda: HeadClass(64, 0), "the rank r to be a whole number of at least 1; got 0"),
        (lambda: HeadClass(1, 1), "the width d to be a whole number of at least 2; got 1"),
        (
            lambda: HeadClass(4, 2, points=5),
            "the number of points N to be at most 4; got 5; the bound takes the points orthonormal",
        ),
        (lambda: HeadClass(4, 2, values="vector"), "values among matrix, scalar; got vector"),
        (lambda: HeadClass(8, 2, points=3, generalised=True), "N = 2 for generalised heads; got 3"),
        (lambda: mse_floor(HeadClass(8, 2), 0), "the number of heads H to be a whole number of at least 1; got 0"),
        (lambda: heads_needed(HeadClass(8, 2), 0.0), r"an error in \(0, 0.5\]"),
        (lambda: heads_needed(HeadClass(8, 2), 0.51), r"an error in \(0, 0.5\].*got 0.51"),
        (lambda: heads_needed(HeadClass(8, 2, points=4), 0.8), r"an error in \(0, 0.75\].*got 0.8"),
        (lambda: heads_needed(HeadClass(64, 2), 1e-9), "an error of at least 8.03e-06 at this width; got 1e-09"),
        (lambda: heads_needed(HeadClass(64, 2), 0.1, top=10**9), "the highest degree to be at most 1000001"),
    ],
)
def test_wrong_requests(call, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call()
