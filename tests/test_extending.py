"""docs/extending.md, followed to the letter in a copy of the project: what it adds works, and what is wrong fails.

Each section's code goes into the file that it names, its line into the catalogue, its guide into the documentation;
nothing else is touched. One session of pytest then runs on the copy what names a new item, with all that goes through
a whole registry, and one process calls the commands.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")

COPIED = ("src", "tests", "docs", "grids", "results", "scripts", "benchmarks")

# Of these, tests that name no item run as well: they go through a whole registry.
WHOLE = (
    "test_catalogue.py",
    "test_docs.py",
    "test_layering.py",
    "test_norms.py",
    "api/test_front_door.py::test_these_names_are_public_and_no_others",
    "api/test_results.py::test_every_public_verb_is_tried_here",
    "api/test_results.py::test_measures_take_tensors_arrays_and_lists",
    "cli/test_contract.py",
    "cli/test_light.py",
    "constructions/test_contract.py",
    "dynamics/test_trajectory.py::test_batch_is_the_same_as_one_by_one",
    "explorer/test_widgets.py",
    "figures/test_statements.py",
    "masks/test_mask_facts.py",
    "measures/test_measures.py",
    "models/test_layouts.py",
    "report/test_documents.py::test_every_column_of_a_report_is_defined",
    "tasks/test_tasks.py",
)
NAMED = (
    "cli/test_examples.py",
    "dynamics/test_exact.py",
    "equilibria/test_equilibria_families.py",
    "figures/test_every_figure.py",
    "training/test_engines.py",
    "training/test_stack.py",
)

# Loaded by pytest on the copy: keeps what names a new item, or none in a file that runs whole; writes how all ended.
PLUGIN = """
import json, os
from hypothesis import Phase, settings
# What fails need not be made small.
settings.register_profile("copy", phases=(Phase.explicit, Phase.generate))
settings.load_profile("copy")
NAMES, WHOLE = json.loads(os.environ["NAMES"]), json.loads(os.environ["WHOLE"])
ENDED = {}

def kept(one):
    if hasattr(one, "callspec"):
        return any(name in one.callspec.id for name in NAMES)
    return one.nodeid.startswith(tuple(WHOLE))

def pytest_collection_modifyitems(items):
    items[:] = [one for one in items if kept(one)]

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        ENDED[report.nodeid] = report.outcome

def pytest_sessionfinish():
    with open("ended.json", "w") as file:
        json.dump(ENDED, file)
"""

# Every verb's exit status is asserted inside. The process then ends at once: after many verbs in one, unloading
# their libraries has aborted it now and then (cause not found), and nobody runs them so.
CALLS = """
import contextlib, io, json, os, sys
import torch, rankfall
from rankfall.cli.main import run

told = {"measured": sorted(rankfall.measure(torch.eye(3)))}
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
audited = rankfall.audit(model, inputs=torch.randn(2, 12, 8), controls=False, ablate=False)
told["audited"] = audited.boundaries[-1].values["unit"]["nuclear_rank"]
told["failures"] = len(audited.failures("nuclear_rank < 99 at last"))
for words in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            run(words)
        except SystemExit as ended:
            assert not ended.code, words
    told[" ".join(words)] = text.getvalue()
