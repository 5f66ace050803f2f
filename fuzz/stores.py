"""Stores of runs in which files were damaged, taken away or replaced, and the commands that read them."""

from __future__ import annotations

import random
from typing import Any

from fuzz import values
from fuzz.case import Case, Edit

FILES = (
    "config.json",
    "manifest.json",
    "summary.parquet",
    "environment.json",
    "history.parquet",
    "weights.safetensors",
)
EDGES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63,
    10**30,
    1e308,
    "",
    "x",
    [],
    {},
    "[/b]",
    "\x1b[31m",
    "<gone>",
    [1],
    "NaN",
)
KEYS = (
    ["version"],
    ["format"],
    ["files"],
    ["id"],
    ["rank"],
    ["dim"],
    ["seed"],
    ["task"],
    ["schema"],
    ["time"],
    ["new"],
)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("runs", "--store", "runs"),
    ("runs", "--store", "runs", "--verify"),
    ("runs", "--store", "runs", "--verify", "--set-aside"),
    ("runs", "--store", "runs", "--sql", "select * from runs"),
    ("runs", "--store", "runs", "--sql", "select count(*) from history"),
    ("runs", "--store", "runs", "--where", "rank<5"),
    ("runs", "--store", "runs", "--export-results", "new"),
    ("runs", "--store", "runs", "--csv", "new.csv"),
    ("runs", "--store", "fresh", "--import", "results"),
    ("plan", "--width", "8", "--no-time", "--store", "runs"),
    ("sweep", "grid.toml", "--dry-run", "--store", "runs"),
    ("sweep", "grid.toml", "--dry-run", "--store", "runs", "--results", "results"),
)


def store(draw: random.Random, runs: tuple[str, ...]) -> Case:
    """A damaged store and a command; `runs` are the folders of its runs."""
    command = draw.choice(COMMANDS)
    edits = tuple(_edit(draw, runs) for _ in range(draw.choice((1, 1, 2, 3))))
    return Case((*command, *(["--json"] if draw.random() < 0.4 else [])), "store", edits)


OTHERS = (
    *("runs/store.json", "results/a.csv", "results/a.json", "runs/.claims", "runs/.checkpoints"),
    *("runs/.checkpoints/x", "runs/.checkpoints/x/checkpoint.json", "runs/.partial", "runs/.damaged"),
)
REPLACEMENTS = (
    *(("remove",), ("folder",), ("fifo",), ("link", "/dev/zero"), ("link", "nowhere"), ("size", 2**33)),
    *(("write", text) for text in ("", "{}", "[]", "null", "[" * 10_000, *values.NONSENSE[:6])),
)


def _edit(draw: random.Random, runs: tuple[str, ...]) -> Edit:
    folder = draw.choice(runs)
    path = f"{folder}/{draw.choice(FILES)}"
    if draw.random() > 0.4:
        path = draw.choice((*OTHERS, folder, f"runs/.claims/{folder[5:]}"))
    if path.endswith(".json") and draw.random() < 0.4:
        return [path, "set", draw.choice(KEYS), draw.choice(EDGES)]
    chance = draw.random()
    if chance < 0.2:
        return [path, "cut", draw.random()]
    if chance < 0.5:
        return [path, "flip", draw.random(), draw.randint(1, 255)]
    return [path, *draw.choice((*REPLACEMENTS, ("link", path)))]
