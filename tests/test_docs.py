"""The documentation says what there is: a guide per verb, every page reachable, every example parses and compiles."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

import rankfall
from rankfall.catalogue import VERBS
from rankfall.cli.main import UsageError, app
from tests.loading import loaded

ROOT = Path(rankfall.__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "results").glob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`(rankfall [^`]+)`")
SHELL = ("", "sh", "bash", "console")
yaml = pytest.importorskip("yaml", reason="mkdocs is not installed")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def hook(name: str) -> ModuleType:
    """A module of the site's build, which lies outside the package."""
    return loaded(f"scripts/site/{name}.py")


def formulas() -> ModuleType:
    pytest.importorskip("latex2mathml", reason="the converter of formulas is not installed")
    return hook("formulas")


def navigation() -> list[str]:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return list(in_nav(hook("navigation").completed(settings["nav"])))


def in_nav(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for item in entry.values() if isinstance(entry, dict) else entry:
            yield from in_nav(item)


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(found[2], found[3]) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


def commands(page: Path) -> list[str]:
    """Whole command lines in shell blocks and in code spans; a bare mention of a verb in a span is one as well."""
    text = page.read_text(encoding="utf-8")
    joined = "\n".join(block for kind, block in blocks(page) if kind in SHELL).replace("\\\n", " ")
    lines = [line.strip().removeprefix("$ ") for line in joined.splitlines()]
    spans = [" ".join(span.split()) for span in SPAN.findall(FENCE.sub("", text))]
    return [one for one in (*lines, *spans) if re.match(r"rankfall( |$)", one)]


def test_every_verb_has_a_guide() -> None:
    missing = [verb for verb in VERBS.names if not (DOCS / "guide" / f"{verb}.md").exists()]
    assert missing == []
    untitled = [
        verb
        for verb in VERBS.names
        if not (DOCS / "guide" / f"{verb}.md").read_text().startswith(f"# `rankfall {verb}`")
    ]
    assert untitled == []


def test_every_page_is_in_the_navigation() -> None:
    listed = navigation()
    assert len(set(listed)) == len(listed)
    on_disk = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    made_while_building = {name for name in listed if name.startswith("reference/")}
    assert set(listed) - made_while_building == on_disk


def test_the_reference_shows_what_is_public_and_nothing_else() -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    reference = hook("reference")
    shown = re.findall(r"^## `rankfall\.(\w+)`", reference.names_page(), re.MULTILINE)
    assert {*shown, *reference.MODULES, "__version__"} == {*rankfall.__all__}
    assert "`rankfall.masks.Window`" in reference.module_page("masks")
    assert "`rankfall.norms.LayerNorm`" in reference.module_page("norms")


def test_every_figure_is_in_the_guide() -> None:
    from rankfall.catalogue import FIGURES

    guide = (DOCS / "guide" / "reproduce.md").read_text()
    assert [one for one in FIGURES.names if f"| `{one}` |" not in guide] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_parse(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for line in commands(page):
        words = shlex.split(line.rstrip(" &"), comments=True)[1:]
        if not words or words[0].startswith("-") or words[0] == "VERB":
            continue
        assert words[0] in group.commands, f"{named(page)}: `{line}`: no such verb"
        # A verb alone, or with dots for what is left out, is a mention and may lack its arguments.
        mention = len(words) == 1 or "..." in words
        words = [word for word in words if word != "..."]
        try:
            with group.commands[words[0]].make_context(words[0], list(words[1:]), resilient_parsing=mention):
                pass
        except UsageError as error:
            pytest.fail(f"{named(page)}: `{line}`: {error}")


@pytest.mark.parametrize("verb", VERBS.names)
def test_options_named_in_a_guide_exist(verb: str) -> None:
    group: Any = typer.main.get_command(app)
    known = {name for one in group.commands.values() for option in one.params for name in option.opts}
    known |= {name for one in group.commands.values() for option in one.params for name in option.secondary_opts}
    text = FENCE.sub("", (DOCS / "guide" / f"{verb}.md").read_text())
    spans = " ".join(re.findall(r"`([^`]+)`", text))
    assert set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", spans)) - known - {"--help"} == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_compiles(page: Path) -> None:
    for kind, block in blocks(page):
        if kind == "python":
            assert compile(block, named(page), "exec").co_filename == named(page)


def test_source_files_that_are_named_exist() -> None:
    """All but those that the page about extending writes."""
    named_files = {
        (named(page), path)
        for page in DOCS.rglob("*.md")
        if page.name != "extending.md"
        for path in re.findall(r"`((?:\w+/)+\w+\.py)", page.read_text(encoding="utf-8"))
    }
    assert len(named_files) > 10
    places = (ROOT, ROOT / "src", ROOT / "src" / "rankfall")
    assert [found for found in sorted(named_files) if not any((place / found[1]).exists() for place in places)] == []


def test_the_checks_find_something() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 50
    assert sum(kind == "python" for page in PAGES for kind, _ in blocks(page)) > 10


def test_formulas_become_mathml() -> None:
    drawn = formulas().to_mathml(r"\tfrac12 \lVert x \rVert_F / (-a)", display=True)
    assert drawn.startswith("<math")
    assert 'display="block"' in drawn
    assert '<mo form="prefix" lspace="0" rspace="0">&#x02212;</mo>' in drawn


def test_alphabets_are_letters_because_browsers_ignore_the_attribute() -> None:
    drawn = html.unescape(formulas().to_mathml(r"\mathbf 1 \in \mathbb R^\mathbf{A}"))
    assert all(letter in drawn for letter in "𝟏ℝ𝐀")
    assert "mathvariant" not in drawn


def test_an_unknown_formula_is_refused() -> None:
    with pytest.raises(ValueError, match=r"holds \\nonsense, which cannot be converted"):
        formulas().to_mathml(r"x + \nonsense{y}")


def test_the_page_of_architectures_shows_every_column_that_it_explains() -> None:
    page = (DOCS / "architectures.md").read_text()
    header = next(line for line in hook("results").architectures().splitlines() if line.startswith("| model type"))
    shown = [name.strip() for name in header.strip("|").split("|")]
    named = ("outcome", "depth", "masks", "heads", "ablation", "controls", "reasons", "reach")
    assert [name for name in named if f"`{name}`" in page and name in shown] == list(named)
