"""The documentation says what there is: a guide per verb, every page reachable, every example parses and compiles."""

from __future__ import annotations

import functools
import html
import re
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
from tests.pages import DOCS, FENCE, PAGES, ROOT, commands, named, python

yaml = pytest.importorskip("yaml", reason="mkdocs is not installed")


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
    for one in commands(page):
        verb, *words = (word for word in one.words if word != "...")
        assert verb in group.commands, f"{named(page)}: `{one.line}`: no such verb"
        try:
            with group.commands[verb].make_context(verb, words, resilient_parsing=one.mentioned):
                pass
        except UsageError as error:
            pytest.fail(f"{named(page)}: `{one.line}`: {error}")


@functools.cache
def options(verb: str) -> list[set[str]]:
    """The names of each option; of a pair such as --heads and --no-heads both."""
    group: Any = typer.main.get_command(app)
    found = ({*one.opts, *one.secondary_opts} for one in group.commands[verb].params)
    return [names for names in found if any(name.startswith("--") for name in names)]


OPTION = re.compile(r"(?<!\S)--[a-z][a-z0-9-]*")


def options_in_sentences(page: Path) -> list[tuple[str, set[str]]]:
    """Code spans outside blocks, each with the options that it names."""
    spans = re.findall(r"`([^`]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))
    return [(span, set(OPTION.findall(span))) for span in spans if OPTION.search(span)]


@pytest.mark.parametrize("verb", VERBS.names)
def test_a_guide_says_what_each_option_is_for(verb: str) -> None:
    said = {name for _, names in options_in_sentences(DOCS / "guide" / f"{verb}.md") for name in names}
    assert [names for names in options(verb) if not names & said] == []


OTHER_PROGRAMS = ("python", "make", "pip", "mkdocs", "marimo")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_options_that_are_named_exist(page: Path) -> None:
    """In the guide of a verb those of that verb, unless another one stands before them."""
    every = {name for verb in VERBS.names for names in options(verb) for name in names}
    own = page.stem if page.parent.name == "guide" and page.stem in VERBS.names else None
    for span, found in options_in_sentences(page):
        first, *_ = span.removeprefix("rankfall ").split()
        verb = first if first in VERBS.names else own
        known = {name for names in options(verb) for name in names} if verb else every
        if not span.startswith(OTHER_PROGRAMS) and page.name != "CHANGELOG.md":
            assert found <= known | {"--help", "--version"}, f"{named(page)}: `{span}`"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_compiles(page: Path) -> None:
    for block in python(page):
        assert compile(block, named(page), "exec").co_filename == named(page)


LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


@functools.cache
def anchors(page: Path) -> set[str]:
    """The names of a page's headings, by the converter that makes the site."""
    markdown = pytest.importorskip("markdown", reason="mkdocs is not installed")
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["markdown_extensions"]
    settings = {name: given for one in listed if isinstance(one, dict) for name, given in one.items()}
    made = markdown.Markdown(
        extensions=[next(iter(one)) if isinstance(one, dict) else one for one in listed], extension_configs=settings
    ).convert(page.read_text(encoding="utf-8"))
    return set(re.findall(r'<h\d id="([^"]+)"', made))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere_and_images_are_there(page: Path) -> None:
    prose = re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for image, target in LINK.findall(prose):
        path, _, anchor = target.partition("#")
        if target.startswith(("https://", "http://")):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{named(page)}: {target}"
        assert not image or file.stat().st_size > 1000, f"{named(page)}: {target} is hardly a picture"
        assert not anchor or anchor in anchors(file), f"{named(page)}: {target}"


OF_THE_PROJECT = re.compile(r"`((?:benchmarks|docs|examples|fuzz|grids|results|scripts|soak|tests)/[\w./*-]*)")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_of_the_project_that_are_named_exist(page: Path) -> None:
    """All but those that the page about extending writes."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for path in OF_THE_PROJECT.findall(text) if page.name != "extending.md" else ():
        assert [*ROOT.glob(path.rstrip("/."))], f"{named(page)}: {path}"


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
    assert sum(len(commands(page)) for page in PAGES) > 150
    assert sum(len(LINK.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 150
    assert sum(len(options_in_sentences(page)) for page in PAGES) > 150
    assert sum(len(python(page)) for page in PAGES) > 10


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
