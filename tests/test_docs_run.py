"""What the documentation shows happens: its Python and its commands run, and give what the pages say they give.

Both run in a folder that has what the pages speak of, files named MODEL or FILE_OR_FOLDER among it.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main

import rankfall
from rankfall.catalogue import ENGINES, FAMILIES, FIGURES, NAMED_MODELS
from rankfall.cli.main import app
from rankfall.dynamics.weights import ALL_VALUES
from rankfall.explorer.state import from_query, query_of
from rankfall.figures.base import SCALES
from rankfall.masks import parse_schedule
from rankfall.models.architectures.coverage import known_type
from rankfall.norms import parse_norm
from rankfall.training.grid import chosen_cells, find_grid, read_grid
from tests.calls import call
from tests.models.real import needs
from tests.models.small import save_small, some_text
from tests.pages import DOCS, PAGES, ROOT, Shown, commands, named, python

# Pages whose Python other tests run, and look at more closely.
RUN_ELSEWHERE = {
    "docs/api.md": "tests/api/test_front_door.py",
    "docs/extending.md": "tests/test_extending.py",
    "docs/guide/monitor.md": "tests/models/test_monitor_guide.py",
}
# What is not run, by what is written there, and why. Blocks are compiled; of commands options and values are checked.
NOT_RUN = {
    r"head_cut=True|--head-cut": "a pass for every number of directions: tests/cli/test_audit_heads.py",
    r"rankfall\.survey\(\)|survey( --all.*| --json)?$": "asks every class of the library: tests/cli/test_survey.py",
    r"audit.* smollm2|compare minilm": "passes of a real decoder: a minute and more",
    r"audit( --out report)?$|audit minilm": "a real encoder with its controls, 6 s: the guides' Python audits it",
    r"(MODEL|'runs/check.*|causal) --out": "draws a whole report: Python blocks of the same guides do",
    r"--tokens 512": "as shorter passages, which are read here",
    r"org/name": "asks the hub",
    r"--engine ray": "starts a cluster, or looks for one",
    r"explore(?!.*--check)": "waits for whoever looks at the page",
    r"reproduce(?!.*--scale paper)": "computes or trains for minutes: tests/figures runs every figure, small",
    r"reproduce (rankfall/(text-rank|depth)|amsel/fig1)": "committed models: another such command reads some",
    r"sweep (?!smoke|grids/smoke|GRID|mine)": "trains for minutes to days",
    r"coverage llama vit": "builds and audits both: an example of docs/api.md does so with one",
    r"--plot floors.png": "every rank, 4 s: tests/cli/test_bounds.py",
    r"simulate --plot|--seeds 5|--layers 2000": "many masks, seeds or layers, 2 to 4 s each",
    r"--(stable|family star|width 9).* --disturb": "20 draws of 2,000 layers, 2 s each: another such command runs",
}
# Plans time every candidate unless told otherwise.
ALSO_GIVEN = {"plan": ("--no-time",)}

PYTHON = [page for page in PAGES if python(page) and named(page) not in RUN_ELSEWHERE]
SHOWN: dict[str, list[Shown]] = {}
for page in (ROOT / "README.md", DOCS / "start.md", *sorted((DOCS / "guide").glob("*.md"))):
    for one in commands(page):
        if not one.mentioned:
            SHOWN.setdefault(one.line, []).append(one)


def why_not(text: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, text)), None)


RUN = [pytest.param(line, id=line) for line in SHOWN if why_not(line) is None]
ONLY_READ = [pytest.param(line, id=line) for line in SHOWN if why_not(line) is not None]

VERSES = "\n\n".join(f"Verse {n}: sun and moon and {n % 9} stars over {n % 4} hills." for n in range(600))
CELLS = "dim = 4\npoints = 3\nfeed_forward = 4\nbatch = 4\nsteps = 100\nrank = [1, 2]\n"
DECODERS = """
task = "text"
width = 32
layers = 1
heads_times_rank = 32
rank = [8, 16]
positions = ["rotary", "learned"]
context = 64
batch = 2
steps = 100
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, models, grids, and a store of finished runs with a language model among them."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(ROOT / "grids", folder / "grids")
    shutil.copytree(ROOT / "results" / "amsel-fig1", folder / "results" / "amsel-fig1")
    texts = dict.fromkeys(("book.txt", "FILE", "FILE_OR_FOLDER"), VERSES)
    texts |= dict.fromkeys(("notes.txt", "mails.txt"), some_text(1200))
    texts |= {"GRID": DECODERS, "mine.toml": DECODERS, "GRID.toml": CELLS}
    texts["start.json"] = json.dumps(rankfall.equilibrium(tokens=8, width=4, rank=3).record())
    for name, text in texts.items():
        (folder / name).write_text(text)
    rankfall.sweep("smoke", store=folder / "runs", threads=1)
    rankfall.sweep(folder / "GRID", text=folder / "book.txt", store=folder / "runs", threads=1, audit=False)
    rankfall.runs(folder / "runs", where=["rank=16"], export_models=folder / "models")
    rankfall.runs(folder / "runs", where=["task=text"], export_results=folder / "mine")
    (exported,) = (folder / "models").iterdir()
    exported.rename(folder / "models" / "3b341c804660b7d8")
    model = save_small(folder / "MODEL", "bert", max_position_embeddings=512, num_hidden_layers=1)
    checkpoints = [f"{before}{step}" for before in ("checkpoints/", "runs/checkpoint-") for step in (1000, 20000)]
    for name in ("my-model", "A", "B", *checkpoints):
        shutil.copytree(model, folder / name)
    return folder


@pytest.fixture
def _at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    shutil.rmtree("report", ignore_errors=True)
    # The other formats take as long again; tests/report writes them.
    monkeypatch.setattr("rankfall.report.page.FORMATS", (".png",))


