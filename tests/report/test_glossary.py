"""One list of words: the page says what the package says, and a report explains the words it uses."""

from __future__ import annotations

from pathlib import Path

import rankfall
from rankfall.report.document import Answer, Document, Section
from rankfall.report.glossary import GLOSSARY, glossary_page, used
from rankfall.report.page import render

ROOT = Path(rankfall.__file__).parents[2]


def test_page_is_current() -> None:
    written = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert written == glossary_page(), "run: python -m rankfall.report.glossary > docs/glossary.md"


def test_words_are_found_in_singular_and_plural() -> None:
    assert list(used("Two massive tokens hide the energy rank; muons do not count")) == [
        "energy rank",
        "massive token",
    ]
    assert used("nothing of ours") == {}


def test_meanings_do_not_start_with_the_word_itself() -> None:
    circular = [word for word, meaning in GLOSSARY.items() if meaning.lower().startswith(word)]
    assert circular == []


def test_pages_link_to_words_that_exist() -> None:
    anchors = {word.replace(" ", "-").replace("/", "") for word in GLOSSARY}
    linked = {
        part.partition(")")[0]
        for page in (ROOT / "docs").rglob("*.md")
        for part in page.read_text(encoding="utf-8").split("glossary.md#")[1:]
    }
    assert linked <= anchors
    assert len(linked) >= 8


def test_a_report_explains_the_words_it_uses_and_no_others() -> None:
    answers = [Answer("Does it collapse?", "no", reasons=["one massive token stands out"])]
    page = render(Document("A model", "by energy rank", answers, [Section("Masks")], "rankfall audit", {}))
    explained = page.partition('<section id="glossary">')[2].partition("</section>")[0]
    assert [word for word in GLOSSARY if f"<dt>{word}</dt>" in explained] == [
        "collapse",
        "energy rank",
        "massive token",
    ]
    assert '<a href="#glossary">' in page
