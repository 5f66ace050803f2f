"""Every picture shows the numbers that it was given: each curve is a column, each name a thing that was asked for."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.style import context

from rankfall.catalogue import EVIDENCE
from rankfall.drawing.audit import draw_ablation, draw_comparison, draw_head_ranks
from rankfall.drawing.canvas import FORMATS, STYLE, canvas, heading, save, settle
from rankfall.drawing.collapse import curve_of, draw_collapse
from rankfall.drawing.equilibrium import draw_by_rank, draw_equilibrium
from rankfall.drawing.floors import draw_floors
from rankfall.drawing.plan import draw_plan
from rankfall.drawing.rank_curves import rank_curves
from rankfall.drawing.survey import KINDS, draw_survey
from rankfall.dynamics.experiment import Experiment, run
from rankfall.dynamics.weights import WeightRecipe
from rankfall.masks import parse_schedule
from rankfall.models.architectures.survey import HeadShape
from rankfall.planning.candidates import Sharing, candidates, reference_shape
from rankfall.planning.table import evidence_column, floor_column, plan
from rankfall.theory.head_bounds import HeadClass, floor_value
from tests.drawing.read import curves, panels_of, same


def test_collapse_draws_every_mask_and_its_tail() -> None:
    masks = ("causal", "window:2")
    experiment = Experiment(
        tuple(map(parse_schedule, masks)), WeightRecipe(6, "random", "orthogonal"), tokens=8, layers=30
    )
    reports = run(experiment)
    panels = panels_of(draw_collapse([curve_of(one) for one in reports], "title"))
    assert [panel["y"]["label"] for panel in panels] == [
        "log10 of mu",
        "log10 of mu",
        "effective rank",
        "energy rank",
    ]
    for report, mask in zip(reports, masks, strict=True):
        layers = [row["layer"] for row in report.records]
        for panel, column in zip(panels, ("log10_mu", "log10_mu", "effective_rank", "energy_rank"), strict=True):
            assert same(curves(panel)[mask], layers, [row[column] for row in report.records])
    # The tail of the causal mask: 1/2 a layer, through the curve's end.
    tails = [one for one in panels[0]["series"] if one.get("dash") == "dot"]
    assert len(tails) == 2
    (start, end), (high, low) = tails[0]["x"], tails[0]["y"]
    assert (high - low) / (end - start) == pytest.approx(math.log10(2), rel=1e-6)
    assert low == pytest.approx(reports[0].records[-1]["log10_mu"], rel=1e-6)


def test_heads_are_where_their_numbers_say() -> None:
    ranks = {(0, 0): 3.0, (1, 0): 5.0, (0, 2): 7.0}
    rows = [
        {"head": head, "layer": layer, "head_dim": 8, "qk_effective_rank": rank, "qk_energy_rank": rank / 2}
        for (head, layer), rank in ranks.items()
    ]
    panels = panels_of(draw_head_ranks(pd.DataFrame(rows), "title"))
    for panel, values in zip(
        panels, ([3.0, None, 7.0, 5.0, None, None], [1.5, None, 3.5, 2.5, None, None]), strict=True
    ):
        (heat,) = panel["series"]
        assert heat["size"] == [2, 3]
        assert heat["values"] == values
        assert (panel["x"]["label"], panel["y"]["label"], panel["scale"]["high"]) == ("layer", "head", 8.0)


def test_ablation_draws_medians_by_logarithms_of_the_unchanged_blocks() -> None:
    rows = [
        {"variant": variant, "scaling": scaling, "layer": layer, "text": text, "mask": mask, "temperature": 1.0}
        | {"unit_relative_mu": value}
        for variant, scaling in (("attention", "raw"), ("attention", "matched"), ("full model", "raw"))
        for layer, (first, second) in enumerate(((1.0, 1.0), (0.1, 0.001)))
        for text, mask, value in ((0, None, first), (1, None, second), (0, "causal", 0.5))
    ]
    rows.append(rows[0] | {"layer": 1, "unit_relative_mu": 0.9, "temperature": 64.0})
    rows.append(rows[0] | {"layer": 2, "unit_relative_mu": 0.0})
    matched, raw = panels_of(draw_ablation(pd.DataFrame(rows), "title"))
    assert (matched["title"], raw["title"]) == ("scale-matched", "raw")
    assert same(curves(matched)["attention"], [0, 1], [1.0, 0.01])
    assert same(curves(matched)["full model"], [0, 1], [1.0, 0.01])
    assert same(curves(raw)["attention"], [0, 1, 2], [1.0, 0.01, 1e-17])


def test_comparison_draws_each_measure_of_each_model() -> None:
    generator = np.random.default_rng(0)
    names = ("effective_rank", "energy_rank", "first_direction_share", "relative_mu")
    names += ("mean_abs_cosine", "min_singular_value")
    table = pd.DataFrame(
        [
            {"model": model, "depth": depth, **dict(zip(names, generator.random(6), strict=True))}
            for model in ("one", "two")
            for depth in (0.0, 0.5, 1.0)
        ]
    )
    panels = panels_of(draw_comparison(table))
    for panel, name in zip(panels, names, strict=True):
        for model in ("one", "two"):
            mine = table[table["model"] == model]
            assert same(curves(panel)[model], mine["depth"], mine[name])


def test_floors_are_those_of_the_theory() -> None:
    (panel,) = panels_of(draw_floors(16, ranks=(1, 4)))
    drawn = [one for one in panel["series"] if "aside" not in one]
    for one, rank in zip(drawn, (1, 4), strict=True):
        floors = [floor_value(HeadClass(16, rank), round(heads)) for heads in one["x"]]
        assert one["y"] == pytest.approx(floors, rel=1e-6, abs=1e-12)
    assert panel["x"]["log"]
    assert panel["scale"]["label"] == "rank r"


def test_plan_draws_its_rows() -> None:
    shape = reference_shape(64, 2, 128, 4, 256, Sharing())
    columns = [floor_column(shape), evidence_column(EVIDENCE["trained_error"], 16)]
    rows = [{"step_seconds": None} | row for row in plan(candidates(shape, Sharing()), columns)]
    rows[1]["recommended"] = True
    trained, bound = panels_of(draw_plan(rows, "title", 16))
    by_rank = sorted((row for row in rows if "parameters" in row["equal"]), key=lambda row: row["rank"])
    ranks = [row["rank"] for row in by_rank]
    for panel, column in ((trained, "trained_error"), (bound, "mse_lower_bound_with_skip")):
        (curve, *_) = curves(panel).values()
        assert same(curve, ranks, [row[column] for row in by_rank])
        assert same(curves(panel)["recommended"], [rows[1]["rank"]], [rows[1][column]])
    assert any(text["text"] == f"usual: H={rows[0]['heads']}, r={rows[0]['rank']}" for text in trained["texts"])


def test_survey_draws_every_model_once() -> None:
    models = [
        HeadShape("plain", 64, 4, 4, 16, 2),
        HeadShape("wide", 128, 8, 8, 32, 2),
        HeadShape("grouped", 256, 8, 2, 32, 2),
        HeadShape("latent", 512, 8, 8, 32, 2, kv_latent=64),
    ]
    ratio, share = panels_of(draw_survey(models, "title"))
    drawn = curves(ratio)
    assert same(drawn[f"{KINDS[0]} (2)"], [64, 128], [1.0, 2.0])
    assert same(drawn[f"{KINDS[1]} (1)"], [256], [1.0])
    assert same(drawn[f"{KINDS[2]} (1)"], [512], [0.5])
    assert {"wide", "latent"} <= {text["text"] for text in ratio["texts"]}
    points = [one for one in share["series"] if one.get("line") is False]
    assert [value for one in points for value in one["y"]] == pytest.approx([0.25, 0.25, 0.125, 0.0625])


def test_equilibria_are_drawn_with_their_multipliers() -> None:
    tokens = torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    multipliers = [np.array([0.5 + 0.5j, 2.0, 1.0])]
    cosines, values, plane = panels_of(draw_equilibrium(tokens, multipliers, "title"))
    half = 2**-0.5
    assert cosines["series"][0]["values"] == pytest.approx([1, 0, half, 0, 1, half, half, half, 1])
    found = torch.linalg.svdvals(tokens)
    assert values["series"][0]["y"] == pytest.approx((found / found[0]).tolist(), rel=1e-6)
    drawn = curves(plane)
    assert (drawn["return"], drawn["neutral"], drawn["grow"]) == (
        ([0.5], [0.5]), ([1.0], [0.0]), ([2.0], [0.0]),
    )  # fmt: skip


def test_each_family_is_drawn_by_rank() -> None:
    rows = [{"requested_rank": k, "spectral_radius": 0.1 * k, "smallest_singular_value": 1 / k} for k in (1, 2, 3)]
    radius, smallest = panels_of(draw_by_rank({"star": rows, "chain": rows[:2]}))
    assert same(curves(radius)["star"], [1, 2, 3], [0.1, 0.2, 0.3])
    assert same(curves(smallest)["chain"], [1, 2], [1, 0.5])
    assert [one["y"] for one in radius["series"] if one.get("aside") == "x"] == [[1.0, 1.0]]


def test_rank_curves_belong_to_the_line_that_the_legend_names() -> None:
    records = [
        {"layers": layers, "m": m, "rank": rank, "ours": m / rank, "trained_fresh": 2 * m / rank, "published": None}
        for layers in (1, 3)
        for m in (1, 2)
        for rank in (8, 2)
    ]
    records[0]["published"] = 0.7
    figure = rank_curves(records, lambda r: f"{r['layers']} layers", lambda r: f"m = {r['m']}", lambda r: 16)
    first, second = panels_of(figure)
    assert (first["title"], second["title"]) == ("1 layers", "3 layers")
    ours, fresh, published = ("ours, repeated sample (training loss)", "ours, fresh data throughout", "published")
    drawn = curves(first)
    assert same(drawn[f"m = 2, {ours}"], [1 / 8, 1 / 2], [1.0, 0.25])
    assert same(drawn[f"m = 1, {fresh}"], [1 / 8, 1 / 2], [1.0, 0.25])
    assert same(drawn[f"m = 1, {published} (repeated sample)"], [1 / 2], [0.7])
    assert {one["name"] for one in first["series"] if one["legend"]} == {"m = 1", "m = 2"}
    assert [one["y"] for one in first["series"] if one.get("aside") == "x"] == [[1.0, 1.0]], "outputting zero"
    records[0]["ours"] = None
    wrapped = rank_curves(records, lambda r: f"{r['layers']} layers", lambda r: f"m = {r['m']}", lambda r: 16, 1)
    assert curves(panels_of(wrapped)[0])[f"m = 1, {ours}"] == ([1 / 8, 1 / 2], [0.5, None])
    upper, lower = wrapped.axes
    assert upper.get_position().y0 > lower.get_position().y0


def test_a_settled_figure_is_written_as_before(tmp_path: Path) -> None:
    """Byte for byte what the library writes; a PDF tells the time."""
    figure, axes = canvas(1, 2)
    axes[0, 0].plot([1, 2, 4], label="a")
    axes[0, 0].set(ylabel="rank", yscale="log")
    axes[0, 0].legend()
    axes[0, 1].imshow(np.eye(5))
    heading(figure, "two panels")
    figure.canvas.draw()
    settle(figure)
    for ending in FORMATS:
        ours, theirs = tmp_path / f"ours{ending}", tmp_path / f"theirs{ending}"
        save(figure, ours)
        with context(STYLE):
            figure.savefig(theirs, metadata={"Date": None} if ending == ".svg" else None)
        untimed = [re.sub(rb"/CreationDate \(.*?\)", b"", one.read_bytes()) for one in (ours, theirs)]
        assert untimed[0] == untimed[1]
    assert figure.dpi == 100
