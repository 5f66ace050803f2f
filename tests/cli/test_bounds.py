"""`rankfall bounds`: numbers, hypotheses, pictures, and one line for every wrong request."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.calls import answer, call


def test_floor_and_count(capsys) -> None:
    printed = answer(capsys, "bounds", "--dim", "64", "--rank", "8", "--heads", "8", "--error", "0.05")
    assert printed["mse_lower_bound"] == pytest.approx(0.1780, abs=5e-5)
    assert f"{printed['heads_needed']:.3e}" == "2.355e+12"
    assert printed["vacuous"] is False
    assert any("rank at most 8" in line for line in printed["hypotheses"])
    assert "A-thm2" in printed["statement"]


def test_options_change_the_bound(capsys) -> None:
    base = ("--dim", "64", "--rank", "16", "--heads", "2")
    plain = answer(capsys, "bounds", *base)["mse_lower_bound"]
    skip = answer(capsys, "bounds", *base, "--skip")["mse_lower_bound"]
    wide = answer(capsys, "bounds", *base, "--generalised")["mse_lower_bound"]
    scalar = answer(capsys, "bounds", *base, "--generalised", "--values", "scalar")["mse_lower_bound"]
    many = answer(capsys, "bounds", *base, "--points", "16")["mse_lower_bound"]
    assert skip < plain
    assert wide < plain
    assert scalar == plain
    assert many > plain


def test_a_bound_is_never_called_an_error(capsys) -> None:
    """At H = 0 the bound is .18 with a skip connection, where a layer without heads errs by almost 1."""
    _, out, _ = call(capsys, "bounds", "--dim", "64", "--rank", "8", "--heads", "8", "--skip")
    text = " ".join(out.split())
    assert "the bound at H = 0: 0.179" in text
    assert "a layer without heads has a larger error" in text
    for words in ("one bare attention layer", "output is read linearly", "query is not among the keys"):
        assert words in text
    assert "bottleneck" not in text
    assert "useful head" not in text


def test_vacuous_is_said(capsys) -> None:
    assert answer(capsys, "bounds", "--dim", "8", "--rank", "8", "--heads", "1")["vacuous"] is True
    status, out, _ = call(capsys, "bounds", "--dim", "8", "--rank", "7", "--heads", "9")
    assert status == 0
    assert "vacuous here" in out


def test_counts_too_long_to_print(capsys) -> None:
    arguments = ("--dim", "4096", "--rank", "1", "--error", "0.001")
    printed = answer(capsys, "bounds", *arguments)
    assert printed["heads_needed"] is None
    assert printed["log10_heads_needed"] > 4000
    status, out, _ = call(capsys, "bounds", *arguments)
    assert status == 0
    assert f"e{int(printed['log10_heads_needed'])}" in out


def test_biased_target_and_norm(capsys) -> None:
    arguments = ("--dim", "8", "--rank", "4", "--target", "biased", "--heads", "50", "--value-norm", "3")
    printed = answer(capsys, "bounds", *arguments)
    assert printed["full_rank_heads"] == 129
    assert printed["mse_lower_bound"] > 0.4
    assert "constants not given" in printed["norm_statement"]["reading"]
    status, out, _ = call(capsys, "bounds", *arguments, "--error", "0.1")
    assert status == 0
    told = printed["norm_statement"]["deciding_constant"]
    assert f"above 1/40 if the statement's c, which is not given, exceeds {told:.6g}" in " ".join(out.split())


def test_every_rank_drawn(capsys, tmp_path: Path) -> None:
    picture = tmp_path / "floors.svg"
    printed = answer(capsys, "bounds", "--dim", "12", "--plot", str(picture))
    assert [row["rank"] for row in printed["ranks"]] == list(range(1, 12))
    assert any("rank at most the rank of the row" in line for line in printed["hypotheses"])
    assert not any("rank at most 1," in line for line in printed["hypotheses"])
    assert picture.stat().st_size > 10_000
    status, out, _ = call(
        capsys, "bounds", "--dim", "12", "--rank", "3", "--heads", "4", "--plot", str(tmp_path / "one.png")
    )
    assert status == 0
    assert "error at least" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dim 64 --rank 65 --heads 1", "required the rank r to be at most 64; got 65"),
        ("--dim 64 --rank 8 --error 0.7", "required an error in (0, 0.5]"),
        ("--dim 64 --rank 8 --error 0", "required an error in (0, 0.5]"),
        ("--dim 64 --rank 8 --error -1", "required an error in (0, 0.5]"),
        ("--dim 64 --rank 8 --error nan", "required an error in (0, 0.5]"),
        ("--dim 1 --rank 1 --heads 1", "required the width d to be a whole number of at least 2; got 1"),
        ("--dim 8 --rank 2 --heads 0", "required the number of heads H to be a whole number of at least 1; got 0"),
        ("--dim 8 --rank 2 --heads -3", "required the number of heads H to be a whole number of at least 1; got -3"),
        ("--dim 64 --rank 8 --error 1e-9", "smaller ones need harmonics of degree above"),
        ("--dim 8 --rank 2", "required --heads, --error or --plot beside --rank"),
        ("--dim 8", "required --rank with --heads or --error"),
        ("--dim 8 --rank 2 --heads 3 --target far", "required target to be nearest or biased; got far"),
        ("--dim 8 --rank 2 --heads 3 --value-norm 2", "required target biased beside value_norm"),
        ("--dim 8 --rank 2 --heads 3 --values three", "required values among matrix, scalar; got three"),
        ("--dim 8 --rank 2 --heads 3 --points 9", "required the number of points N to be at most 8; got 9"),
        ("--dim 8 --rank 2 --heads 3 --plot here.txt", "--plot to end in one of"),
    ],
)
def test_wrong_request_is_one_line(arguments: str, message: str, capsys) -> None:
    status, out, err = call(capsys, "bounds", *arguments.split())
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_behind_latents_the_bound_is_that_of_the_structural_rank(capsys) -> None:
    base = ("--dim", "64", "--rank", "16", "--heads", "4")
    behind = answer(capsys, "bounds", *base, "--kv-latent", "6", "--rope-dims", "2", "--q-latent", "32")
    assert (
        behind["mse_lower_bound"]
        == answer(capsys, "bounds", "--dim", "64", "--rank", "8", "--heads", "4")["mse_lower_bound"]
    )
    assert (behind["rank"], behind["head_size"]) == (8, 16)
    assert answer(capsys, "bounds", *base, "--kv-latent", "60", "--q-latent", "5")["rank"] == 5
    assert (
        answer(capsys, "bounds", *base, "--kv-latent", "60")["mse_lower_bound"]
        == answer(capsys, "bounds", *base)["mse_lower_bound"]
    )
    status, out, err = call(capsys, "bounds", *base, "--rope-dims", "2")
    assert (status, out) == (2, "")
    assert "kv_latent beside rope_dims" in err
    _, out, _ = call(capsys, "bounds", *base, "--kv-latent", "6", "--rope-dims", "2")
    assert "a head of size 16 can have rank 8" in out
