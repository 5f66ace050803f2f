"""`import rankfall`: which names there are, that they are documented, light, and never shadowed."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.loading import loaded

import rankfall

ROOT = Path(rankfall.__file__).parents[2]
FUNCTIONS = (
    "audit compare series coverage simulate equilibrium bounds plan survey sweep runs reproduce measure rankme "
    "attention trainer_callback lightning_callback"
)
MEASURES = (
    "effective_rank energy_rank first_direction_share alpha mu relative_mu rank stable_rank participation_ratio "
    "mean_abs_cosine min_singular_value max_singular_value rank_one_residual largest_token_share"
)
CLASSES = (
    "AuditResult ComparisonResult SeriesResult CoverageResult SimulationResult EquilibriumResult BoundsResult "
    "PlanResult SurveyResult SweepResult RunsResult ReproductionResult RankMonitor RankWarning Heads RequestError"
)
OTHERS = "masks norms __version__"
PUBLIC = f"{FUNCTIONS} {MEASURES} {CLASSES} {OTHERS}".split()
HEAVY = ("torch", "numpy", "scipy", "pandas", "transformers", "matplotlib", "plotly", "duckdb", "typer", "rich")


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_these_names_are_public_and_no_others() -> None:
    assert sorted(rankfall.__all__) == sorted(PUBLIC) == dir(rankfall)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "__version__"])
def test_every_name_is_there_and_documented(name: str) -> None:
    thing = getattr(rankfall, name)
    assert inspect.getdoc(thing)
    assert callable(thing) or isinstance(thing, ModuleType)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rankfall' has no attribute 'nothing'"):
        _ = rankfall.nothing  # type: ignore[attr-defined]


def test_importing_loads_nothing_heavy_and_names_load_what_they_need() -> None:
    code = f"import sys, rankfall; print([n for n in {HEAVY!r} if n in sys.modules], len(dir(rankfall)))"
    assert in_a_new_process(code) == f"[] {len(PUBLIC)}"
    code = "import sys, rankfall; rankfall.bounds; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert in_a_new_process(code) == "False False"


def test_type_checkers_see_the_same_names_in_the_same_places() -> None:
    tree = ast.parse(Path(rankfall.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: node.module for node in imports for alias in node.names if alias.asname is not None}
    lazy = {name: module for module, names in rankfall._PLACES.items() for name in names}
    assert seen == lazy | dict.fromkeys(rankfall._MODULES, "rankfall")
    annotated = [ast.unparse(node) for node in guarded.body if isinstance(node, ast.AnnAssign)]
    assert annotated == [f"{name}: Measure" for name in rankfall._MEASURES]


def test_no_import_of_a_module_hides_a_public_name() -> None:
    modules = [
        one.name
        for one in pkgutil.walk_packages(rankfall.__path__, "rankfall.", onerror=lambda name: None)
        if not one.name.endswith(("__main__", "explorer.page"))
    ]
    rooms = {name.split(".")[1] for name in modules}
    assert rooms & set(PUBLIC) == {"masks", "norms"}
    code = (
        "import importlib, rankfall, types\n"
        f"for name in {[name for name in modules if 'kernels' not in name and 'engines.ray' not in name]!r}:\n"
        "    importlib.import_module(name)\n"
        f"hidden = [n for n in {PUBLIC!r} if isinstance(getattr(rankfall, n), types.ModuleType)]\n"
        "print(hidden, callable(rankfall.reproduce), callable(rankfall.audit), callable(rankfall.runs))"
    )
    assert in_a_new_process(code) == "['masks', 'norms'] True True True"


def test_no_class_of_the_api_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = {}
    package = Path(rankfall.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(package)))
    own = {name: where for name, where in places.items() if any(one.startswith(("api/", "cli/")) for one in where)}
    assert {name: where for name, where in own.items() if len(where) > 1} == {}


def test_the_page_is_up_to_date() -> None:
    script = loaded("scripts/api_page.py")
    assert script.page() == script.PAGE.read_text(encoding="utf-8"), "run python scripts/api_page.py"
    listed = re.findall(r"^### `rankfall\.(\w+)`", script.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(PUBLIC)


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for examples in loaded("scripts/api_page.py").SECTIONS.values():
        for name, example in examples.items():
            exec(compile(example, f"example of {name}", "exec"), names)
    assert (tmp_path / "report" / "report.html").exists()
    assert (tmp_path / "two-tokens.png").exists()


@pytest.mark.parametrize("folder", ["docs", "."])
def test_documents_name_only_what_is_public(folder: str) -> None:
    """In Python blocks `rankfall.x` is a public name, or the module of an import."""
    for page in (ROOT / folder).rglob("*.md") if folder == "docs" else ROOT.glob("*.md"):
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for node in ast.walk(ast.parse(block)):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == "rankfall"
                ):
                    assert node.attr in PUBLIC, f"{page.name}: rankfall.{node.attr}"