print(json.dumps(told), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Addition:
    """What one section of the page adds."""

    file: str
    code: str
    registry: str
    line: str
    guide: tuple[str, str] | None

    @property
    def name(self) -> str:
        found = re.match(r'"([^":\[]+)', self.line)
        assert found
        return found[1]

    def put_into(self, project: Path) -> None:
        path = project / self.file
        before = path.read_text(encoding="utf-8") + "\n\n" if path.exists() else ""
        path.write_text(before + self.code, encoding="utf-8")
        if self.line:
            self.list_in(project / "src" / "rankfall" / "catalogue.py")
        if self.guide:
            page, words = project / self.guide[0], self.guide[1]
            page.write_text(with_row(page.read_text(), words) if page.exists() else words, encoding="utf-8")

    def list_in(self, catalogue: Path) -> None:
        text = catalogue.read_text(encoding="utf-8")
        listed = re.search(rf"^{self.registry}: Registry\[.*?\n    \}},\n", text, re.DOTALL | re.MULTILINE)
        assert listed, f"no {self.registry} in the catalogue"
        end = listed.end() - len("    },\n")
        catalogue.write_text(f"{text[:end]}        {self.line}\n{text[end:]}", encoding="utf-8")

    def changed(self, *changes: tuple[str, str]) -> Addition:
        """The same with parts of its code replaced."""
        code = self.code
        for old, new in changes:
            assert old in code, old
            code = code.replace(old, new)
        return replace(self, code=code)

    def but(self, name: str, *changes: tuple[str, str]) -> Addition:
        """The same under another name, one word, and with parts of its code replaced."""
        words = re.split("[-_]", self.name)
        camel = "".join(word.capitalize() for word in words)
        ways = {"-".join(words): name, "_".join(words): name, "_".join(words).upper(): name.upper()}
        file, code, line = self.file, self.code, self.line
        for old, new in {**ways, camel: name.capitalize()}.items():
            file, code, line = (text.replace(old, new) for text in (file, code, line))
        return replace(self, file=file, code=code, line=line).changed(*changes)


def with_row(text: str, row: str) -> str:
    """A page whose last table has one row more."""
    at = text.rindex("\n|")
    end = text.index("\n", at + 1) + 1
    return text[:end] + row + text[end:]


def the_only(found: list[Any], what: str) -> Any:
    assert len(found) == 1, f"{what}: {found}"
    return found[0]


def read(section: str) -> Addition:
    guides = re.findall(r"`(docs/guide/\w+\.md)`[^\n]*\n\n```markdown\n(.*?)```", section, re.DOTALL)
    return Addition(
        file=the_only(re.findall(r"^File: `(\S+)`(?:$|, at its end)", section, re.MULTILINE), "files"),
        code=the_only(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE), "blocks of code"),
        registry=the_only(re.findall(r"One line in `(\w+)` of `src/rankfall/catalogue.py`", section), "registries"),
        line=the_only(re.findall(r"^```text\n([^\n]+)\n```", section, re.MULTILINE), "lines"),
        guide=the_only(guides, "guides") if "```markdown" in section else None,
    )


ADDITIONS = {part.partition("\n")[0]: read(part) for part in PAGE.split("\n## ")[1:]}
# Tests call some items by their class.
ALSO = {"A task": "SecondNearest", "A construction": "OneDirection"}
# How many tests of a new item there are at least, so that no selection becomes empty.
LEAST = {
    "A mask": 25,
    "A norm": 12,
    "A measure": 19,
    "A task": 9,
    "A construction": 5,
    "An engine": 2,
    "A model family": 2,
    "A figure": 2,
    "A verb": 7,
}


def copy_of_the_project(folder: Path, additions: list[Addition]) -> Path:
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.yml")):
        shutil.copy2(path, folder)
    (folder / "ending.py").write_text(PLUGIN)
    for one in additions:
        one.put_into(folder)
    return folder


def python(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environment}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=project, env={**kept, **ours}, capture_output=True, text=True
    )


