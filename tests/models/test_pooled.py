"""Ranks of all texts together: which vectors, which numbers, and where they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import pytest
import torch
from tests.models.small import small_model
from tests.sampling import normal
from torch import Tensor

from rankfall.measures.measures import ALPHA, EFFECTIVE_RANK, ENERGY_RANK
from rankfall.models.audit import audit
from rankfall.models.controls.controls import COMPARED
from rankfall.models.depth import pooled as module
from rankfall.models.depth.capture import Place
from rankfall.models.depth.measure import DepthMeasurement
from rankfall.models.depth.pooled import FEWEST_TEXTS, Pool, Pooled
from rankfall.models.result import AuditFindings
from rankfall.report.audit import audit_document


def tokens_of(texts: int, n: int = 6, d: int = 5, seed: int = 0) -> Tensor:
    return normal(seed, texts, n, d) + 0.5


def test_all_tokens_of_all_texts_by_the_plain_definitions() -> None:
    x = tokens_of(3)
    real = torch.tensor([True, True, True, False, False, False])
    pool = Pool([None, real, None])
    pool.take(Place(0), tokens_of(3, seed=1))
    pool.take(Place(1, "after_attention"), tokens_of(3, seed=2))
    pool.take(Place(1), x)
    (found,) = pool.rows()
    together = torch.cat([x[0], x[1, :3], x[2]]).numpy()
    assert (found.layer, found.part, found.vectors) == (1, "boundary", "tokens")
    assert (found.rows, found.drawn_from, found.width, found.most) == (15, 15, 5, 5)
    assert found.rankme == pytest.approx(EFFECTIVE_RANK.reference(together), rel=1e-9)
    assert found.energy_rank == pytest.approx(ENERGY_RANK.reference(together), rel=1e-9)
    assert found.alpha == pytest.approx(ALPHA.reference(together - together.mean(axis=0)), rel=1e-9)
    assert f"RankMe {found.rankme:.1f} of at most 5" in found.told()


def test_before_the_final_norm_and_after_it() -> None:
    pool = Pool([None])
    for again in range(2):  # a second run replaces the first
        pool.take(Place(0), tokens_of(1, seed=again))
        pool.take(Place(1), tokens_of(1, seed=again))
        pool.take(Place(2, "before_final_norm"), 100 * tokens_of(1, seed=again))
        pool.take(Place(2), tokens_of(1, seed=again))
    before, after = pool.rows()
    assert (before.part, after.part) == ("before_final_norm", "boundary")
    assert before.rankme == pytest.approx(after.rankme, rel=1e-9)
    assert "before the final norm" in before.told()
    assert "after layer 2" in after.told()


def test_the_model_may_change_its_tokens_afterwards() -> None:
    x, pool = tokens_of(1), Pool([None])
    expected = EFFECTIVE_RANK.reference(x[0].numpy())
    pool.take(Place(0), x)
    x.zero_()
    assert pool.rows()[0].rankme == pytest.approx(expected, rel=1e-9)


def test_too_many_tokens_are_drawn_from_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_VECTORS", 7)
    pool = Pool([None] * 3)
    pool.take(Place(0), tokens_of(3))
    one, again, other = pool.rows(0)[0], pool.rows(0)[0], pool.rows(1)[0]
    assert (one.rows, one.drawn_from) == (7, 18)
    assert one == again
    assert one.rankme != other.rankme
    assert "7 tokens of all inputs together (drawn from 18)" in one.told()


def test_means_of_texts_where_there_are_enough() -> None:
    for texts in (FEWEST_TEXTS - 1, FEWEST_TEXTS):
        pool, x = Pool([None] * texts), tokens_of(texts)
        pool.take(Place(0), x)
        found = {one.vectors: one for one in pool.rows()}
        assert ("text_means" in found) == (texts >= FEWEST_TEXTS)
    means = np.asarray(x.mean(dim=1))
    assert found["text_means"].rows == FEWEST_TEXTS
    assert found["text_means"].rankme == pytest.approx(EFFECTIVE_RANK.reference(means), rel=1e-9)


def same(ours: Sequence[Pooled], theirs: Sequence[Pooled]) -> bool:
    """The same places and sizes, and the same numbers up to rounding."""
    pairs = [
        pair for one, two in zip(ours, theirs, strict=True) for pair in zip(astuple(one), astuple(two), strict=True)
    ]
    return all(a == b or (isinstance(a, float) and a == pytest.approx(b, rel=1e-13)) for a, b in pairs)


def test_a_single_text_is_not_decomposed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tokens_of(2)
    taken, pools = DepthMeasurement([None], [[]]), [Pool([None]) for _ in range(4)]
    for place, tokens in ((Place(0), x[:1]), (Place(1, "before_final_norm"), 100 * x[1:]), (Place(1), x[1:])):
        taken.take(place, tokens)
        for pool in pools:
            pool.take(place, tokens)
    rows = taken.rows()
    expected = pools[0].rows()
    with monkeypatch.context() as patch:
        patch.setattr(module, "views", None)
        found = pools[1].rows(measured=rows)
    assert same(found, expected)
    monkeypatch.setattr(module, "MOST_VECTORS", 4)
    drawn = pools[2].rows(measured=rows)
    assert drawn == pools[3].rows(), "those drawn are other vectors"
    assert not same(drawn, expected)


def test_rows_of_several_texts_are_means_and_no_pool() -> None:
    x = tokens_of(2)
    taken, pools = DepthMeasurement([None, None], [[], []]), [Pool([None, None]) for _ in range(2)]
    taken.take(Place(0), x)
    for pool in pools:
        pool.take(Place(0), x)
    assert pools[0].rows(measured=taken.rows()) == pools[1].rows()


@pytest.fixture(scope="module")
def result() -> AuditFindings:
    ids = torch.randint(4, 60, (2, 20), generator=torch.Generator().manual_seed(0))
    return audit(small_model("llama"), inputs=ids, ablation=False, heads=False)


def test_an_audit_tells_them(result: AuditFindings) -> None:
    record = result.record()["pooled"]
    assert [(one["part"], one["rows"]) for one in record] == [("before_final_norm", 40), ("boundary", 40)]
    assert {"rows", "width", "rankme", "alpha", "energy_rank", "most"} <= set(record[0])
    assert list(result.tables()["pooled"]["rankme"]) == [one["rankme"] for one in record]
    section = audit_document(result, "command").sections[0]
    assert list(section.text) == [one.told() for one in result.pooled]
    assert any(block.name == "pooled" for block in section.blocks)


def test_the_most_that_a_rank_can_be_has_no_interval(result: AuditFindings) -> None:
    row = result.boundaries[-1]
    assert row.interval is not None
    for view, values in row.values.items():
        assert set(row.interval[view]) == set(values) - {"most"}


def test_controls_measure_what_is_compared(result: AuditFindings) -> None:
    assert set(result.tables()["controls"]["view"]) == set(COMPARED)
    for one in result.record()["controls"]:
        for row in one["depth"]:
            assert set(COMPARED) == {"raw", "unit", "centred", "centred_unit"} & set(row)
            assert row["without_sinks"] is None
