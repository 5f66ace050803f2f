"""Measures: closed forms, declared ranges and invariances, Gram against SVD, refusals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.small import measure_one
from tests.sampling import normal

from rankfall.catalogue import MEASURES
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import GivenWeights
from rankfall.errors import RequestError
from rankfall.masks import Complete
from rankfall.measures import measures as module
from rankfall.measures.base import Measure, measure
from rankfall.measures.measures import EFFECTIVE_RANK, RANK, entropy_of, rankme
from rankfall.measures.profile import Profile
from rankfall.mechanism.heads import Heads
from rankfall.models.depth.capture import Place

F64 = torch.float64
ROOT = Path(__file__).parents[2]
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def orthogonal(seed: int, d: int) -> torch.Tensor:
    return torch.linalg.qr(normal(seed, d, d)).Q


CHANGES = {
    "permutation": lambda x, seed: x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))],
    "rotation": lambda x, seed: x @ orthogonal(seed, x.shape[-1]),
    "scale": lambda x, seed: x * 37.5,
    # One vector added to all, the one that takes the first token to zero.
    "translation": lambda x, seed: x - x[:1],
}


def low_rank(dtype: torch.dtype = F64) -> torch.Tensor:
    return normal(1, 30, 3).to(dtype) @ normal(2, 3, 40).to(dtype)


MATRICES = {
    "one number": torch.tensor([[-2.5]], dtype=F64),
    "one token": normal(0, 1, 6),
    "one coordinate": normal(1, 6, 1),
    "square": normal(2, 7, 7),
    "fewer tokens than coordinates": normal(3, 6, 11) + 2.0,
    "more tokens than coordinates": normal(4, 13, 5) - 1.0,
    "low rank": low_rank(),
    "low rank in float32": low_rank(torch.float32),
    "low rank in float32, turned": low_rank(torch.float32).mT.contiguous(),
    "an outlier": normal(5, 9, 8) * torch.tensor([500.0, *[1.0] * 8], dtype=F64)[:, None],
    "a zero token": normal(6, 5, 8) * torch.tensor([1.0, 1, 0, 1, 1], dtype=F64)[:, None],
    "a token twice": normal(7, 6, 9)[[0, 1, 2, 3, 4, 4]],
    "nearly equal": 1e-5 * normal(8, 6, 9) + normal(9, 9),
    "nearly one direction": normal(10, 6, 1) * normal(11, 9) + 1e-9 * normal(12, 6, 9),
    "zero": torch.zeros(4, 3, dtype=F64),
    "whole numbers": torch.arange(12).reshape(3, 4),
}


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("one", MEASURES, ids=MEASURES.names)
def test_a_measure_is_what_its_reference_says(one: Measure, kind: str) -> None:
    tokens = MATRICES[kind]
    plain = tokens.numpy() if tokens.is_floating_point() else tokens.double().numpy()
    exact = plain if one.name == "rank" else plain.astype(np.float64)
    expected = one.reference(exact)
    # Rounding is relative to the largest singular value; where that decides nothing, to the number itself.
    rounding = 1e-14 * max(1.0, float(np.linalg.norm(plain)))
    assert float(one(tokens)) == pytest.approx(expected, rel=1e-6, abs=rounding)
    assert one(tokens.numpy()) == float(one(tokens))
    if tokens.dtype == F64:
        for factor in (1e-250, 1e-30, 1e30, 1e250):
            scale = factor**one.degree
            assert float(one(tokens * factor)) == pytest.approx(expected * scale, rel=1e-6, abs=rounding * scale)


@pytest.mark.parametrize("one", MEASURES, ids=MEASURES.names)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), size=sizes)
def test_declared_range_and_invariances(one: Measure, seed: int, size: tuple[int, int]) -> None:
    tokens = normal(seed, *size)
    value = float(one(tokens))
    assert value == pytest.approx(one.reference(tokens.numpy()), rel=1e-6, abs=1e-12)
    least, greatest = one.range(*size)
    assert least - 1e-12 <= value <= greatest * (1 + 1e-12)
    for invariance in one.invariances:
        changed = float(one(CHANGES[invariance](tokens, seed)))
        assert changed == pytest.approx(value, rel=1e-8, abs=1e-8), invariance
    scaled = float(one(tokens * 4))
    assert scaled == pytest.approx(value * 4**one.degree, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("one", MEASURES, ids=MEASURES.names)
def test_undeclared_invariances_are_really_absent(one: Measure) -> None:
    tokens = normal(0, 5, 7)
    for invariance in CHANGES.keys() - one.invariances:
        assert float(one(CHANGES[invariance](tokens, 1))) != pytest.approx(float(one(tokens)), rel=1e-6), invariance


@pytest.mark.parametrize("one", MEASURES, ids=MEASURES.names)
def test_a_range_that_is_declared_is_no_wider_than_needed(one: Measure) -> None:
    """Orthonormal tokens, equal tokens and the zero matrix: between them each finite end is reached."""
    equal = torch.ones(5, 5, dtype=F64)
    found = [float(one(tokens)) for tokens in (orthogonal(0, 5), equal, 0 * equal, CHANGES["translation"](equal, 0))]
    found.append(float(one(torch.tensor([[1.0, 0], [-1, 0]], dtype=F64))))
    found.append(float(one(torch.ones(1, 5, dtype=F64))))
    least, greatest = one.range(5, 5)
    assert min(found) == pytest.approx(least, abs=1e-7)
    if greatest < math.inf:
        assert max(found) == pytest.approx(greatest, rel=1e-9)


def test_every_measure_is_listed_under_its_name() -> None:
    defined = {id(value) for value in vars(module).values() if isinstance(value, Measure)}
    assert {id(one) for one in MEASURES} == defined
    assert [one.name for one in MEASURES] == list(MEASURES.names)
    assert list(measure(normal(0, 3, 2))) == [*MEASURES.names, "most"]
    assert measure(normal(0, 4, 3, 2))["most"].tolist() == [2.0] * 4
    assert measure(np.ones((3, 5)))["most"] == 3


@pytest.mark.parametrize("shape", [(50, 3), (3, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_tolerance_of_the_rank_is_the_longer_side_times_epsilon(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """Exact singular values on either side of 50 epsilon, far above 3 epsilon and above epsilon itself."""
    epsilon = torch.finfo(dtype).eps
    tokens = torch.zeros(*shape, dtype=dtype)
    tokens[0, 0], tokens[1, 1], tokens[2, 2] = 1.0, 60 * epsilon, 40 * epsilon
    assert float(RANK(tokens)) == 2
    assert float(RANK(tokens * 2**20)) == 2


def numbers(tokens: torch.Tensor, names: Iterable[str]) -> dict[str, float]:
    return {name: float(value) for name, value in measure(tokens, names).items()}


def test_orthonormal_rows() -> None:
    n, d = 4, 9
    tokens = orthogonal(0, d)[:n]
    expected = {
        "mu": math.sqrt(n - 1),
        "relative_mu": math.sqrt((n - 1) / n),
        "rank": n,
        "effective_rank": n,
        "energy_rank": n,
        "first_direction_share": 1 / n,
        "stable_rank": n,
        "participation_ratio": n,
        "mean_abs_cosine": 0,
        "min_singular_value": 1,
        "max_singular_value": 1,
        "rank_one_residual": math.sqrt(n - 1),
        "largest_token_share": 1 / n,
    }
    assert numbers(tokens, expected) == pytest.approx(expected, abs=1e-12)


def test_identical_rows() -> None:
    n, length = 6, 5.0
    tokens = torch.tensor([[3.0, 4.0]], dtype=F64).expand(n, 2)
    expected = {
        "mu": 0,
        "relative_mu": 0,
        "rank": 1,
        "effective_rank": 1,
        "energy_rank": 1,
        "first_direction_share": 1,
        "stable_rank": 1,
        "participation_ratio": 1,
        "mean_abs_cosine": 1,
        "min_singular_value": 0,
        "max_singular_value": length * math.sqrt(n),
        "rank_one_residual": 0,
        "largest_token_share": 1 / n,
    }
    assert numbers(tokens, expected) == pytest.approx(expected, abs=1e-7)


def test_two_clusters() -> None:
    """Three tokens at e1 and one at e2: squared singular values 3 and 1."""
    tokens = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]], dtype=F64)
    share = torch.tensor([0.75, 0.25], dtype=F64)
    length = share.sqrt() / share.sqrt().sum()
    expected = {
        "mu": math.sqrt(4 - (0.75**2 + 0.25**2) * 4),
        "relative_mu": math.sqrt(1 - (0.75**2 + 0.25**2)),
        "rank": 2,
        "effective_rank": math.exp(-float((length * length.log()).sum())),
        "energy_rank": math.exp(-float((share * share.log()).sum())),
        "first_direction_share": 0.75,
        "stable_rank": 4 / 3,
        "participation_ratio": 16 / 10,
        "mean_abs_cosine": 0.5,
        "min_singular_value": 1,
        "max_singular_value": math.sqrt(3),
        "rank_one_residual": 1,
        "largest_token_share": 0.25,
    }
    assert numbers(tokens, expected) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("slope", [0.0, 0.7, 2.5])
@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_alpha_is_the_exponent_of_a_power_law(slope: float, shape: tuple[int, int]) -> None:
    values = torch.arange(1, 9, dtype=F64) ** (-slope / 2)
    # Only the first half is fitted.
    values[4:] *= 1e-3
    tokens = torch.zeros(*shape, dtype=F64)
    tokens[:8, :8] = torch.diag(values)
    assert float(measure(tokens, ["alpha"])["alpha"]) == pytest.approx(slope, abs=1e-9)


def test_rankme_is_the_effective_rank_of_all_vectors_together() -> None:
    texts = [normal(seed, 4, 6) for seed in range(3)]
    values = np.linalg.svd(np.concatenate([one.numpy() for one in texts]), compute_uv=False)
    share = values / values.sum()
    expected = float(np.exp(-(share * np.log(share)).sum()))
    assert float(rankme(texts)) == pytest.approx(expected, rel=1e-9)
    assert rankme([one.numpy() for one in texts]) == pytest.approx(expected, rel=1e-9)
    assert float(rankme(torch.cat(texts))) == pytest.approx(expected, rel=1e-9)
    with pytest.raises(RequestError, match="shape"):
        rankme(torch.ones(3))


def test_small_singular_values_take_the_svd() -> None:
    """At 1e-11 of the largest a Gram matrix reports noise; the measure must not."""
    left, right = orthogonal(1, 6), orthogonal(2, 8)
    true = torch.tensor([1.0, 1e-2, 1e-4, 1e-6, 1e-9, 1e-11], dtype=F64)
    tokens = left @ torch.diag(true) @ right[:6]
    by_gram = Profile(tokens).eigenvalues[0].sqrt()
    assert abs(float(by_gram) / 1e-11 - 1) > 0.5
    values = measure(tokens)
    assert float(values["min_singular_value"]) == pytest.approx(1e-11, rel=1e-3)
    assert float(values["rank"]) == 6
    assert float(values["rank_one_residual"]) == pytest.approx(math.sqrt(1e-4 + 1e-8 + 1e-12), rel=1e-9)


def test_rank_is_judged_by_the_dtype_that_came() -> None:
    spectrum = torch.diag(torch.tensor([1.0, 1e-3, 1e-9], dtype=F64))
    assert float(measure(spectrum)["rank"]) == 3
    assert float(measure(spectrum.float())["rank"]) == 2


def test_batch_equals_one_by_one() -> None:
    tokens = normal(3, 2, 3, 7, 5)
    tokens[1, 2, 1:] = tokens[1, 2, :1]  # one collapsed sample among healthy ones
    together = measure(tokens)
    for name, values in together.items():
        assert values.shape == (2, 3)
        alone = torch.stack([measure(sample)[name] for sample in tokens.flatten(0, 1)]).reshape(2, 3)
        assert torch.allclose(values, alone, atol=1e-12), name


@pytest.mark.parametrize("factor", [1e-200, 1e-30, 1e30, 1e200])
def test_any_size_of_tokens(factor: float) -> None:
    tokens = normal(4, 5, 6)
    for one in MEASURES:
        expected = float(measure(tokens, [one.name])[one.name]) * factor**one.degree
        assert float(measure(tokens * factor, [one.name])[one.name]) == pytest.approx(expected, rel=1e-9)


def test_zero_and_single_tokens_are_not_nan() -> None:
    assert all(float(value) == 0 for value in measure(torch.zeros(3, 4), MEASURES.names).values())
    single = measure(torch.ones(1, 4))
    assert float(single["mean_abs_cosine"]) == 1
    assert float(single["mu"]) == 0
    assert float(single["effective_rank"]) == pytest.approx(1)
    assert float(single["energy_rank"]) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_tokens_are_measured_in_float64(dtype: torch.dtype) -> None:
    tokens = normal(5, 6, 4).to(dtype)
    for name, value in measure(tokens).items():
        assert value.dtype == F64
        if name != "rank":
            assert float(value) == pytest.approx(float(measure(tokens.double())[name]), rel=1e-12)


def the_documented_measure() -> Measure:
    """The code block of docs/extending.md, run where it says that it goes."""
    (block,) = re.findall(
        r"```python\n(\w+ = Measure\(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL
    )
    names = dict(vars(module))
    exec(block, names)
    return names["NUCLEAR_RANK"]


def test_a_measure_of_any_documented_fact_works_on_every_route(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    lines = [line for line in text.split("| fact |")[1].splitlines()[2:] if line.startswith("| `")]
    # A simulation measures its tokens at another size, and puts that back by the degree.
    facts = [fact for line in lines for fact in re.findall(r"`(\w+)`", line.split("|")[1]) if fact != "size"]
    assert {"singular_values", "gram", "absolute_cosine_sum"} <= set(facts)

    def everything(profile: Profile) -> torch.Tensor:
        batch, total = profile.size.shape, torch.zeros_like(profile.size)
        for fact in facts:
            found = torch.as_tensor(getattr(profile, fact), dtype=F64)
            total = total + (found.reshape(*batch, -1).sum(dim=-1) if found.ndim else found)
        return total

    total = Measure("everything", "sum of all facts", everything, float, module.size_range, frozenset())
    nuclear = the_documented_measure()
    for one in (total, nuclear):
        monkeypatch.setattr(module, one.name.upper(), one, raising=False)
        monkeypatch.setitem(MEASURES._places, one.name, f"rankfall.measures.measures:{one.name.upper()}")
        monkeypatch.setitem(MEASURES._spellings, one.name, one.name)
    tokens = normal(0, 12, 5)
    expected = {one.name: float(one(tokens)) for one in (total, nuclear)}
    assert expected["nuclear_rank"] == pytest.approx(nuclear.reference(tokens.numpy()))
    assert float(measure(tokens)["everything"]) == expected["everything"]
    audited = measure_one(Place(0), 0, tokens, []).values
    heads = Heads.random(heads=1, width=5, rank=5, dtype=F64)
    run = run_layers(tokens[None], GivenWeights((heads,)), Complete(), 40, measures=tuple(expected))
    for name, value in expected.items():
        assert audited["raw"][name] == pytest.approx(value, rel=1e-12)
        assert float(run.columns[name][0, 0]) == pytest.approx(value, rel=1e-9)
        assert math.isfinite(audited["unit"][name] + audited["centred"][name] + float(run.columns[name][-1, 0]))
    # Far down, tokens are equal to the last digit.
    assert float(run.columns["nuclear_rank"][-1, 0]) == pytest.approx(1)


def test_arrays_and_whole_numbers_are_measured_too() -> None:
    array = normal(6, 2, 4, 3).numpy()
    found = measure(array)
    assert isinstance(found["rank"], np.ndarray)
    assert found["mu"].tolist() == measure(torch.from_numpy(array))["mu"].tolist()
    assert isinstance(EFFECTIVE_RANK(array[0]), float)
    assert EFFECTIVE_RANK(np.eye(3, dtype=np.int64)) == pytest.approx(3)
    assert float(RANK(torch.eye(3, dtype=torch.bool))) == 3
    assert float(RANK(array[0].astype(np.float32))) == 3
    flipped = EFFECTIVE_RANK(array[:, ::-1])
    assert flipped.tolist() == pytest.approx(EFFECTIVE_RANK(array).tolist())


def test_a_measure_says_what_it_is() -> None:
    assert repr(EFFECTIVE_RANK).startswith("<measure effective_rank: exponential of the entropy")
    assert EFFECTIVE_RANK.__doc__.startswith("Exponential of the entropy")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: measure(torch.full((2, 3), math.nan)), r"finite tokens; got nan at index \(0, 0\)"),
        (lambda: measure(torch.tensor([[1.0, math.inf]])), r"finite tokens; got inf at index \(0, 1\)"),
        (lambda: measure(torch.ones(0, 3)), "at least one token"),
        (lambda: measure(torch.ones(3, 0)), "one coordinate"),
        (lambda: measure(torch.ones(3)), r"shape \(..., n, d\)"),
        (lambda: measure(torch.ones(2, 3), ["rnk"]), "a measure among mu, relative_mu"),
        (lambda: MEASURES["x"], "for example effective_rank"),
        (lambda: measure(np.ones(3)), r"shape \(..., n, d\)"),
        (lambda: EFFECTIVE_RANK(np.array([["a", "b"]])), "real numbers; got dtype <U1"),
        (lambda: EFFECTIVE_RANK(np.ones((2, 2), dtype=complex)), "real numbers"),
        (lambda: EFFECTIVE_RANK(torch.ones(2, 2, dtype=torch.complex64)), "floating-point"),
        (lambda: EFFECTIVE_RANK(np.array([[1.0, math.nan]])), "finite tokens"),
    ],
)
def test_refusals(make, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [40, 600])
def test_rank_sees_through_the_rounding_of_every_dtype(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    parts = torch.randn(2, size, 5, generator=generator, dtype=torch.float64)
    assert float(measure((parts[0] @ parts[1].mT).to(dtype), ["rank"])["rank"]) == 5


def test_entropy_is_that_of_pytorch_and_never_minus_zero() -> None:
    shares = torch.rand(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares[0], shares[1], shares[1, 3] = 0.0, 0.0, 1.0
    found = entropy_of(shares)
    assert torch.allclose(found, torch.special.entr(shares).sum(dim=-1), rtol=1e-14)
    assert found[:2].tolist() == [0.0, 0.0]
    assert not bool(found[:2].signbit().any())
