"""Grid files: settings of a cell with values of every kind, as TOML that is well formed, or nearly so."""

from __future__ import annotations

import dataclasses
import json
import random

from fuzz import values
from fuzz.case import Case
from rankfall.training.cell import CHOICES, Cell

WORDS = {
    "task": ("farthest", "nearest", "biased", "in-context", "nothing", "nearest:2", "biased:1e999"),
    "norm": ("unit", "layer", "rms", "none", "layer:0", "layer:nan", "nothing"),
    "mask": ("complete", "causal", "window:2", "causal-window:4", "window:999999999999", "random:0.5:7", "nothing:1"),
    "recipe": ("published", "stable", "nothing"),
}
GOOD = {"points": "4", "dim": "8", "rank": "4", "feed_forward": "16", "batch": "4", "steps": "100"}


def grid(draw: random.Random) -> Case:
    """A random grid and the command that plans it."""
    bold = draw.choice((0.1, 0.3, 1.0))
    text = _settings(draw, bold, shared=True)
    for _ in range(draw.choice((0, 0, 1, 2, 3))):
        text += f"[[{'grid' if draw.random() < 0.97 else values.mutated(draw, 'grid')}]]\n{_settings(draw, bold)}"
    if draw.random() < 0.15 * bold:
        text = values.mutated(draw, text)
    options = [draw.choice(("--json", "--device=cpu")) for _ in range(draw.choice((0, 1, 1)))]
    for option, value in (
        ("--memory", values.real(draw)),
        ("--max-stack", values.whole(draw)),
        ("--threads", values.whole(draw, 2)),
    ):
        if draw.random() < 0.07:
            options += [option, value]
    arguments = ("sweep", "given.toml", "--dry-run", "--store", "runs", *options)
    return Case(arguments, "plain", (["given.toml", "write", text],))


def _settings(draw: random.Random, bold: float, shared: bool = False) -> str:
    lines = dict(GOOD) if shared and draw.random() < 0.8 else {}
    for one in dataclasses.fields(Cell):
        if draw.random() < 0.12:
            key = one.name if draw.random() > 0.02 * bold else values.mutated(draw, one.name)
            lines[key] = _entry(draw, one.name, str(one.type), bold)
    return "".join(f"{key} = {value}\n" for key, value in lines.items())


def _entry(draw: random.Random, name: str, kind: str, bold: float) -> str:
    count = draw.choice((0, 1, 2, 3, 3, 50)) if draw.random() < 0.3 else None
    found = [_scalar(draw, name, kind, bold) for _ in range(count or 1)]
    if count is None:
        return found[0]
    return f"[{', '.join(found[:count])}]"


def _scalar(draw: random.Random, name: str, kind: str, bold: float) -> str:
    chance = draw.random()
    if chance < 0.06 * bold:
        return draw.choice(
            ('"none"', "true", "[[1]]", "{a=1}", "1979-05-27", "nan", "inf", "-inf", "1e400", '"\\u001b[31m"')
        )
    if kind.startswith("str"):
        words = CHOICES.get(name) or WORDS.get(name, ("nothing",))
        return json.dumps(draw.choice(words) if chance > 0.16 * bold else draw.choice(values.NONSENSE[:-6]))
    if kind.startswith("float"):
        return values.real(draw, bold)
    if chance > 0.36 * bold:
        return str(draw.choice((1, 2, 4, 8, 100, 200)))
    return str(draw.choice((*values.WHOLE_EDGES, 10**18, 10**9, 720720 * 10**9, 2**61 - 1)))