def session(
    project: Path, names: list[str], named: Sequence[str], whole: Sequence[str] = ()
) -> tuple[dict[str, str], str]:
    """How each test ended that names an item, or none in a file that runs whole; and what was printed."""
    files = [f"tests/{name}" for name in (*whole, *named)]
    options = ["-p", "ending", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    told = {"NAMES": json.dumps(names), "WHOLE": json.dumps(files[: len(whole)])}
    done = python(project, "-m", "pytest", *options, *files, **told)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return json.loads((project / "ended.json").read_text()), done.stdout


def names_of(kind: str) -> list[str]:
    return [ADDITIONS[kind].name, *([ALSO[kind]] if kind in ALSO else [])]


def naming(ended: dict[str, str], names: list[str]) -> list[str]:
    return [test for test in ended if any(name in test.partition("[")[2] for name in names)]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_project(tmp_path_factory.mktemp("extended"), list(ADDITIONS.values()))


@pytest.fixture(scope="module")
def ended(extended: Path) -> dict[str, str]:
    found, printed = session(extended, [name for kind in ADDITIONS for name in names_of(kind)], NAMED, WHOLE)
    assert [test for test, outcome in found.items() if outcome != "passed"] == [], printed[-6000:]
    return found


def test_the_page_has_every_kind() -> None:
    assert ADDITIONS.keys() == LEAST.keys()


def test_a_copy_is_tested_and_not_this_project(extended: Path) -> None:
    done = python(extended, "-c", "import rankfall; print(rankfall.__file__)")
    assert done.stdout.strip() == str(extended / "src" / "rankfall" / "__init__.py")


@pytest.mark.parametrize("kind", LEAST)
def test_what_the_page_adds_is_tested_and_passes(kind: str, ended: dict[str, str]) -> None:
    assert len(naming(ended, names_of(kind))) >= LEAST[kind]


GRID = 'task = "second-nearest"\ndim = 4\npoints = 3\nfeed_forward = 4\nbatch = 4\nsteps = 100\nrank = [1, 2]\n'
COMMANDS = {
    "simulate": "simulate --mask strided:2 --norm clip --tokens 8 --width 4 --layers 12 --json",
    "reproduce": "reproduce rankfall/radius-of-windows --scale smoke --out reproduced --json",
    "verb": "graph window:4 --tokens 32 --json",
    "verb, for people": "graph window:4 --tokens 32",
    "verb, help": "graph --help",
    "plan of a sweep": "sweep tiny.toml --store runs --engine one-by-one --dry-run --json",
    "sweep": "sweep tiny.toml --store runs --engine one-by-one --threads 1 --json",
}


@pytest.fixture(scope="module")
def printed(extended: Path) -> dict[str, Any]:
    """What each command prints: an object, or text where none was asked for."""
    (extended / "tiny.toml").write_text(GRID)
    done = python(extended, "-c", CALLS, json.dumps([words.split() for words in COMMANDS.values()]))
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    return {
        **{name: told[name] for name in ("measured", "audited", "failures")},
        **{name: one_object(told[words]) if "--json" in words else told[words] for name, words in COMMANDS.items()},
    }


def one_object(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1, text
    found: dict[str, Any] = json.loads(text)
    assert found["schema"] == 2
    return found


def test_a_new_mask_norm_and_measure_are_simulated(printed: dict[str, Any]) -> None:
    found = printed["simulate"]
    assert (found["mask"]["name"], found["settings"]["norm"]) == ("strided:2", "clip")
    assert found["exact"] is False, "the norm is no scaling"
    assert all(row["nuclear_rank"] >= 1 for row in found["layers"])
    assert "nuclear_rank" in printed["measured"]


def test_a_new_measure_is_audited_and_can_be_a_condition(printed: dict[str, Any]) -> None:
    assert 1 <= printed["audited"] <= 8
    assert printed["failures"] == 1


def test_a_new_figure_is_reproduced(printed: dict[str, Any]) -> None:
    (figure,) = printed["reproduce"]["figures"]
    assert (figure["id"], figure["holds"]) == ("rankfall/radius-of-windows", True)


def test_a_new_verb_is_called(printed: dict[str, Any]) -> None:
    assert {"mask": "window:4", "roots": 32, "radius": 4, "diameter": 8}.items() <= printed["verb"].items()
    assert "window:4, 32 tokens" in printed["verb, for people"]
    assert "how fast information spreads" in printed["verb, help"]


def test_a_new_task_is_trained_by_a_new_engine(printed: dict[str, Any]) -> None:
    planned, done = printed["plan of a sweep"], printed["sweep"]
    assert (planned["cells"], planned["finished"], done["trained"]) == (2, 0, 2)
    for rows, status in ((planned["runs"], "missing"), (done["runs"], "done")):
        assert {(row["task"], row["status"]) for row in rows} == {("second-nearest", status)}


A_LIE_ABOUT_FACTS = """
    def closed_form(self, n: int) -> MaskFacts:
        return MaskFacts(n, (0,), n - 1, None)
"""
A_LIE_ABOUT_THE_BAND = """
    def band(self, n: int) -> Band:
        return Band(self.stride, 0)
"""
LAST_OF_THE_MASK = "return (j <= i) & ((i - j) % self.stride == 0)\n"
FACTS_TOO = ("import Mask\n", "import Band, Mask, MaskFacts\n")
# What is wrong, or stands in no list, and the tests that must find it.
WRONG = {
    "misjudged": (
        ADDITIONS["A mask"].but("misjudged", FACTS_TOO, (LAST_OF_THE_MASK, LAST_OF_THE_MASK + A_LIE_ABOUT_FACTS)),
        {"test_closed_form_equals_search", "test_facts_of_examples_are_those_of_their_graph"},
    ),
    "misbanded": (
        ADDITIONS["A mask"].but("misbanded", FACTS_TOO, (LAST_OF_THE_MASK, LAST_OF_THE_MASK + A_LIE_ABOUT_THE_BAND)),
        {
            "test_self_loops_and_bands_that_hold_every_allowed_pair",
            "test_attention_along_the_band_is_that_of_the_matrix",
        },
    ),
    "miscounted": (
        ADDITIONS["A measure"].but("miscounted", ("singular_values.sum(", "singular_values[..., 1:].sum(")),
        {"test_a_measure_is_what_its_reference_says", "test_declared_range_and_invariances"},
    ),
    "unmoved": (
        ADDITIONS["A measure"].but("unmoved", ("=SHAPE_ONLY", '=SHAPE_ONLY | {"translation"}')),
        {"test_declared_range_and_invariances"},
    ),
    "unbounded": (
        ADDITIONS["A measure"].but("unbounded", ("range=rank_range", "range=lambda n, d: (0.0, 2.0 * min(n, d))")),
        {"test_a_range_that_is_declared_is_no_wider_than_needed"},
    ),
    "Mistaken": (
        ADDITIONS["A construction"].but("mistaken", ("Prediction(1 - first,", "Prediction(1 - first / 2,")),
        {"test_the_predicted_error_is_the_error_of_the_weights"},
    ),
    "misscaled": (
        ADDITIONS["A norm"].but("misscaled", ("tokens / (squared", "tokens / (2 * squared")),
        {"test_plain_reference_says_the_same"},
    ),
    "Misdrawn": (
        ADDITIONS["A task"].but(
            "misdrawn",
            ("from rankfall.tasks.base", "from torch import randn\n\nfrom rankfall.tasks.base"),
            ("draws.normal(1, ", "randn("),
        ),
        {"test_what_is_drawn_depends_on_seed_step_and_purpose_only"},
    ),
    "openai-gpt": (
        ADDITIONS["A model family"].changed(('fused="concatenated"', 'fused="per_head"')),
        {"test_weights_read_by_name_are_those_the_model_uses"},
    ),
    "rankfall/radius-of-windows": (
        ADDITIONS["A figure"].changed(("n // 2) // width)", "n // 2) // width) + 1")),
        {"test_every_figure_at_its_smallest_scale"},
    ),
    "MASKS": (replace(ADDITIONS["A mask"].but("unlisted"), line=""), {"test_every_class_is_listed"}),
    "MEASURES": (
        replace(ADDITIONS["A measure"].but("unlisted"), line=""),
        {"test_every_object_is_listed_under_its_name"},
    ),
}


TESTS_OF_WHAT_IS_WRONG = (
    "constructions/test_contract.py",
    "figures/test_every_figure.py",
    "masks/test_mask_facts.py",
    "measures/test_measures.py",
    "models/test_layouts.py",
    "tasks/test_tasks.py",
    "test_catalogue.py",
    "test_norms.py",
)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    project = copy_of_the_project(tmp_path_factory.mktemp("wrong"), [one for one, _ in WRONG.values()])
    return session(project, [*WRONG], TESTS_OF_WHAT_IS_WRONG)[0]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_fails(name: str, failed: dict[str, str]) -> None:
    red = {re.split("::|\\[", test)[1] for test in naming(failed, [name]) if failed[test] == "failed"}
    assert red >= WRONG[name][1]
