"""`rankfall plan`: the JSON contract, the table, the picture, and what it refuses."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from tests.calls import answer, call

from rankfall.store.store import Store
from rankfall.theory.head_bounds import HeadClass, mse_floor
from rankfall.training.cell import Cell

CONTRACT = {"heads", "rank", "parameters", "flops", "kv_cache_bytes", "mse_lower_bound", "step_seconds"}


def test_the_issue_example_without_time(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "plan", "--dim", "768", "--layers", "12", "--context", "1024", "--no-time")
    rows = found["candidates"]
    assert found["schema"] == 2
    assert all(set(row) >= CONTRACT for row in rows)
    assert (rows[0]["heads"], rows[0]["rank"], rows[0]["equal"]) == (12, 64, ["reference", "parameters", "flops"])
    assert {row["rank"] for row in rows} == {12, 24, 32, 48, 64, 96, 128, 192, 384, 768}
    assert {row["parameters"] for row in rows} == {12 * (4 * 768**2 + 3 * 768 * 2688)}, "gated, 3.5 d units"
    assert all(row["step_seconds"] is None for row in rows)
    assert "a bound, not an error" in found["implications"]
    assert "does not separate these rows" in found["bound"]
    for row in rows:
        assert row["mse_lower_bound"] == mse_floor(HeadClass(768, row["rank"]), row["heads"]).mse
        assert row["mse_lower_bound_with_skip"] <= row["mse_lower_bound"]


def test_times_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    found = answer(
        capsys,
        "plan",
        "--dim",
        "32",
        "--layers",
        "3",
        "--context",
        "16",
        "--seconds",
        "0.2",
        "--heads",
        "4",
        "--plot",
        str(picture),
    )
    assert all(row["step_seconds"] > 0 and row["steps_timed"] >= 1 for row in found["candidates"])
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_shared_key_value_heads_split_the_two_families(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "plan", "--dim", "768", "--kv-heads", "4", "--feed-forward", "plain", "--no-time")
    rows = found["candidates"]
    assert {row["kv_heads"] for row in rows} == {4}
    assert ["flops"] in [row["equal"] for row in rows]
    assert ["parameters"] in [row["equal"] for row in rows]
    assert found["left_out_ranks"] == [192, 384, 768]
    grouped = answer(capsys, "plan", "--dim", "768", "--group", "3", "--no-time")["candidates"]
    assert all(row["heads"] == 3 * row["kv_heads"] for row in grouped)


def test_trained_runs_add_their_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two seeds of rank 16 and one of rank 64 that diverged; runs of another task and of more heads do not count."""
    store = Store(tmp_path / "runs")
    trained = [
        (Cell(rank=16), "done", 0.70),
        (Cell(rank=16, seed=1), "done", 0.72),
        (Cell(rank=16, multiplier=8), "done", 0.10),
        (Cell(rank=16, task="nearest"), "done", 0.20),
        (Cell(rank=64), "diverged", 9.0),
    ]
    for cell, status, error in trained:
        summary = {"status": status, **asdict(cell), "mse_fresh": error}
        store.write(cell, summary=summary, environment={"date": "2026-01-02"})
    asked = ("--dim", "64", "--layers", "1", "--heads", "4", "--no-time", "--store", str(store.path))
    rows = {row["rank"]: row for row in answer(capsys, "plan", *asked)["candidates"]}
    assert rows[16]["mse_measured"] == pytest.approx(0.71)
    assert rows[16]["runs_measured"] == 2
    assert rows[64]["mse_measured"] is None
    status, out, _ = call(capsys, "plan", *asked)
    assert status == 0
    assert "0.7100" in out


def test_table_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "plan", "--dim", "64", "--no-time", "--heads", "4")
    text = " ".join(out.split())
    assert status == 0
    for words in (
        "Recommended: 4 heads of rank 16",
        "because",
        "would change it",
        "of matches in 16 directions",
        "rule: the usual choice, unless",
    ):
        assert words in text
    assert "bottleneck" not in text
    assert "The floor is a bound, not an error" in text


