"""Text in grids and sweeps: what is filled in, equal budgets, stores that resume, comparisons, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from soak.lives import contents
from tests.calls import call

import rankfall
from rankfall.api.sweep import SweepResult
from rankfall.cli.sweep import _show
from rankfall.drawing.loss_by_rank import loss_by_rank
from rankfall.errors import RequestError
from rankfall.store.identity import settings
from rankfall.store.store import Store
from rankfall.training.grid import cells_of
from rankfall.training.kinds import Surroundings, TrainingCell, cell_from, stack_bytes, step_flops
from rankfall.training.text.budget import solved, training_flops
from rankfall.training.text.cell import TextCell
from rankfall.training.text.comparison import RUN, SETTING, SHAPE, by_shape, reached, to_level
from rankfall.training.text.corpus import open_corpus
from rankfall.training.text.decoder import text_layout
from rankfall.training.text.sentences import audit_sentences, verdicts
from rankfall.training.work import Watch, train

GRID: dict[str, Any] = {
    "task": "text", "width": 16, "layers": 1, "heads": 2, "rank": [2, 8], "context": 16, "batch": 4, "steps": 200,
}  # fmt: skip


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("\n\n".join(f"Verse {n}: sun and moon and {n % 9} stars over {n % 4} hills." for n in range(600)))
    return path


def cells(grid: dict[str, Any], book: Path, store: Path) -> list[TextCell]:
    found = cells_of(grid, "grid", Surroundings(text=str(book), store=lambda: Store(store).path))
    assert all(isinstance(cell, TextCell) for cell in found)
    return [cell for cell in found if isinstance(cell, TextCell)]


def written(folder: Path, grid: dict[str, Any]) -> Path:
    path = folder / "grid.toml"
    path.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in grid.items()))
    return path


def test_what_a_grid_leaves_out_is_filled_in(book: Path, tmp_path: Path) -> None:
    first, second = cells(GRID, book, tmp_path / "store")
    assert (first.rank, second.rank) == (2, 8)
    assert (first.heads, first.key_heads, first.value_rank, first.feed_forward) == (2, 2, 8, 64)
    assert (first.vocabulary, first.corpus) == (257, second.corpus)
    relu = cells({**GRID, "activation": "relu2", "tokenizer": "bpe:300"}, book, tmp_path / "store")[0]
    assert (relu.feed_forward, relu.vocabulary) == (64, 300)
    assert relu.corpus != first.corpus


def test_heads_follow_from_their_total_rank(book: Path, tmp_path: Path) -> None:
    grid = {key: value for key, value in GRID.items() if key != "heads"} | {"heads_times_rank": 16}
    found = cells(grid, book, tmp_path / "store")
    assert [(cell.heads, cell.rank, cell.value_rank) for cell in found] == [(8, 2, 2), (2, 8, 8)]


@pytest.mark.parametrize("solve", ["feed_forward", "layers"])
def test_equal_parameters(solve: str, book: Path, tmp_path: Path) -> None:
    grid = {**GRID, "parameters": 60_000, "solve": solve}
    if solve == "layers":
        del grid["layers"]
    for cell in cells(grid, book, tmp_path / "store"):
        unit = text_layout(cell).parameters / 60_000
        assert unit == pytest.approx(1.0, abs=0.02 if solve == "feed_forward" else 0.06)
        assert cell.budget == f"parameters=60000 by {solve}"


def test_equal_operations(book: Path, tmp_path: Path) -> None:
    found = cells({**GRID, "rank": [2, 16], "flops": 2e9}, book, tmp_path / "store")
    assert found[0].feed_forward > found[1].feed_forward
    for cell in found:
        assert training_flops(cell) == pytest.approx(2e9, rel=0.02)
        assert step_flops(cell) * cell.steps == training_flops(cell)


def test_equal_time_is_measured_once(book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankfall.training.text import timing

    asked: list[int] = []

    def measured(cell: TextCell, folder: Path, device: str) -> float:
        asked.append(cell.feed_forward)
        return 1e-5 * (cell.feed_forward + 20 * cell.rank)

    timing.step_seconds.cache_clear()
    monkeypatch.setattr(timing, "_measured", measured)
    grid = {**GRID, "step_seconds": 0.00402}
    first = cells(grid, book, tmp_path / "store")
    assert [cell.feed_forward for cell in first] == [368, 240]
    count = len(asked)
    assert count <= 8, "on a straight line the smallest, the usual and two guesses, for each cell"
    timing.step_seconds.cache_clear()
    assert cells(grid, book, tmp_path / "store") == first
    assert len(asked) == count


@pytest.mark.parametrize("bend", [0.0, 3e-5], ids=["line", "curve"])
def test_a_budget_is_met_by_the_nearest_value(bend: float) -> None:
    """Against every value there is, and with few looks."""
    asked: list[int] = []

    def cost(cell: TextCell) -> float:
        asked.append(cell.feed_forward)
        return 5.0 + 0.01 * cell.feed_forward + bend * cell.feed_forward**2

    cell = TextCell()
    every = [dataclasses.replace(cell, feed_forward=16 * count) for count in range(1, 5000)]
    for target in (5.2, 9.9, 17.04, 40.0, 777.0):
        asked.clear()
        found = solved(cell, "parameters", cost, target, "feed_forward")
        assert len(asked) == len(set(asked)) <= 16
        assert found.feed_forward == min(every, key=lambda one: abs(cost(one) - target)).feed_forward


def test_operations_by_hand(book: Path, tmp_path: Path) -> None:
    cell = cells({**GRID, "rank": 8, "mask": "causal-window:3"}, book, tmp_path / "store")[0]
    projections = 4 * 16 * 16
    feed_forward = 3 * 16 * 64
    output = 16 * 320
    pairs = sum(min(place + 1, 4) for place in range(16)) / 16
    attention = 2 * pairs * 2 * (8 + 8)
    assert cell.token_flops == pytest.approx(6 * (projections + feed_forward + output) + 3 * attention)


def test_memory_grows_with_the_stack(book: Path, tmp_path: Path) -> None:
    cell = cells(GRID, book, tmp_path / "store")[0]
    assert stack_bytes([cell, cell], "cuda") == 2 * stack_bytes([cell], "cuda")


def test_settings_come_back_as_the_same_cell(book: Path, tmp_path: Path) -> None:
    cell = cells(GRID, book, tmp_path / "store")[0]
    assert cell_from(json.loads(json.dumps(settings(cell)))) == cell


def test_a_stopped_sweep_goes_on_bit_for_bit(book: Path, tmp_path: Path) -> None:
    from rankfall.training.options import Options

    options = Options(device="cpu", threads=1, checkpoint_seconds=0)
    stores = [Store(tmp_path / name) for name in ("whole", "stopped")]
    for store in stores:
        group: tuple[TrainingCell, ...] = tuple(cells({**GRID, "rank": 2, "seed": [0, 1]}, book, store.path))
        if store is stores[1]:
            train(group, store, options, Watch(stop=lambda: True))
            assert store.ids() == []
        train(group, store, options, Watch())
    assert contents(stores[0]) == contents(stores[1])
    assert len(stores[0].ids()) == 2


def test_the_verb_trains_compares_and_says_when_it_cannot_tell(book: Path, tmp_path: Path) -> None:
    grid = written(tmp_path, {**GRID, "seed": [0, 1], "steps": 100})
    result = rankfall.sweep(grid, text=book, store=tmp_path / "store", threads=1, audit=False)
    assert [row["status"] for row in result.runs] == ["done"] * 4
    assert all(row["nats_per_byte"] > 0 for row in result.runs)
    assert [(record["rank"], record["seeds"]) for record in result.by_shape] == [(2, 2), (8, 2)]
    assert "too" in result.verdicts[0]
    assert set(result.tables()) == {"runs", "by_shape", "to_level"}
    assert len({one["level"] for one in result.to_level}) == 1
    assert all(0 < one["tokens"] <= 100 * 4 * 16 for one in result.to_level)
    assert result.plot() is not None
    again = rankfall.sweep(grid, text=book, store=tmp_path / "store", threads=1, audit=False)
    assert again.trained == 0
    assert again.runs == result.runs


def test_a_plan_tells_what_each_model_costs(book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid, store = written(tmp_path, {**GRID, "seed": [0, 1], "parameters": 20_000}), tmp_path / "store"
    found = rankfall.sweep(grid, text=book, store=store, dry_run=True)
    assert found.estimate is not None
    assert not store.exists()
    stacks = found.estimate["stacks"]
    made = cells({**GRID, "parameters": 20_000}, book, tmp_path / "other")
    assert [(stack["ranks"], stack["seeds"], stack["cells"]) for stack in stacks] == [
        ("2", "0, 1", 2),
        ("8", "0, 1", 2),
    ]
    for stack, cell in zip(stacks, made, strict=True):
        assert (stack["feed_forward"], stack["value_rank"]) == (cell.feed_forward, 8)
        assert stack["parameters"] == text_layout(cell).parameters
        assert stack["tokens"] == 200 * 4 * 16
        assert stack["flops"] == 2 * training_flops(cell)
        assert stack["memory_gib"] == stack_bytes([cell], "cpu") / 2**30
        about = open_corpus(cell.corpus, tmp_path / "other").about
        assert stack["passes"] == 200 * 4 * 16 / about.training_tokens
    status, printed, notes = call(capsys, "sweep", grid, "--text", book, "--store", store, "--dry-run")
    assert status == 0
    assert "audits besides" in printed
    assert "documents to train on" in " ".join(notes.split())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mask", ["causal", "causal-window:3"]),
        ("positions", ["rotary", "learned"]),
        ("key_heads", [1, 2]),
        ("value_rank", [4, 8]),
        ("activation", ["swiglu", "relu2"]),
        ("learning_rate", [0.01, 0.003]),
        ("tokenizer", ["bytes", "bpe:300"]),
    ],
)
def test_a_plan_shows_every_setting_that_differs_and_joins_seeds(
    name: str, values: list[Any], book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = written(tmp_path, {**GRID, "rank": 8, "seed": [0, 1, 2, 5], name: values})
    status, printed, _ = call(capsys, "sweep", grid, "--text", book, "--store", tmp_path / "store", "--dry-run")
    heading, rows = printed.split("───")[0], [line for line in printed.splitlines() if "0 to 2, 5" in line]
    assert status == 0
    assert all(word in heading for word in ("seeds", *name.split("_")))
    assert len(rows) == 2
    assert all(f" {value} " in row for value, row in zip(values, rows, strict=True))
    assert "each with task text, width 16, layers 1, steps 200" in printed


def test_a_text_of_its_own_to_measure_on(book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.txt").write_text(
        "\n\n".join(f"{n} rivers run to the sea, and {n % 7} come back." for n in range(99))
    )
    grid = written(tmp_path, {**GRID, "rank": 2, "steps": 100})
    words = ("sweep", grid, "--text", book, "--store", tmp_path / "store", "--threads", "1", "--no-audit")
    status, printed, _ = call(capsys, *words, "--validation", tmp_path / "other.txt", "--json")
    (trained,) = json.loads(printed)["runs"]
    about = open_corpus(trained["corpus"], tmp_path / "store").about
    gaps = 2 * (about.held_out_documents - 1)
    assert (status, about.held_out_bytes + gaps) == (0, len((tmp_path / "other.txt").read_text()))
    (same,) = cells(
        {**GRID, "rank": 2, "steps": 100, "validation": str(tmp_path / "other.txt")}, book, tmp_path / "store"
    )
    assert same.corpus == trained["corpus"] != cells({**GRID, "rank": 2}, book, tmp_path / "store")[0].corpus
    status, _, err = call(capsys, "sweep", grid, "--validation", book, "--store", tmp_path / "none")
    assert (status, "a text to train on beside" in " ".join(err.split())) == (2, True)
    status, _, err = call(capsys, "sweep", grid, "--text", book, "--validation", book, "--store", tmp_path / "none")
    assert (status, "every document (" in err, "is in both" in " ".join(err.split())) == (2, True, True)
    assert not (tmp_path / "none").exists()


def test_a_text_that_cannot_be_used_leaves_no_store(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(RequestError, match="at least 4,096 bytes"):
        rankfall.sweep("text-smoke", text=tmp_path / "short.txt", store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_line_of_the_picture_is_what_most_models_share() -> None:
    fixed = by_shape([row(4, 1.5), row(16, 1.4), row(64, 1.3)])
    shared = by_shape([row(4, 1.5, heads=64), row(64, 1.3, heads=4)])
    wide = by_shape([row(4, 1.5), row(4, 1.4, value_rank=128)])
    depths = [{"layers": depth, "budget": "parameters=1 by layers"} for depth in (3, 5)]
    solved_for = by_shape([row(rank, 1.5, **of) for rank, of in zip((4, 8), depths, strict=True)])
    named = [
        [line.get_text() for line in ax.get_legend().get_texts()] for ax in map(only_panel, (fixed, shared, wide))
    ]
    assert named == [["4 heads"], ["H r = d"], ["H r = 1/16 d, value rank 64", "H r = 1/16 d, value rank 128"]]
    assert only_panel(solved_for).get_title() == "width 256\nparameters=1 by layers"


def test_texts_are_drawn_apart_and_so_are_feed_forwards() -> None:
    texts = [row(rank, 1.5, corpus=corpus) for corpus in ("aaaaaaaaaa", "bbbbbbbbbb") for rank in (4, 16)]
    panels = loss_by_rank(by_shape(texts)).axes
    assert [ax.get_title().splitlines()[0] for ax in panels] == ["corpus aaaaaaaa", "corpus bbbbbbbb"]
    sizes = only_panel(by_shape([row(rank, 1.5, feed_forward=wide) for wide in (64, 128) for rank in (4, 16)]))
    assert [line.get_text() for line in sizes.get_legend().get_texts()] == [
        "4 heads, feed forward 64",
        "4 heads, feed forward 128",
    ]
    beside = [row(rank, 1.5, positions="learned", heads=256 // rank, value_rank=rank) for rank in (4, 16)]
    wide = [row(4, 1.5, heads=1, value_rank=width) for width in (4, 8)]
    learned, rotary = loss_by_rank(by_shape([*beside, *wide])).axes
    assert [line.get_text() for line in learned.get_legend().get_texts()] == ["H r = d"], "one panel, one line"
    assert len(rotary.get_legend().get_texts()) == 2
    many = by_shape([row(4, 1.5, steps=100 * number) for number in range(1, 6)])
    assert {ax.get_subplotspec().rowspan.start for ax in loss_by_rank(many).axes} == {0, 1}
    solved_for = [row(rank, 1.5, feed_forward=wide) for rank, wide in ((4, 128), (16, 64))]
    assert [one.get_text() for one in only_panel(by_shape(solved_for)).get_legend().get_texts()] == ["4 heads"]


def test_what_audits_say_names_the_setting_as_the_verdict_does() -> None:
    audited = {"head_rank_used": 3.0, "head_rank_needed": 2.0, "token_rank_last": 9.0}
    texts = [row(4, 1.5, corpus=corpus, **audited) for corpus in ("aaaaaaaaaa", "bbbbbbbbbb")]
    ways = [row(4, 1.5, positions=positions, **audited) for positions in ("rotary", "learned")]
    for rows in (texts, ways):
        said = [sentence.partition(": ")[0] for sentence in audit_sentences(rows)]
        assert sorted(said) == sorted(sentence.partition(": ")[0] for sentence in verdicts(by_shape(rows)))
        assert len(set(said)) == 2


def only_panel(records: list[dict[str, Any]]) -> Any:
    (panel,) = loss_by_rank(records).axes
    return panel


def row(rank: int, loss: float, seed: int = 0, **changes: Any) -> dict[str, Any]:
    cell = TextCell(rank=rank, seed=seed)
    sizes = {"parameters": 1000, "training_flops": 1e9, "seconds": 2.0, "steps_done": 1000}
    return {
        **settings(cell),
        "status": "done",
        "nats_per_byte": loss,
        "unigram_nats_per_byte": 3.0,
        **sizes,
        **changes,
    }


def test_models_that_differ_in_anything_but_seed_and_rate_are_no_seeds_of_each_other() -> None:
    told = {*SETTING, *SHAPE, "task", "vocabulary", "seed", "learning_rate"}
    assert told == {one.name for one in dataclasses.fields(TextCell)}, "a new setting must be told apart too"
    rotary, learned = row(4, 1.5), row(4, 1.7, positions="learned")
    records = by_shape([rotary, learned])
    assert [(one["nats_per_byte"], one["variant"]) for one in records] == [
        (1.7, "positions learned"),
        (1.5, "positions rotary"),
    ]
    assert "positions learned: rank 4" in verdicts(records)[0]
    assert by_shape([rotary])[0]["variant"] == ""


DIFFERENT: dict[str, Any] = {
    "layers": 2, "width": 128, "value_rank": 32, "key_heads": 2, "feed_forward": 64, "positions": "learned",
    "learning_rate": 0.01, "seed": 1, "budget": "parameters=1000 by feed_forward", "corpus": "0123456789abcdef",
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_tells_models_apart_is_a_column_of_every_table(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [{"id": "a", **row(4, 1.5)}, {"id": "b", **row(4, 1.61234, **{name: DIFFERENT[name]})}]
    past = [{"step": 1000, "fresh": 1.5}]
    levels = to_level([(one, past) for one in runs])
    assert all(
        {one: level[one] for one in RUN} == {one: run[one] for one in RUN}
        for level, run in zip(levels, runs, strict=True)
    )
    audits = [{**{one: run[one] for one in RUN}, "nats_per_byte": run["nats_per_byte"]} for run in runs]
    _show(SweepResult("grid", "store", runs, to_level=levels, audits=audits))
    _, *tables = capsys.readouterr().out.split("of held-out text, by shape")
    shapes, rest = "".join(tables).split("tokens and seconds to the loss")
    reached_at, audited = rest.split("audits on held-out text")
    shown = str(DIFFERENT[name])[: 8 if name == "corpus" else None]
    merged = name in ("learning_rate", "seed")  # the best rate, the mean over seeds
    for printed in (reached_at, audited) if merged else (shapes, reached_at, audited):
        heading = " ".join(printed.split("───")[0].split())
        assert all(word in heading for word in name.split("_")), printed
        assert f" {shown} " in printed
        assert printed is reached_at or " 1.6123 " in printed, "losses with four decimals, as in sentences"
        assert all(word not in heading for word in ("activation", "context")), "what is the same in all is left out"


def test_verdicts_tell_apart_only_what_seeds_tell_apart() -> None:
    clear = [row(r, loss + 0.001 * seed, seed) for r, loss in ((4, 1.5), (64, 1.2)) for seed in range(3)]
    (sentence,) = verdicts(by_shape(clear))
    assert "rank 64 with 4 heads costs least, 1.2010 nats per byte; surely more, by more than the 95 % " in sentence
    assert sentence.endswith("over seeds: rank 4 with 4 heads +25.0% (± 0.2)")
    close = [row(r, loss + 0.2 * seed, seed) for r, loss in ((4, 1.25), (64, 1.2)) for seed in range(3)]
    assert "too close to tell without more seeds: rank 64 with 4 heads costs least" in verdicts(by_shape(close))[0]
    both = [*clear, *(row(16, 1.201 + 0.001 * seed, seed) for seed in range(3))]
    assert verdicts(by_shape(both))[0].endswith(
        "over seeds: rank 4 with 4 heads +25.0% (± 0.2); too close to tell without more seeds: rank 16 with 4 heads "
        "+0.1% (± 0.2)"
    )
    mixed = [row(4, 1.6), row(4, 1.62, seed=1), row(64, 1.2)]
    assert "surely more" in verdicts(by_shape(mixed))[0]
    near = [row(4, 1.5), row(4, 1.52, seed=1), row(64, 1.4)]
    assert "too close to tell" in verdicts(by_shape(near))[0], "0.11 is below 12.7 times 0.014 times root 3/2"
    assert "+25.0%; one seed each" in verdicts(by_shape([row(4, 1.5), row(64, 1.2)]))[0]
    assert "too small to tell" in verdicts(by_shape([row(4, 2.9), row(64, 2.8)]))[0]
    assert "no other shape" in verdicts(by_shape([row(64, 1.2)]))[0]


def test_what_a_shape_costs_over_the_best_has_the_margin_of_a_difference() -> None:
    losses = {4: (1.5, 1.52), 16: (1.3, 1.34), 64: (1.2, 1.23)}
    found = {
        one["rank"]: one for one in by_shape([row(r, v, s) for r, own in losses.items() for s, v in enumerate(own)])
    }
    pooled = ((0.02**2 + 0.04**2 + 0.03**2) / 2 / 3) ** 0.5
    assert found[64]["excess"] == 0.0
    assert found[64]["excess_margin"] is found[64]["told_from_best"] is None
    for rank in (4, 16):
        assert found[rank]["excess"] == pytest.approx(sum(losses[rank]) / sum(losses[64]) - 1)
        assert found[rank]["excess_margin"] == pytest.approx(3.18245 * pooled / 1.215, rel=1e-4)
    assert (found[4]["told_from_best"], found[16]["told_from_best"]) == (True, True)
    of_one = 3.18245 * pooled / 2**0.5
    assert [one["nats_per_byte_margin"] for one in found.values()] == pytest.approx([of_one] * 3, rel=1e-4)
    (bars,) = only_panel(list(found.values())).containers
    low, high = bars[2][0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((1.51 - of_one, 1.51 + of_one), rel=1e-4), "the picture has the same"


def test_shapes_are_named_by_what_tells_them_apart() -> None:
    several = [row(4, 1.5, value_rank=64), row(4, 1.2, value_rank=32), row(8, 1.6, parameters=2000)]
    (sentence,) = verdicts(by_shape(several))
    assert sentence.startswith("width 256, 4 layers, 1,000 to 2,000 parameters: rank 4 with 4 heads, value rank 32 ")
    (sentence,) = verdicts(by_shape([row(4, 1.5, layers=1, heads=1), row(8, 1.6, layers=1, heads=1)]))
    assert sentence.startswith("width 256, 1 layer, 1,000 parameters: rank 4 with 1 head costs least")
    texts = [row(4, 1.5, corpus="aaaaaaaaaa"), row(4, 1.6, corpus="bbbbbbbbbb")]
    assert [one.split(",")[0] for one in verdicts(by_shape(texts))] == ["corpus aaaaaaaa", "corpus bbbbbbbb"]
    ways = [row(4, 1.5, corpus="a"), row(4, 1.6, corpus="b", tokenizer="bpe:300")]
    assert [one["variant"] for one in by_shape(ways)] == ["tokenizer bytes", "tokenizer bpe:300"]


def test_models_whose_depth_was_solved_for_are_compared() -> None:
    of = {"budget": "parameters=1000 by layers"}
    rows = [row(4, 1.5 + 0.001 * seed, seed, layers=7, **of) for seed in (0, 1, 2)]
    rows += [row(64, 1.2 + 0.001 * seed, seed, layers=3, **of) for seed in (0, 1, 2)]
    (sentence,) = verdicts(by_shape(rows))
    assert sentence.startswith(
        "width 256, 3 to 7 layers, parameters=1000 by layers: rank 64 with 4 heads costs least"
    )
    histories = [[{"step": 100, "fresh": one["nats_per_byte"]}] for one in rows]
    found = to_level([({**one, "id": "x"}, past) for one, past in zip(rows, histories, strict=True)])
    assert {one["level"] for one in found} == {1.502}
    apart = [{**one, "budget": "none"} for one in rows]
    assert len(verdicts(by_shape(apart))) == 2, "depths that were chosen are settings of their own"


def test_models_of_several_sizes_are_doubted() -> None:
    sizes = [row(4, 1.5, parameters=1000), row(64, 1.2, parameters=1100)]
    assert "differ in size, not in their heads alone" in verdicts(by_shape(sizes))[0]
    assert (
        "differ in size" not in verdicts(by_shape([row(4, 1.5, parameters=1000), row(64, 1.2, parameters=1001)]))[0]
    )
    timed = [{**one, "budget": "step_seconds=0.1 by feed_forward"} for one in sizes]
    assert "differ in size" not in verdicts(by_shape(timed))[0], "as was asked for"
    assert "equally long" not in verdicts(by_shape(timed))[0]
    busy = [timed[0], {**timed[1], "seconds": 5.0}]
    assert "took 0.002 to 0.005 s and were to be equally long" in verdicts(by_shape(busy))[0]


def test_a_text_learned_by_heart_is_doubted() -> None:
    fair = [row(r, 2.0, nats_per_token=2.0, training_nats_per_token=1.8) for r in (4, 64)]
    assert by_shape(fair)[0]["held_out_over_training"] == pytest.approx(2.0 / 1.8)
    assert "by heart" not in verdicts(by_shape(fair))[0]
    known = [fair[0], row(64, 2.0, nats_per_token=2.0, training_nats_per_token=0.5)]
    assert "costs up to 4.0 times as much as the text trained on" in verdicts(by_shape(known))[0]


def test_a_time_that_hardly_rises_leads_to_no_giant() -> None:
    """Small models take nearly one time; a line through two of them would meet the target far out."""
    asked: list[int] = []

    def cost(cell: TextCell) -> float:
        asked.append(cell.feed_forward)
        return 0.0083 + 1e-9 * cell.feed_forward + (0.04 if cell.feed_forward > 2000 else 0.0)

    solved(TextCell(feed_forward=128), "step_seconds", cost, 0.02, "feed_forward", close=0.01)
    assert max(asked) <= 8 * 2000 + 16


def test_by_shape_takes_the_best_rate_and_counts_divergence() -> None:
    rows = [
        row(4, 1.5, learning_rate=0.1),
        row(4, 1.3, learning_rate=0.01),
        row(4, 1.4, 1, learning_rate=0.01),
        row(4, float("nan"), 2, learning_rate=0.01, status="diverged"),
    ]
    (record,) = by_shape(rows)
    assert record["nats_per_byte"] == pytest.approx(1.35)
    assert (record["learning_rate"], record["seeds"], record["diverged"]) == (0.01, 2, 1)
    assert record["nats_per_byte_high"] - 1.35 == pytest.approx(12.7062 * 0.0707107 / 2**0.5, rel=1e-4)


def test_when_a_loss_is_reached() -> None:
    history = [{"step": 100, "fresh": 3.0}, {"step": 200, "fresh": None}, {"step": 300, "fresh": 2.0}]
    assert reached(history, 2.5) == 200.0
    assert reached(history, 3.5) == 100.0
    assert reached(history, 1.9) is None


def test_tokens_and_seconds_to_the_loss_that_all_reach() -> None:
    past = [[{"step": 500, "fresh": a}, {"step": 1000, "fresh": b}] for a, b in ((3.0, 2.0), (2.5, 1.0))]
    rows = [{**row(4, 2.0), "id": "one"}, {**row(64, 1.0), "id": "two"}]
    slow, fast = to_level(list(zip(rows, past, strict=True)))
    assert (slow["level"], fast["level"]) == (2.0, 2.0)
    assert slow["tokens"] == 1000 * 64 * 256
    assert fast["tokens"] == pytest.approx((500 + 500 / 3) * 64 * 256)
    assert fast["seconds"] == pytest.approx(2.0 * 2 / 3)
    assert to_level(list(zip(rows, past, strict=True)), level=0.5)[0]["tokens"] is None


@pytest.mark.parametrize(
    ("changes", "required"),
    [
        ({"rank": 3}, "even rank"),
        ({"rank": 0}, "rank to be"),
        ({"heads": 3}, "share evenly"),
        ({"heads": 4, "key_heads": 3}, "equal groups"),
        ({"mask": "complete"}, "hides later tokens"),
        ({"parameters": 100}, "a model of parameters"),
        ({"parameters": 60_000, "flops": 1e9}, "one budget"),
        ({"parameters": 60_000, "feed_forward": 32}, "left open"),
        ({"solve": "layers"}, "a budget"),
        ({"heads_times_rank": 16}, "in place of heads"),
        ({"tokenizer": "words"}, "bytes or bpe"),
        ({"multiplier": 2}, "settings of a cell"),
        ({"task": ["text", "farthest"]}, "tasks of one kind"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    changes: dict[str, Any], required: str, book: Path, tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as refused:
        cells({**GRID, **changes}, book, tmp_path / "store")
    assert required in str(refused.value)
    assert "\n" not in str(refused.value)


def test_text_without_a_text_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text('task = "text"\n')
    with pytest.raises(RequestError, match="--text"):
        rankfall.sweep(grid, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_context_longer_than_the_corpus_is_refused(book: Path, tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text('task = "text"\nwidth = 16\nlayers = 1\nheads = 2\ncontext = 16000\nbatch = 1\nsteps = 100\n')
    with pytest.raises(RequestError, match="held out"):
        rankfall.sweep(grid, text=book, store=tmp_path / "store")
