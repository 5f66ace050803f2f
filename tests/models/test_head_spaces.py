"""Overlaps of heads' spaces against SciPy's principal angles; spectra as files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.linalg import subspace_angles
from tests.models.small import small_model
from tests.sampling import normal

from rankfall.errors import RequestError
from rankfall.models.heads import subspaces
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.heads.ranks import probe_heads
from rankfall.models.heads.spectra import HeadSpectrum, write_spectra
from rankfall.models.heads.subspaces import HeadSpaces, SpaceOverlap


def maps(layer: int, heads: int = 3, groups: int = 3, rank: int = 4, seed: int = 0) -> HeadMaps:
    generator = torch.Generator().manual_seed(seed + 100 * layer)
    query = torch.randn(heads, 20, rank, generator=generator, dtype=torch.float64)
    key = torch.randn(groups, 20, rank, generator=generator, dtype=torch.float64)
    return HeadMaps(layer, f"blocks.{layer}", "made here", query, key, key, None)


def found(*layers: HeadMaps) -> dict[tuple[str, int, int], SpaceOverlap]:
    spaces = HeadSpaces()
    for one in layers:
        spaces.take(one)
    return {(one.sides, one.layer, one.other_layer): one for one in spaces.overlaps()}


def test_overlaps_are_those_of_principal_angles() -> None:
    first, second = maps(0), maps(1, heads=4, groups=2)
    overlaps = found(first, second)
    assert len(overlaps) == 9
    sides = {"query": ("query", "query"), "key": ("key", "key"), "query and key": ("query", "key")}
    for (side, layer, other), one in overlaps.items():
        ours, theirs = (
            getattr((first, second)[at], part) for at, part in zip((layer, other), sides[side], strict=True)
        )
        same = layer == other and side != "query and key"
        angles = {
            (a, b): subspace_angles(ours[a].numpy(), theirs[b].numpy())
            for a in range(len(ours))
            for b in range(len(theirs))
            if not (same and a == b)
        }
        means = {pair: float(np.mean(np.cos(values) ** 2)) for pair, values in angles.items()}
        assert one.mean == pytest.approx(np.mean(list(means.values())), rel=1e-5)
        best = max(means, key=lambda pair: means[pair])
        assert {(one.head, one.other_head)} <= {best, best[::-1]}
        assert one.largest == pytest.approx(means[best], rel=1e-5)
        assert one.smallest_angle == pytest.approx(math.degrees(angles[best].min()), abs=1e-3)
        assert one.chance == pytest.approx(4 / 20)


def test_equal_and_orthogonal_spaces() -> None:
    eye = torch.eye(20, dtype=torch.float64)
    turn = normal(0, 4, 4)
    query = torch.stack([eye[:, :4], eye[:, :4] @ turn, eye[:, 4:8]])
    one = found(HeadMaps(0, "a", "made here", query, query, query, None))["query", 0, 0]
    assert (one.head, one.other_head) == (0, 1)
    assert one.largest == pytest.approx(1.0)
    assert one.smallest_angle == pytest.approx(0.0, abs=0.05)
    assert one.mean == pytest.approx(1 / 3)


def test_a_head_of_less_rank_than_columns_has_a_smaller_space() -> None:
    low = maps(0)
    query = low.query.clone()
    query[0] = query[0, :, :1] * torch.arange(1.0, 5.0, dtype=torch.float64)
    query[1, :, 0] = query[0, :, 0]
    one = found(HeadMaps(0, "a", "made here", query, query, query, None))["query", 0, 0]
    assert (one.head, one.other_head, pytest.approx(1.0, abs=1e-5)) == (0, 1, one.largest)


def test_random_spaces_overlap_by_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(40, 60, 6, generator=generator, dtype=torch.float64)
    one = found(HeadMaps(0, "a", "made here", query, query, query, None))["query", 0, 0]
    assert one.chance == pytest.approx(0.1)
    assert one.mean == pytest.approx(one.chance, rel=0.03)


def test_one_head_has_no_other_and_many_layers_see_the_next_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(found(maps(0, heads=1, groups=1))) == {("query and key", 0, 0)}
    monkeypatch.setattr(subspaces, "MOST_NUMBERS", 100)
    pairs = {key[1:] for key in found(*(maps(layer) for layer in range(4)))}
    assert pairs == {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)}


def test_spectra_are_those_of_the_probed_forms() -> None:
    model = small_model("llama", num_key_value_heads=2)
    spaces = HeadSpaces()
    records = probe_heads(model, on_maps=lambda maps, _: spaces.take(maps)).records
    assert [(one.layer, one.head, one.module) for one in spaces.spectra] == [
        (one.layer, one.head, one.module) for one in records
    ]
    layer = model.layers[0].self_attn
    form = layer.q_proj.weight[:8].T @ layer.k_proj.weight[:8]
    expected = torch.linalg.svdvals(form.detach().double())[:8].tolist()
    assert spaces.spectra[0].singular_values == pytest.approx(expected, rel=1e-4)
    assert records[0].qk_norm == pytest.approx(math.hypot(*spaces.spectra[0].singular_values))


SPECTRA = [HeadSpectrum(1, 0, "a", (3.0, 2.0, 1.0)), HeadSpectrum(2, 0, "b", (5.0, 0.1))]


def test_spectra_as_files(tmp_path: Path) -> None:
    arrays = np.load(write_spectra(SPECTRA, tmp_path / "new" / "s.npz"), allow_pickle=False)
    assert arrays["module"].tolist() == ["a", "b"]
    assert arrays["layer"].tolist() == [1, 2]
    assert arrays["singular_values"][0].tolist() == [3.0, 2.0, 1.0]
    assert np.isnan(arrays["singular_values"][1]).tolist() == [False, False, True]
    lines = pd.read_csv(write_spectra(SPECTRA, tmp_path / "s.csv"))
    assert lines["singular_value"].tolist() == [3.0, 2.0, 1.0, 5.0, 0.1]
    assert lines["index"].tolist() == [1, 2, 3, 1, 2]
    records = json.loads(write_spectra(SPECTRA, tmp_path / "s.json").read_text())
    assert records[1] == {"layer": 2, "head": 0, "module": "b", "singular_values": [5.0, 0.1]}
    with pytest.raises(RequestError, match=r"the file of spectra to end in one of .npz, .csv, .json"):
        write_spectra(SPECTRA, tmp_path / "s.txt")
