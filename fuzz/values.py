"""Values that options and settings are given: mostly small and right, sometimes at an edge, sometimes nonsense."""

from __future__ import annotations

import random

WHOLE_EDGES = (
    *(0, -1, 1, 2, 3),
    *(2**15, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), -(2**64)),
    *(10**12, 10**15, 10**30, 10**300, -(10**30)),
)
REAL_EDGES = (
    *("0", "-0.0", "-1", "1e-320", "5e-324", "1e-30", "1e30", "1e154", "1e155", "1e300", "1.7976931348623157e308"),
    *("nan", "-nan", "inf", "-inf", "Infinity", "1e999", "1_0", "0x10", "½", "١"),
)
NONSENSE = (
    *(
        "",
        " ",
        "-",
        "--",
        "0-999999999",
        "0-9999999",
        "1-",
        "-1-5",
        "5-1",
        "0,,1",
        "1,2,3",
        "None",
        "null",
        "true",
        "é",
    ),
    *("\x1b[31mred\x1b[0m", "\u202eright", "[/b]", "[bold]", "$$", "{task}", "%s", "\x00", "a\nb", "😀", "\ud800"),
    *("a" * 300, "9" * 200, "9" * 5000, "../../../etc/passwd", "/proc/self/mem", "~root", "'; drop table runs; --"),
)
PATHS = {
    # Paths of the folder that every input starts with, what each is stands in `templates.py`; none outside of it that
    # a fault could harm.
    **dict.fromkeys(("new.csv", "new.png", "new.svg", "new.pdf", "new", "deep/er/new.csv", "deep/er/new.png"), 4.0),
    **dict.fromkeys(("file", "file.csv", "file.png", "file/below.png", "folder", "folder.csv", "folder.png"), 2.0),
    **dict.fromkeys(("dangling", "dangling.csv", "dangling.png", "loop", "loop.csv", "loop.png", "loop/x.csv"), 2.0),
    **dict.fromkeys(("fifo", "fifo.csv", "fifo.png", "socket.csv", "socket.png", "tofile.csv", "tofile.png"), 2.0),
    **dict.fromkeys(
        ("device", "device.csv", "device.png", "todevice.csv", "todevice.png", "/proc/x.csv", "zero"), 1.0
    ),
    **dict.fromkeys(("readonly/x.csv", "readonly/x.png", "readonly", ".", "..", "", " ", "new/"), 1.0),
    **dict.fromkeys(("n" * 300 + ".csv", "n" * 300 + ".png", "n/" * 3000 + "x.csv", "a\x00b.csv", "new.bmp"), 1.0),
    **dict.fromkeys(("runs", "empty", "text.txt", "binary", "layer.json", "[/b].csv", "\x1b[31m.csv"), 2.0),
}


NEW = {
    "csv": ("new.csv", "deep/er/new.csv", "file.csv", "tofile.csv"),
    "plot": ("new.png", "new.svg", "new.pdf", "deep/er/new.png", "file.png", "tofile.png"),
}
"""Paths that can be written to."""


def whole(draw: random.Random, most: int = 9, bold: float = 1.0) -> str:
    """A whole number as an argument; mostly between 1 and `most`, the more at an edge the bolder."""
    chance = draw.random()
    if chance > 0.25 * bold:
        return str(draw.randint(1, most))
    if chance > 0.05 * bold:
        return str(draw.choice(WHOLE_EDGES))
    return draw.choice((*NONSENSE, *REAL_EDGES, "1.5", "+3", "1e5", "١"))


def real(draw: random.Random, bold: float = 1.0) -> str:
    """A number as an argument."""
    chance = draw.random()
    if chance > 0.4 * bold:
        return f"{draw.choice((0.01, 0.1, 0.5, 1, 2, 10)) * draw.random():.3g}"
    if chance > 0.08 * bold:
        return draw.choice(REAL_EDGES)
    return draw.choice(NONSENSE)


def path(draw: random.Random, bold: float, option: str) -> str:
    """A path of the folder that every input starts with, or nonsense."""
    chance = draw.random()
    if chance > bold:
        return draw.choice(NEW.get(option, ("new", "deep/er/new")))
    if chance < 0.04 * bold:
        return draw.choice(NONSENSE)
    return draw.choices(list(PATHS), weights=list(PATHS.values()))[0]


def mutated(draw: random.Random, text: str) -> str:
    """A text with a few characters taken out, doubled or replaced."""
    letters = list(text)
    for _ in range(draw.randint(1, 3)):
        if not letters:
            break
        at = draw.randrange(len(letters))
        letters[at : at + 1] = draw.choice(([], [letters[at]] * 2, [draw.choice(":-+.,01x é\n")]))
    return "".join(letters)
