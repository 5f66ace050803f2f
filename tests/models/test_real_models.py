"""Real pretrained models: every number at every layer equals a float64 SVD written here, independently."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from tests.models.real import needs

from rankfall.models.audit import audit
from rankfall.models.inputs.texts import encode, shipped_text
from rankfall.models.load.folder import LoadedModel
from rankfall.models.load.open import open_model
from rankfall.models.result import AuditFindings

RELATIVE = 1e-6
# What is zero in exact arithmetic is rounding, relative to the largest singular value.
ZERO = 1e-11
CASES = [
    pytest.param("minilm", 128, marks=needs("minilm")),
    pytest.param("minilm", 512, marks=needs("minilm")),
    pytest.param("smollm2", 128, marks=needs("smollm2")),
]


@cache
def loaded(name: str) -> LoadedModel:
    return open_model(name)


@cache
def audited(name: str, tokens: int) -> AuditFindings:
    quick = {"heads": False, "controls": False, "ablation": False}
    return audit(loaded(name), [shipped_text()], tokens=tokens, passages=1, **quick)


def hidden_states(name: str, tokens: int) -> list[np.ndarray]:
    model = loaded(name)
    batch = encode(model.tokenizer, [shipped_text()], tokens=tokens)
    with torch.inference_mode():
        output = model.network(**batch.inputs(model.network), output_hidden_states=True)
    return [state[0].double().numpy() for state in output.hidden_states]


def by_svd(x: np.ndarray) -> dict[str, float]:
    """The measures by their definitions, from the singular values and all pairs of tokens."""
    n, d = x.shape
    s = np.linalg.svd(x, compute_uv=False)
    p, q = s**2 / (s**2).sum(), s / s.sum()
    half = np.arange(1, len(s) // 2 + 1)
    lengths = np.linalg.norm(x, axis=1)
    cosines = np.abs((x / lengths[:, None]) @ (x / lengths[:, None]).T)
    mu = np.linalg.norm(x - x.mean(axis=0))
    return {
        "mu": mu,
        "relative_mu": mu / np.linalg.norm(x),
        "rank": float((s > max(n, d) * np.finfo(np.float32).eps * s[0]).sum()),
        "effective_rank": float(np.exp(-(q[q > 0] * np.log(q[q > 0])).sum())),
        "energy_rank": float(np.exp(-(p[p > 0] * np.log(p[p > 0])).sum())),
        "first_direction_share": p[0],
        "alpha": float(-np.polyfit(np.log(half), np.log(np.maximum(p / p[0], 1e-12))[: len(half)], 1)[0]),
        "stable_rank": (s**2).sum() / s[0] ** 2,
        "participation_ratio": 1 / (p**2).sum(),
        "mean_abs_cosine": (cosines.sum() - np.trace(cosines)) / (n * (n - 1)),
        "min_singular_value": s[-1],
        "max_singular_value": s[0],
        "rank_one_residual": float(np.sqrt((s[1:] ** 2).sum())),
        "largest_token_share": float(lengths.max() ** 2 / (lengths**2).sum()),
    }


def views_of(x: np.ndarray) -> dict[str, np.ndarray]:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return {"raw": x, "unit": unit, "centred": x - x.mean(axis=0), "centred_unit": unit - unit.mean(axis=0)}


@pytest.mark.parametrize(("name", "tokens"), CASES)
def test_every_number_at_every_layer_agrees_with_an_svd(name: str, tokens: int) -> None:
    states = hidden_states(name, tokens)
    rows = audited(name, tokens).boundaries
    assert [row.layer for row in rows] == list(range(len(states)))
    for row, state in zip(rows, states, strict=True):
        for view, x in views_of(state).items():
            expected = by_svd(x)
            assert {*expected, "most"} == set(row.values[view])
            assert row.values[view]["most"] == min(len(x) - view.startswith("centred"), x.shape[1])
            for measure, value in expected.items():
                floor = ZERO * expected["max_singular_value"] if measure == "min_singular_value" else 0.0
                assert row.values[view][measure] == pytest.approx(value, rel=RELATIVE, abs=floor), (
                    f"layer {row.layer} {view} {measure}"
                )


@pytest.mark.parametrize(("name", "tokens"), CASES[2:])
def test_the_sink_of_smollm2_is_found_and_its_absence_measured(name: str, tokens: int) -> None:
    result = audited(name, tokens)
    row = result.boundaries[12]
    (sink,) = [one for one in row.sinks if one.position == 0]
    assert sink.energy_share > 0.98
    assert sink.norm_ratio > 100
    rest = views_of(hidden_states(name, tokens)[12][1:])
    assert row.without_sinks is not None
    for view, x in rest.items():
        for measure in ("effective_rank", "energy_rank", "relative_mu", "mean_abs_cosine"):
            assert row.without_sinks[view][measure] == pytest.approx(by_svd(x)[measure], rel=RELATIVE)
    assert row.values["raw"]["energy_rank"] < 1.2 < 10 < row.values["unit"]["energy_rank"]
    assert set(result.verdict.statuses.values()) == {"too little text"}
    several = audit(loaded(name), tokens=64, passages=2, heads=False, controls=False, ablation=False)
    assert several.verdict.statuses["domination"] == "dominated"


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        pytest.param("minilm", "complete", marks=needs("minilm")),
        pytest.param("smollm2", "causal", marks=needs("smollm2")),
    ],
)
def test_the_masks_are_what_the_architectures_say(name: str, mask: str) -> None:
    result = audited(name, 128)
    assert {str(one.mask) for one in result.masks} == {mask}
    assert len(result.masks) == result.model.layers
    assert result.coverage is not None
    assert result.coverage.state == "complete"
