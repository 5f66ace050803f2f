"""Every verb's own example, as its help prints it, runs; `Quick:` lines stand for examples that take long."""

from __future__ import annotations

import importlib.util
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.calls import answer, call

import rankfall
from rankfall.catalogue import NAMED_MODELS, VERBS
from rankfall.cli.main import app, run
from rankfall.models.load.named import named_path

ROOT = Path(rankfall.__file__).parents[2]
GRID = "dim = 4\npoints = 3\nfeed_forward = 4\nbatch = 4\nsteps = 100\nrank = [1, 2]\n"
EXTRA = {"explore": "marimo"}


def commands(verb: str, label: str) -> list[list[str]]:
    """The command lines behind `Example:` or `Quick:` in the help of a verb, as words without the program's name."""
    group: Any = typer.main.get_command(app)
    text = group.commands[verb].help
    found = re.search(rf"^{label}: (.*?)(?:\n\s*\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return [shlex.split(span)[1:] for span in re.findall(r"`(rankfall [^`]+)`", found[1])] if found else []


def quick(verb: str) -> list[list[str]]:
    return commands(verb, "Quick") or commands(verb, "Example")


EXAMPLES = [pytest.param(words, id=" ".join(words)) for verb in VERBS.names for words in quick(verb)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: grids beside a store with finished runs."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "grids").symlink_to(ROOT / "grids")
    (folder / "tiny.toml").write_text(GRID)
    with pytest.raises(SystemExit):
        run(["sweep", str(folder / "tiny.toml"), "--store", str(folder / "runs"), "--threads", "1"])
    return folder


def require_parts(words: list[str]) -> None:
    verb = words[0]
    if verb in EXTRA and importlib.util.find_spec(EXTRA[verb]) is None:
        pytest.skip(f"{EXTRA[verb]} is not installed")
    for name in {*words} & {*NAMED_MODELS.names}:
        try:
            named_path(name)
        except rankfall.RequestError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("verb", VERBS.names)
def test_every_verb_has_an_example_of_its_own(verb: str) -> None:
    group: Any = typer.main.get_command(app)
    examples = commands(verb, "Example")
    assert examples
    for words in [*examples, *quick(verb)]:
        assert words[0] == verb
        with group.commands[verb].make_context(verb, list(words[1:])):
            pass


@pytest.mark.parametrize("words", EXAMPLES)
def test_examples_run(
    words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    require_parts(words)
    monkeypatch.chdir(home)
    answer(capfd, *words)
    for option, name in pairwise(words):
        if option in ("--plot", "--out", "--csv"):
            assert (home / name).exists()


@pytest.mark.parametrize("words", [case for case in EXAMPLES if case.values[0][0] in ("simulate", "runs", "plan")])
def test_examples_print_tables_for_people(
    words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    status, out, err = call(capfd, *words)
    assert status == 0, err
    assert not out.startswith("{")
    assert out.count("\n") > 3
