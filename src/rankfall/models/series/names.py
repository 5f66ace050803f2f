"""Which models a request means: braces and patterns written out, in the order of training, with short labels.

runs/checkpoint-*                  folders and GGUF files that match, by the numbers in their names
org/name@{step1,step1000}          braces as a shell writes them out, also when the shell left them
step{1000..5000..1000}             a range with a stride
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rankfall.errors import require

INNERMOST = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(-?\d{1,12})\.\.(-?\d{1,12})(?:\.\.(-?\d{1,12}))?")
NUMBER = re.compile(r"\d+")
MOST = 10_000
"""More checkpoints than anybody audits: a slip in a range must not fill the memory."""


def is_pattern(name: str) -> bool:
    """Whether a name stands for several: it has braces that can be written out, or wildcards and no such file."""
    return not _exists(name) and (_first_braces(name) is not None or glob.has_magic(name))


def model_names(given: Sequence[str]) -> list[str]:
    """Every model that is meant, in the order of training where the names tell it; refuses none and one twice."""
    found: list[str] = []
    for text in given:
        for name in braces(text) if is_pattern(text) else [text]:
            found += matches(name) if glob.has_magic(name) and not _exists(name) else [name]
    places = [_place(name) for name in found]
    twice = next((name for name, place in zip(found, places, strict=True) if places.count(place) > 1), None)
    require(twice is None, required="each model once", got=f"{twice} twice", remedy="leave one of them out")
    return found if steps(found) is None else sorted(found, key=natural)


def braces(text: str) -> list[str]:
    """`a{b,c}` as `ab` and `ac`, `a{1..3}` as `a1`, `a2` and `a3`; braces with neither stay as they are."""
    found = _first_braces(text)
    if found is None:
        return [text]
    before, choices, after = found
    require(
        len(choices) <= MOST, required=f"at most {MOST:,} checkpoints", got=len(choices), remedy="use a larger stride"
    )
    made = [one for choice in choices for one in braces(before + choice + after)]
    require(len(made) <= MOST, required=f"at most {MOST:,} checkpoints", got=len(made), remedy="name fewer")
    return list(dict.fromkeys(made))


def _first_braces(text: str) -> tuple[str, Sequence[str], str] | None:
    for found in INNERMOST.finditer(text):
        before, after = text[: found.start()], text[found.end() :]
        if "," in found[1]:
            return before, found[1].split(","), after
        if numbers := RANGE.fullmatch(found[1]):
            return before, _range(numbers), after
    return None


def _range(found: re.Match[str]) -> Sequence[str]:
    first, last = int(found[1]), int(found[2])
    stride = abs(int(found[3] or 1)) or 1
    way = 1 if first <= last else -1
    count = abs(last - first) // stride + 1
    require(count <= MOST, required=f"at most {MOST:,} checkpoints", got=count, remedy="use a larger stride")
    padded = len(found[1]) if found[1].startswith("0") else 0
    return [str(number).zfill(padded) for number in range(first, last + way, way * stride)]


def matches(pattern: str) -> list[str]:
    """Folders and GGUF files that match, by the numbers in their names; of links to one of them only that one."""
    kept: dict[Path, str] = {}
    found = glob.glob(str(Path(pattern).expanduser()))
    for name in sorted(found, key=lambda name: (Path(name).is_symlink(), natural(name))):
        path = Path(name)
        if path.is_dir() or path.suffix.lower() == ".gguf":
            kept.setdefault(Path(os.path.realpath(path)), name)
    require(
        bool(kept),
        required=f"folders or GGUF files that match {pattern}",
        got=f"{len(found)} other files" if found else "nothing",
        remedy="check the folder and the spelling",
    )
    return sorted(kept.values(), key=natural)


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A key by which step2 comes before step10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def steps(names: Iterable[str]) -> list[int] | None:
    """The number in which the names differ, if they differ in one number and in nothing else."""
    found = _differing(list(names))
    return None if found is None else found[1]


def stem(names: Sequence[str]) -> str | None:
    """What such names have in common: `checkpoint-*`."""
    found = _differing(list(names))
    if found is None:
        return None
    place = list(NUMBER.finditer(names[0]))[found[0]]
    return f"{names[0][: place.start()]}*{names[0][place.end() :]}"


def _differing(names: list[str]) -> tuple[int, list[int]] | None:
    """Which number of the names differs, and its values; None where more differs than that."""
    if len(names) < 2 or len({NUMBER.sub("#", name) for name in names}) != 1:
        return None
    columns = enumerate(zip(*(map(int, NUMBER.findall(name)) for name in names), strict=True))
    varying = [(place, list(column)) for place, column in columns if len(set(column)) > 1]
    return varying[0] if len(varying) == 1 else None


def labels(names: Sequence[str]) -> list[str]:
    """The last part of each path, and as much before it as tells them apart; where nothing does, a letter."""
    parts = [name.rstrip("/").split("/") for name in names]
    for length in range(1, max(len(one) for one in parts) + 1):
        short = ["/".join(one[-length:]) for one in parts]
        if len(set(short)) == len(short):
            return short
    short = [one[-1] for one in parts]
    marks = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if len(names) <= 26 else [str(number + 1) for number in range(len(names))]
    return [f"{name} ({mark})" for name, mark in zip(short, marks, strict=False)]


def _exists(name: str) -> bool:
    return Path(name).expanduser().exists()


def _place(name: str) -> str:
    return os.path.realpath(Path(name).expanduser()) if _exists(name) else name