LLAMA = ("--dim", "4096", "--layers", "32", "--context", "8192", "--heads", "32", "--kv-heads", "8", "--no-time")
GEMMA = (
    *("--dim", "1152", "--layers", "26", "--context", "32768", "--heads", "4", "--head-size", "256"),
    *("--kv-heads", "1", "--hidden", "6912", "--window", "512", "--windowed-layers", "22", "--no-time"),
)
DEEPSEEK = (
    *("--dim", "7168", "--layers", "61", "--context", "4096", "--heads", "128", "--head-size", "192"),
    *("--value-rank", "128", "--kv-latent", "512", "--rope-dims", "64", "--q-latent", "1536"),
    *("--hidden", "18432", "--no-time"),
)


def test_real_models_are_counted_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Known sizes: Llama-3-8B without its 1.05e9 embeddings, Gemma-3-1B, DeepSeek-V3's active weights."""
    llama = answer(capsys, "plan", *LLAMA)["candidates"][0]
    assert llama["parameters"] - llama["attention_parameters"] == 32 * 3 * 4096 * 14336
    assert llama["parameters"] == pytest.approx(8.03e9 - 1.05e9, rel=2e-3)
    assert llama["kv_cache_bytes"] == 32 * 8192 * 8 * 256 * 2
    gemma = answer(capsys, "plan", *GEMMA)["candidates"][0]
    assert gemma["kv_cache_bytes"] == (4 * 32768 + 22 * 512) * 512 * 2
    assert gemma["parameters"] == 26 * (1152 * 5 * 512 + 3 * 1152 * 6912)
    deepseek = answer(capsys, "plan", *DEEPSEEK)["candidates"][0]
    assert deepseek["kv_cache_bytes"] == 61 * 4096 * 576 * 2
    assert deepseek["parameters"] == pytest.approx(37e9 - 2 * 129280 * 7168, rel=0.02)


@pytest.mark.parametrize("shape", [LLAMA, GEMMA, DEEPSEEK], ids=["llama", "gemma", "deepseek"])
def test_low_ranks_that_look_free_are_not_recommended(shape: tuple[str, ...], capsys) -> None:
    """The bound separates nothing at low rank and small caches; what was trained does."""
    found = answer(capsys, "plan", *shape)
    usual, advice = found["candidates"][0], found["recommendation"]
    assert (advice["heads"], advice["rank"]) == (usual["heads"], usual["rank"])
    assert advice["usual"]
    low = [row for row in found["candidates"] if row["rank"] <= usual["rank"] / 2]
    assert any(not row["bound_separates"] for row in low)
    assert all(row["trained_error_low"] > usual["trained_error_high"] for row in low)
    assert "more heads do not make up for it" in advice["reason"]
    assert advice["words"].endswith("the usual choice, for want of evidence")
    asked = answer(capsys, "plan", *shape, "--directions", str(usual["structural_rank"]))["recommendation"]
    assert (asked["rank"], asked["decided_by"]) == (usual["rank"], "matches")
    assert asked["caveats"], "far from 64 directions: must be said"