DECIMAL = re.compile(r"\d+\.\d+")


@pytest.mark.usefixtures("_at_home", "_unchecked_axes")
@pytest.mark.parametrize("line", RUN)
def test_commands_run_and_print_what_is_shown(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Lines below a command in their order; and every decimal number of its comment."""
    words = SHOWN[line][0].words
    if words[0] == "explore":
        pytest.importorskip("marimo", reason="the extra app is not installed")
    status, out, err = call(capfd, *words, *ALSO_GIVEN.get(words[0], ()))
    assert status in ((0, 1) if "--fail-if" in words else (0,)), err
    assert all(Path(name).exists() for option, name in pairwise(words) if option in ("--plot", "--out", "--csv"))
    printed = " ".join(out.split())
    for shown in SHOWN[line]:
        lines = (re.escape(" ".join(text.split())) for text in shown.output)
        assert re.search(".*".join(lines), printed), out
        assert {*DECIMAL.findall(shown.comment)} <= {*DECIMAL.findall(printed)}, out


def known_model(name: str) -> None:
    """A path may be anybody's."""
    if "/" not in name and name != "MODEL":
        NAMED_MODELS.check(name)


def understood(link: str) -> None:
    assert len(query_of(link)) == link.count("=")
    assert from_query(query_of(link))[1] == []


# By parameter, how text is judged; a cluster's address may be any.
VALUES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("models", "first", "second"), known_model),
    "address": str,
    "engine": ENGINES.check,
    "family": FAMILIES.check,
    "figures": FIGURES.check,
    "grid": find_grid,
    "link": understood,
    "mask": parse_schedule,
    "norm": parse_norm,
    "scale": SCALES.index,
    "types": known_type,
    "value": ALL_VALUES.__getitem__,
    "where": str,
}


GROUP: Any = typer.main.get_command(app)


@pytest.mark.parametrize("line", ONLY_READ)
def test_what_is_not_run_has_possible_values(line: str) -> None:
    verb, *words = SHOWN[line][0].words
    with GROUP.commands[verb].make_context(verb, words) as context:
        given = {
            name: value if isinstance(value, list) else [value]
            for name, value in context.params.items()
            if context.get_parameter_source(name).name == "COMMANDLINE"
        }
    texts = [(name, value) for name, values in given.items() for value in values if isinstance(value, str)]
    assert [refused for name, value in texts if (refused := refusal(VALUES[name], value))] == []
    if verb == "sweep" and "where" in given:
        assert chosen_cells(read_grid(given["grid"][0]), given["where"]), "no cell is left"


def refusal(judge: Callable[[str], Any], value: str) -> str:
    """Why a value is none of those that there are; empty where it is one."""
    try:
        judge(value)
    except (rankfall.RequestError, AssertionError, KeyError, ValueError) as error:
        return f"{value}: {error}"
    return ""


def marked(page: Path) -> Any:
    real = any('"minilm"' in block for block in python(page))
    return pytest.param(page, id=named(page), marks=[needs("minilm")] if real else [])


@pytest.mark.usefixtures("_at_home", "_unchecked_axes")
@pytest.mark.parametrize("page", [marked(page) for page in PYTHON])
def test_python_runs_and_gives_what_is_shown(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in python(page):
        if why_not(block) is None:
            lines = block.splitlines()
            for statement in ast.parse(block).body:
                run_statement(statement, lines[(statement.end_lineno or 0) - 1], names)


VALUE = re.compile(r"(?P<number>-?\d*\.?\d+)(?=[;,]|$)|(?P<text>'[^']*')$|(?P<made>[A-Z]\w+\(.*\))$")


def run_statement(statement: ast.stmt, line: str, names: dict[str, Any]) -> None:
    """Run it; a value that stands behind an expression, or behind the printing of one, must be its value."""
    shown = VALUE.match(line.rpartition("  # ")[2]) if "  # " in line else None
    if not isinstance(statement, ast.Expr) or shown is None:
        exec(compile(ast.Module([statement], []), "page", "exec"), names)
        return
    value = eval(compile(ast.Expression(printed_by(statement.value)), "page", "eval"), names)
    assert agrees(value, shown), f"{line}: {value!r}"


def printed_by(expression: ast.expr) -> ast.expr:
    match expression:
        case ast.Call(func=ast.Name(id="print"), args=[only]):
            return only
    return expression


def agrees(value: Any, shown: re.Match[str]) -> bool:
    """To the digits that are shown; dots stand for anything."""
    if shown["number"]:
        digits = len(shown["number"].partition(".")[2])
        return f"{value:.{digits}f}" == f"{float(shown['number']):.{digits}f}"
    return re.fullmatch(".*".join(map(re.escape, shown[0].split("..."))), repr(value)) is not None


def test_values_are_found_and_compared() -> None:
    with pytest.raises(AssertionError, match=r"0\.25"):
        run_statement(ast.parse("1 / 4").body[0], "1 / 4  # 0.26, not so", {})
    run_statement(ast.parse("print(1 / 8)").body[0], "print(1 / 8)  # .12; rounded", {})
    run_statement(ast.parse("range(3)").body[0], "range(3)  # Range(...", {})
    shown = [line for page in PYTHON for block in python(page) for line in block.splitlines() if "  # " in line]
    assert sum(VALUE.match(line.rpartition("  # ")[2]) is not None for line in shown) >= 8


def test_what_is_not_run_is_there() -> None:
    """A reason whose command or block has gone goes too."""
    texts = [*SHOWN, *(block for page in PYTHON for block in python(page))]
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, text) for text in texts)] == []
    assert len(RUN) > 60
