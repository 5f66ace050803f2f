"""Which models a request means: braces, patterns, the order of training, labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.errors import RequestError
from rankfall.models.series.names import braces, is_pattern, labels, model_names, natural, stem, steps


@pytest.mark.parametrize(
    ("text", "written_out"),
    [
        ("a", ["a"]),
        ("org/name@{step1,step1000}", ["org/name@step1", "org/name@step1000"]),
        ("{a,b}-{1,2}", ["a-1", "b-1", "a-2", "b-2"]),
        ("x{a,b{1,2}}", ["xa", "xb1", "xb2"]),
        ("s{1000..3000..1000}", ["s1000", "s2000", "s3000"]),
        ("s{3..1}", ["s3", "s2", "s1"]),
        ("s{08..10}", ["s08", "s09", "s10"]),
        ("{alone}", ["{alone}"]),
        ("open{", ["open{"]),
    ],
)
def test_braces(text: str, written_out: list[str]) -> None:
    assert sorted(braces(text)) == sorted(written_out)


def test_a_range_that_names_too_many_is_refused() -> None:
    with pytest.raises(RequestError, match="at most 10,000 checkpoints; got 1000000"):
        braces("step{1..1000000}")
    with pytest.raises(RequestError, match="at most 10,000 checkpoints"):
        braces("{1..200}-{1..200}")


def test_patterns_find_folders_and_gguf_files_by_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        (tmp_path / f"checkpoint-{number}").mkdir()
    (tmp_path / "checkpoint-last").symlink_to(tmp_path / "checkpoint-100")
    (tmp_path / "checkpoint-log.txt").write_text("x")
    (tmp_path / "model.gguf").write_text("x")
    found = model_names([str(tmp_path / "checkpoint-*")])
    assert [Path(name).name for name in found] == ["checkpoint-9", "checkpoint-10", "checkpoint-100"]
    assert model_names([f"{tmp_path}/*.gguf"]) == [f"{tmp_path}/model.gguf"]
    # As a shell that expands the pattern itself gives them.
    as_given = [str(tmp_path / name) for name in ("checkpoint-10", "checkpoint-100", "checkpoint-9")]
    assert model_names(as_given) == found
    with pytest.raises(RequestError, match=r"match .*nothing-\*; got nothing"):
        model_names([str(tmp_path / "nothing-*")])
    with pytest.raises(RequestError, match="got 1 other files"):
        model_names([str(tmp_path / "*.txt")])


def test_names_that_differ_otherwise_stay_in_their_order() -> None:
    assert model_names(["smollm2", "minilm"]) == ["smollm2", "minilm"]
    assert model_names(["b-2/x", "a-1/x"]) == ["b-2/x", "a-1/x"]
    assert model_names(["org/m@{step10,step2}"]) == ["org/m@step2", "org/m@step10"]


def test_the_same_model_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for names in (["minilm", "minilm"], [f"{tmp_path}/a", f"{tmp_path}/b"], [f"{tmp_path}/a", f"{tmp_path}/a/"]):
        with pytest.raises(RequestError, match=r"required each model once; got .* twice"):
            model_names(names)


def test_a_file_of_that_very_name_is_no_pattern(tmp_path: Path) -> None:
    for name in ("odd[1]", "odd{a,b}"):
        (tmp_path / name).mkdir()
        assert not is_pattern(str(tmp_path / name))
        assert model_names([str(tmp_path / name)]) == [str(tmp_path / name)]
    assert is_pattern("runs/*")
    assert is_pattern("org/m@{a,b}")
    assert not is_pattern("org/m@main")


def test_steps_are_the_one_number_that_differs() -> None:
    assert steps(["pythia-70m@step1", "pythia-70m@step512"]) == [1, 512]
    assert stem(["pythia-70m@step1", "pythia-70m@step512"]) == "pythia-70m@step*"
    assert steps(["a-1-2", "a-2-3"]) is None
    assert steps(["a-1", "b-2"]) is None
    assert steps(["a-1"]) is None
    assert stem(["a", "b"]) is None
    assert sorted(["s10", "s9", "s9a"], key=natural) == ["s9", "s9a", "s10"]


def test_labels_are_short_and_distinct() -> None:
    assert labels(["/x/y/bert", "/x/z/llama/"]) == ["bert", "llama"]
    assert labels(["/x/a/1", "/x/b/1"]) == ["a/1", "b/1"]
    assert labels(["m", "m"]) == ["m (A)", "m (B)"]
    assert labels(["m"] * 30)[-1] == "m (30)"
