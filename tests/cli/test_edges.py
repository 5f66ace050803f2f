"""Sizes, numbers and texts at the edges: one short line and status 2 before any work; and whose fault a crash is."""

from __future__ import annotations

import pytest
from tests.calls import call

from rankfall.api.audit import layer_numbers
from rankfall.cli.main import CRASHED, refused_by_machine
from rankfall.errors import LARGEST, RequestError, brief, require_count, require_number, require_seed
from rankfall.training.cell import Cell
from rankfall.training.grid import MOST_CELLS, cells_of

HUGE = [str(number) for number in (2**31, 2**32, 2**63, 10**30, 10**300)]


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize(
    "command",
    [
        "simulate --mask causal --tokens",
        "simulate --mask causal --width",
        "simulate --mask causal --layers",
        "simulate --mask causal --heads",
        "simulate --mask causal --seeds",
        "equilibrium --tokens",
        "equilibrium --width",
        "equilibrium --disturb 0.1 --draws",
        "equilibrium --disturb 0.1 --layers",
        "plan --no-time --width",
        "plan --no-time --width 64 --layers",
        "plan --no-time --width 64 --context",
        "plan --no-time --width 64 --hidden",
        "bounds --rank 1 --heads 1 --width",
        "sweep smoke --dry-run --max-stack",
        "sweep smoke --dry-run --threads",
        "sweep smoke --dry-run --memory",
        "audit --tokens 8 --load-seconds",
    ],
)
def test_impossible_sizes_are_refused(command: str, size: str, capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    extra = ["--store", str(tmp_path / "runs")] if command.startswith("sweep") else []
    status, out, err = call(capsys, *command.split(), size, *extra)
    assert (status, out, err.count("\n")) == (2, "", 1), err[-500:]
    assert len(err) < 1000


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "command",
    [
        "simulate --mask causal --temperature",
        "simulate --mask causal --residual",
        "equilibrium --disturb",
        "plan --width 64 --no-time --most-cache",
        "plan --width 64 --seconds",
        "sweep smoke --dry-run --memory",
        "sweep smoke --dry-run --checkpoint-seconds",
        "bounds --width 8 --rank 2 --error",
        "audit --load-seconds",
    ],
)
def test_infinities_are_refused(command: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, *command.split(), number)
    assert (status, out, err.count("\n")) == (2, "", 1), err[-500:]


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
@pytest.mark.parametrize("command", ["simulate --mask causal", "equilibrium --disturb 0.1", "audit --tokens 8"])
def test_seeds_that_no_generator_takes_are_refused(command, seed, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, *command.split(), "--seed", str(seed))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "seed" in err


@pytest.mark.parametrize(
    "text", ["0-999999999", "0-9999999", "1-", "-5", "5-1", "²", "1" * 5000, ",".join(["9"] * 9000)]
)
def test_layers_that_no_model_has_are_refused_briefly(text: str) -> None:
    if set(text) == {"9", ","}:
        assert layer_numbers(text) == {9}
        return
    with pytest.raises(RequestError, match="layers such as") as refused:
        layer_numbers(text)
    assert len(str(refused.value)) < 1000


def test_refusals_are_short_whatever_came() -> None:
    error = RequestError(required="r" * 10**6, got="g" * 10**6, remedy="m" * 10**6)
    assert len(str(error)) < 2100
    assert "(1,000,000 characters)" in str(error)
    assert brief("short") == "short"


def test_counts_seeds_and_numbers() -> None:
    assert require_count("n", LARGEST) == LARGEST
    assert require_count("n", 10**40, most=None) == 10**40
    assert require_seed(2**63 - 1) == 2**63 - 1
    assert require_number("x", 1.5, above=1, most=2) == 1.5
    for refused in (lambda: require_count("n", LARGEST + 1), lambda: require_seed(-1), lambda: require_seed(2**63)):
        with pytest.raises(RequestError):
            refused()
    for value in (1.0, 3.0, float("nan"), True, "1"):
        with pytest.raises(RequestError, match="x to be a finite number above 1 and at most 2"):
            require_number("x", value, above=1, most=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["points", "dim", "layers", "multiplier", "feed_forward", "batch", "steps", "value_rank"]
)
def test_a_cell_of_impossible_size_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name} to be at most"):
        Cell(**{name: 10**18})


def test_a_rank_that_does_not_divide_names_those_that_do() -> None:
    with pytest.raises(RequestError, match="choose among 1, 2, 3, 4, 6, 12"):
        Cell(dim=12, rank=5, points=4)


def test_a_mask_over_too_many_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="tokens under a mask"):
        Cell(task="in-context", mask="causal", points=2**20)


def test_a_grid_of_too_many_cells_is_refused_before_they_are_made() -> None:
    with pytest.raises(RequestError, match=f"at most {MOST_CELLS:,} cells"):
        cells_of({"seed": list(range(1000)), "batch": list(range(1, 1001)), "steps": [100] * 1000}, "grid.toml")


@pytest.mark.parametrize("layers", [0, 1, 5])
def test_equal_tokens_can_be_drawn(layers: int, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "equal.png"
    command = f"simulate --mask complete --query-key zero --tokens 4 --width 3 --layers {layers} --plot"
    status, _, err = call(capsys, *command.split(), str(picture))
    assert status == 0, err
    assert picture.exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(5, "Input/output error", "somewhere"), "input/output error (somewhere)"),
        (MemoryError(), "more memory than there is"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
            "more memory",
        ),
    ],
)
def test_what_the_machine_refuses_is_a_refusal(error, said, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("rankfall.api.bounds.bounds", fail)
    status, out, err = call(capsys, "bounds", "--width", "8", "--rank", "2", "--heads", "1", "--json")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_fault_of_ours_has_a_status_of_its_own(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise KeyError("inner")

    monkeypatch.setattr("rankfall.api.bounds.bounds", fail)
    status, out, err = call(capsys, "bounds", "--width", "8", "--rank", "2", "--heads", "1", "--json")
    assert (status, out) == (CRASHED, "") == (70, "")
    assert "KeyError: 'inner'" in err
    assert "please report" in err
    assert refused_by_machine(KeyError("inner")) is None


@pytest.mark.parametrize("text", ["a\0b.csv", "\ud800", "\0"])
@pytest.mark.parametrize("option", ["--csv", "--mask", "--tokens"])
def test_what_no_command_line_can_hold_is_refused(text, option, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "simulate", "--layers", "2", option, text)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "arguments that a command line can hold" in err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bounds --width 7 --heads -9 --error 0.1 --target biased --rank 2", "the number of heads H"),
        ("bounds --width 2147483647 --rank 2 --heads 2 --plot x.png", "heads are to be drawn"),
        ("equilibrium --width 1 --norm layer --all-ranks", "leaves a direction"),
        ("simulate --mask causal --sink 2147483647 --tokens 4 --dim 3 --layers 2", "the sink's logit"),
    ],
)
def test_corners_that_random_inputs_found(command, said, capsys, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = call(capsys, *command.split())
    assert (status, err.count("\n")) == (2, 1)
    assert said in err
    assert "--plot" in command or out == "", "numbers are printed before a picture is drawn"
    assert list(tmp_path.iterdir()) == []
