"""What the documentation's pages hold: blocks of code, and command lines with what is printed below them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import rankfall

ROOT = Path(rankfall.__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "results").glob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^    (rankfall .+)$", re.MULTILINE)
SPAN = re.compile(r"`(rankfall [^`]+)`")
SHELL = ("", "sh", "bash", "console")
VERB = re.compile(r"rankfall (?!-|VERB)")


@dataclass(frozen=True)
class Shown:
    """A command line as a page shows it."""

    line: str
    comment: str = ""
    output: tuple[str, ...] = ()
    in_a_sentence: bool = False

    @property
    def words(self) -> list[str]:
        """Behind the program's name, as a shell would pass them."""
        return shlex.split(self.line.rstrip(" &"))[1:]

    @property
    def mentioned(self) -> bool:
        """With dots for what is left out, or a verb alone in a sentence: it may lack arguments, and is not run."""
        return "..." in self.words or (self.in_a_sentence and len(self.words) < 2)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python(page: Path) -> list[str]:
    return [block for kind, block in _blocks(page.read_text(encoding="utf-8")) if kind == "python"]


def commands(page: Path) -> list[Shown]:
    return commands_in(page.read_text(encoding="utf-8"))


def commands_in(text: str) -> list[Shown]:
    """Whole command lines in shell blocks, indented ones, and those in code spans."""
    prose = FENCE.sub("", text)
    in_blocks = [one for kind, block in _blocks(text) if kind in SHELL for one in _lines(block)]
    indented = [_command(line) for line in INDENTED.findall(prose)]
    spans = [Shown(" ".join(span.split()), in_a_sentence=True) for span in SPAN.findall(INDENTED.sub("", prose))]
    return [one for one in (*in_blocks, *indented, *spans) if VERB.match(one.line)]


def _blocks(text: str) -> list[tuple[str, str]]:
    return [(found[2], found[3]) for found in FENCE.finditer(text)]


def _lines(block: str) -> Iterator[Shown]:
    """Of a block with prompts, what stands below a command is what it prints."""
    lines = block.replace("\\\n", " ").splitlines()
    prompts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    if not prompts:
        yield from map(_command, lines)
    for at, end in pairwise([*prompts, len(lines)]):
        yield _command(lines[at].removeprefix("$ "), tuple(lines[at + 1 : end]))


def _command(line: str, output: tuple[str, ...] = ()) -> Shown:
    told, _, comment = line.partition(" # ")
    return Shown(" ".join(told.split()), comment.strip(), output)
