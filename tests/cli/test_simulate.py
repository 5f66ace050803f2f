"""`rankfall simulate`: what it promises to print, and one line for every wrong request."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.calls import answer, call


def test_window_falls_straight_with_the_second_eigenvalue(capsys) -> None:
    printed = answer(
        capsys, "simulate", "--mask", "window:16", "--layers", "700", "--tokens", "64", "--dim", "32", "--thin", "10"
    )
    layers = printed["layers"]
    assert layers[-1]["log10_mu"] < -40
    slope = (layers[-1]["log10_mu"] - layers[-21]["log10_mu"]) / 200
    assert slope == pytest.approx(math.log10(printed["tail_rate"]), rel=1e-6)
    assert printed["measured_rate"] == pytest.approx(printed["tail_rate"], rel=1e-6)
    assert printed["measured_rate"] < printed["bound_rate"] <= 1
    assert printed["bound_applies"] is True
    assert printed["mask"]["radius"] == 2
    assert printed["mask"]["strongly_connected"] is True
    assert printed["ordinary_route_floor"]["reached"] is True
    assert -16.5 < printed["ordinary_route_floor"]["log10_mu"] < -12
    assert {"rank", "effective_rank", "energy_rank", "stable_rank", "mean_abs_cosine", "relative_mu"} <= set(
        layers[0]
    )


def test_causal_halves_in_every_layer(capsys) -> None:
    printed = answer(
        capsys, "simulate", "--mask", "causal", "--tokens", "16", "--dim", "4", "--layers", "1100", "--thin", "50"
    )
    assert printed["layers"][-1]["log10_mu"] < -320
    assert printed["measured_rate"] == pytest.approx(0.5, rel=1e-9)
    assert printed["mask"]["roots"] == [0]
    assert printed["certificate"]["spectral"] < 0.75


def test_a_sink_slows_causal_masks_and_says_what_it_measures(capsys) -> None:
    sizes = ("--tokens", "12", "--dim", "6", "--layers", "240")
    printed = answer(capsys, "simulate", "--mask", "causal", "--mask", "ring:2", "--sink", "2", *sizes)
    assert printed["settings"]["sink"] == 2
    assert printed["tail_rate"] == pytest.approx((1 + math.exp(2)) / (2 + math.exp(2)), rel=1e-12)
    assert printed["measured_rate"] == pytest.approx(printed["tail_rate"], rel=1e-3)
    assert printed["shrink_rate"] == pytest.approx(1 / (1 + math.exp(2)), rel=1e-12)
    assert printed["bound_applies"] is False
    assert printed["layers"][-1]["log10_unit_relative_mu"] < -9
    assert printed["exact"] is True
    (ring,) = printed["others"]
    assert ring["measured_rate"] == pytest.approx(ring["tail_rate"], rel=1e-6)
    fewer = (*sizes[:-1], "40")
    status, out, _ = call(capsys, "simulate", "--mask", "causal", "--sink", "2", *fewer)
    assert status == 0
    assert "unit relative mu falls" in out
    assert "shrinks" in out
    status, out, _ = call(capsys, "simulate", "--mask", "causal", "--sink", "2", "--norm", "unit", *fewer)
    assert "the sink changes nothing" in " ".join(out.split())
    several = answer(capsys, "simulate", "--mask", "causal", "--sink", "1", "--heads", "2", *fewer)
    assert several["exact"] is False
    assert several["tail_rate"] is None
    status, out, _ = call(capsys, "simulate", "--mask", "causal", "--sink", "1", "--heads", "2", *fewer)
    assert status == 0
    assert "with several heads under a sink numbers are those of float64" in " ".join(out.split())


def test_first_token_by_depth(capsys) -> None:
    sizes = ("--tokens", "8", "--dim", "4", "--layers", "20")
    printed = answer(capsys, "simulate", "--mask", "causal", *sizes)
    rows = printed["first_token"]
    assert [row["layer"] for row in rows] == [1, 2, 4, 8, 16, 20]
    assert rows[0]["carried"] == pytest.approx(sum(1 / i for i in range(1, 9)) / 8)
    assert rows[0]["direct"] == pytest.approx(sum(1 / i for i in range(2, 9)) / 7)
    assert rows[-1]["carried"] > 0.99
    assert all(row["rotary_direct"] < row["direct"] for row in rows)
    kept = answer(capsys, "simulate", "--mask", "causal", "--residual", "1", *sizes)["first_token"]
    assert kept[0]["carried"] < rows[0]["carried"]
    status, out, _ = call(capsys, "simulate", "--mask", "causal", *sizes)
    assert status == 0
    assert "Share of the first token" in out


def test_counterexample_keeps_rank_two(capsys) -> None:
    printed = answer(capsys, "simulate", "--norm", "unit", "--value", "counterexample", "--layers", "300")
    assert printed["layers"][-1]["rank"] == 2
    assert printed["measured"][0]["law"] == "none"
    assert printed["bound_applies"] is False
    assert printed["theorem"] == "B-thm2"
    assert "value matrices are orthogonal" in printed["bound_reason"]


def test_several_masks_seeds_files(capsys, tmp_path: Path) -> None:
    plot, csv = tmp_path / "out" / "curves.png", tmp_path / "out" / "curves.csv"
    printed = answer(
        capsys, "simulate", "--mask", "complete", "--mask", "window:1+causal", "--mask", "in-star", "--tokens", "6",
        "--dim", "3", "--layers", "20", "--seeds", "3", "--keep-tokens", "--plot", str(plot), "--csv", str(csv),
    )  # fmt: skip
    assert printed["mask"]["name"] == "complete"
    assert printed["measured"][0]["law"] == "cubic"
    assert len(printed["measured"]) == 3
    schedule, rootless = printed["others"]
    assert schedule["mask"]["name"] == "window:1+causal"
    assert rootless["bound_applies"] is False
    assert "no token that reaches all others" in rootless["bound_reason"]
    least, middle, most = (printed["layers"][2][key] for key in ("log10_mu_least", "log10_mu", "log10_mu_most"))
    assert least <= middle <= most
    assert len(printed["tokens"]) == 21
    assert plot.stat().st_size > 5000
    assert csv.read_text().splitlines()[0].startswith("mask,layer,log10_mu")


def test_people_are_told_why_theory_gives_no_rate(capsys) -> None:
    sizes = (
        "--mask",
        "causal",
        "--tokens",
        "8",
        "--dim",
        "8",
        "--layers",
        "60",
        "--seed",
        "4",
        "--value",
        "gaussian",
    )
    _, out, _ = call(capsys, "simulate", *sizes, "--residual", "0.5")
    assert "causal: no rate by theory; scores have not flattened" in " ".join(out.split())
    _, out, _ = call(capsys, "simulate", *sizes)
    assert "no rate by theory" not in out


def test_what_holds_for_several_masks_is_said_once(capsys) -> None:
    _, out, _ = call(
        capsys, "simulate", "--norm", "layer", "--tokens", "5", "--width", "3", "--layers", "4", "--seeds", "3"
    )
    told = " ".join(out.split())
    assert told.count("the theorem does not apply") == 1
    assert "causal, window:4, causal-window:4, global-window:1:4, complete: the theorem does not apply" in told
    assert "law, rate, theory, bound and float64 are those of seed 0; all else: medians of 3 seeds" in told


def test_a_bound_just_below_one_is_told_from_one(capsys) -> None:
    arguments = ("simulate", "--mask", "window:2", "--tokens", "40", "--width", "8", "--layers", "2")
    record = answer(capsys, *arguments)
    assert record["bound_rate"] > 1 - 1e-6
    _, out, _ = call(capsys, *arguments)
    assert f" 1 - {-math.expm1(record['bound_log_rate']):.0e} " in out


def test_one_coordinate_cannot_be_centred(capsys) -> None:
    status, _, err = call(capsys, "simulate", "--norm", "layer", "--width", "1", "--tokens", "4", "--layers", "2")
    assert status == 2
    assert "a width of at least 2 under the layer norm" in err


def test_people_see_tables(capsys) -> None:
    status, out, _ = call(capsys, "simulate", "--mask", "in-star", "--tokens", "5", "--dim", "2", "--layers", "5")
    assert status == 0
    assert "does not apply" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--mask", "windy"), "a mask among complete, causal"),
        (("--norm", "batch"), "a norm among none, unit"),
        (("--value", "unitary"), "value weights among identity"),
        (("--value", "counterexample", "--dim", "3"), "for the counterexample"),
        (("--temperature", "0"), "required the temperature to be a finite number above 0"),
        (("--temperature", "5e-324", "--query-key", "zero"), "temperature to be a finite number of at least 1e-100"),
        (("--layers", "-1"), "required layers to be a whole number of at least 0"),
        (("--placement", "middle"), "a placement among post, pre"),
        (("--tokens", "0"), "the number of tokens"),
        (("--device", "tpu"), "required the device cpu, or cuda where there is a GPU"),
        (("--mask", "causal", "--value", "gaussian", "--residual", "1e9", "--layers", "60"), "stay representable"),
    ],
)
def test_wrong_requests_take_one_line(capsys, arguments, match) -> None:
    status, out, err = call(capsys, "simulate", *arguments)
    assert status == 2
    assert out == ""
    assert match in err
    assert len(err.strip().splitlines()) == 1