def test_more_directions_change_the_recommendation(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("--dim", "768", "--no-time")
    said = answer(capsys, "plan", *base)["recommendation"]
    assert any(line.startswith("matches of 96 directions or more: 8 heads of rank 96") for line in said["changes"])
    wider = answer(capsys, "plan", *base, "--directions", "96")["recommendation"]
    assert (wider["heads"], wider["rank"], wider["usual"]) == (8, 96, False)
    assert wider["error"] < 0.1 < wider["usual_error"]
    whole = answer(capsys, "plan", *base, "--directions", "768")["recommendation"]
    assert whole["rank"] == 768
    assert [row["recommended"] for row in answer(capsys, "plan", *base)["candidates"]].count(True) == 1


def test_a_larger_cache_is_a_wish_not_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (*LLAMA, "--directions", "256")
    assert answer(capsys, "plan", *asked)["recommendation"]["rank"] == 128
    assert answer(capsys, "plan", *asked, "--most-cache", "2")["recommendation"]["rank"] == 256


def test_room_that_would_change_it_is_more_than_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """9 heads of rank 72 have 1.125 times the cache; the printed room, rounded up, is enough."""
    asked = (*("--dim", "576", "--heads", "9", "--kv-heads", "3", "--hidden", "1536"), *("--directions", "72"))
    said = answer(capsys, "plan", *asked, "--no-time")["recommendation"]
    assert "at most 1.1 times the usual cache" in said["criterion"]
    (room,) = (line for line in said["changes"] if line.startswith("room"))
    assert room == "room for 1.13 times the usual cache: 9 heads of rank 72 in matches of 72 directions"
    roomy = answer(capsys, "plan", *asked, "--most-cache", "1.13", "--no-time")["recommendation"]
    assert (said["rank"], roomy["rank"]) == (64, 72)
    exact = answer(capsys, "plan", *asked, "--most-cache", "1.125", "--no-time")["recommendation"]
    assert exact["rank"] == 72


def printed(capsys: pytest.CaptureFixture[str], *asked: str) -> tuple[list[str], str]:
    """The lines of the table, and all words."""
    status, out, _ = call(capsys, "plan", *asked, "--no-time")
    assert status == 0
    return out.split("Recommended")[0].splitlines(), " ".join(out.split())


def test_the_loss_of_text_is_printed_for_ranks_and_heads_that_were_trained(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table, _ = printed(capsys, "--dim", "512")
    filled = {int(line.replace("->", "").split()[1]): "%" in line for line in table if " 0." in line}
    assert filled == {8: True, 16: True, 32: True, 64: True, 128: True, 256: False, 512: False}
    table, words = printed(capsys, "--dim", "1024", "--heads", "16", "--kv-heads", "4")
    assert "text loss" not in table[2], "no row has one"
    assert "of which none is known for such heads" in words
    within, beyond = (
        {row["rank"]: row["text_excess"] for row in answer(capsys, "plan", *asked, "--no-time")["candidates"]}
        for asked in (("--dim", width, "--rank", "16", "--rank", "64") for width in ("512", "520"))
    )
    assert {rank: beyond[rank] for rank in within} == within


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width", "0"], "--width to be a whole number of at least 2; got 0; give --width as 2 or more"),
        (["--dim", "64", "--heads", "0"], "heads to be a whole number of at least 1"),
        (["--dim", "64", "--heads", "5"], "reference heads that divide the width"),
        (["--dim", "64", "--heads", "4", "--kv-heads", "3"], "reference heads in multiples of 3"),
        (["--dim", "64", "--kv-heads", "2", "--group", "2"], "either key/value heads or a group size"),
        (["--dim", "64", "--rank", "65", "--no-time"], "rank to be at most 64; got 65"),
        (["--dim", "64", "--seconds", "0"], "required seconds to be a finite number above 0"),
        (["--dim", "64", "--layers", "0"], "layers to be a whole number of at least 1"),
        (["--dim", "7", "--group", "2"], "a width that has a divisor"),
        (["--dim", "4294967296"], "--width to be at most 262144; got 4294967296"),
        (["--dim", "64", "--layers", str(10**30)], "layers to be at most 10000"),
        (["--dim", "64", "--context", str(2**63)], "context to be at most"),
        (["--dim", "262144", "--heads", "4096"], "of memory to time one layer of this size"),
        (["--dim", "64", "--feed-forward", "moe"], "feed_forward among gated, plain, none"),
        (["--dim", "64", "--feed-forward", "none", "--hidden", "4"], "no hidden units without a feed-forward block"),
        (["--dim", "64", "--windowed-layers", "4"], "a window and the number of layers that have it"),
        (["--dim", "64", "--kv-latent", "16", "--group", "2"], "with a latent, a key for every head"),
        (["--dim", "64", "--rope-dims", "16"], "a key/value latent beside rope_dims"),
        (["--dim", "64", "--shared-layers", "12"], "shared layers to be at most 11"),
        (
            ["--dim", "64", "--shared-layers", "2", "--shared-windowed-layers", "1"],
            "shared layers with the window among the shared ones and among the windowed ones",
        ),
        (["--dim", "64", "--directions", "65"], "directions to be at most 64"),
        (["--dim", "64", "--most-cache", "0.5"], "most_cache to be a finite number of at least 1"),
        (["--dim", "64", "--task", "nope"], "required a task among farthest"),
    ],
)
def test_refusals(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "plan", *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_ranks_that_latents_forbid_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(
        capsys, "plan", "--dim", "64", "--heads", "4", "--kv-latent", "6", "--rope-dims", "2", "--no-time"
    )
    assert status == 0
    assert "16 (8)" in out
    assert "the rank that a head of this size can have behind these latents" in " ".join(out.split())
    assert "Attention: keys and values from a latent of 6 and 2 rotary dimensions beside it." in " ".join(out.split())
    assert "In brackets" not in call(capsys, "plan", "--dim", "64", "--heads", "4", "--no-time")[1]
