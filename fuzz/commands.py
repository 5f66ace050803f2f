"""Command lines: the options of every verb are read from its definition, so that a new one is tried at once."""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from fuzz import values
from fuzz.case import Case, pick
from rankfall.catalogue import ENGINES, FAMILIES, FIGURES, MASKS, NORMS, TASKS, VERBS

# How often each verb is tried: the more so the less one costs. The page is a server; only its refusals are tried.
SHARES = {"simulate": 30, "bounds": 20, "equilibrium": 20, "plan": 16, "runs": 14, "sweep": 12, "survey": 2}
SHARES |= {"audit": 6, "compare": 2, "coverage": 1, "reproduce": 0.1, "explore": 1}
BOLD = (0.1, 0.4, 1.0)
"""How often values are at an edge: where all are bold the first is refused and none of the others is looked at."""
GIVEN = {"audit": 0.97, "compare": 0.97, "survey": 0.9}
"""How often a verb gets arguments that it can do without, where its own take seconds; 0.6 elsewhere."""
WORDS: dict[str, Callable[[], tuple[str, ...]]] = {
    "mask": lambda: MASKS.names,
    "norm": lambda: NORMS.names,
    "family": lambda: FAMILIES.names,
    "task": lambda: TASKS.names,
    "engine": lambda: ENGINES.names,
    "figures": lambda: FIGURES.names,
    "value": lambda: ("identity", "orthogonal", "gaussian", "counterexample"),
    "query_key": lambda: ("random", "xavier", "orthogonal", "zero"),
    "placement": lambda: ("post", "pre"),
    "values": lambda: ("matrix", "scalar"),
    "target": lambda: ("nearest", "biased"),
    "feed_forward": lambda: ("gated", "plain", "none"),
    "device": lambda: ("cpu", "cpu", "cpu", "cuda", "cuda:99", "meta", "tpu"),
    "dtype": lambda: ("float32", "float64", "bfloat16", "float16", "int8"),
    "scale": lambda: ("smoke", "huge"),
    "models": lambda: ("model", "model", "model", "nothing", "org/name", "folder", "file.csv", "binary", "mod*"),
    "model": lambda: ("model", "model", "model", "nothing", "org/name", "folder", "file.csv", "binary"),
    "first": lambda: ("model", "nothing"),
    "second": lambda: ("model", "file.csv"),
    "model_types": lambda: ("gpt2", "llama", "bert", "nothing"),
    "types": lambda: ("nothing", "vit"),
    "outcome": lambda: ("exact", "partial", "nothing"),
    "layers": lambda: ("0,1", "1", "0-2", "0-999999999", "5-1", "99"),
    "stack": lambda: ("encoder", "decoder", "nothing"),
    "fail_if": lambda: (
        "effective_rank < 4",
        "mu > 0 at last",
        "rank <",
        "nothing < 1",
        "mu < 1e999",
        "mu < nan at 9",
    ),
    "where": lambda: ("rank=8", "mse_best<0.1", "rank", "rank<", "nothing=1", "rank=1e999", "seed<nan"),
    "sql": lambda: (
        "select * from runs",
        "select 1/0",
        "select",
        "drop table runs",
        "select rank, count(*) from runs group by 1",
    ),
    "grid": lambda: ("smoke", "quick", "nothing", "file.csv", "binary", "folder", "fifo", "grid.toml"),
    "link": lambda: ("x", "http://127.0.0.1:1/?a=b", "?mask=nothing"),
    "address": lambda: ("nothing",),
}
USUAL = {"polish": "layer.json", "text": "text.txt", "store": "runs", "out": "new", "export_results": "new"}
# Arguments without which a verb would serve, train or measure for minutes.
ALWAYS = {
    "sweep": ("--dry-run",),
    "explore": ("--port", "-1"),
    "reproduce": ("--scale", "smoke"),
}
NEVER = {
    ("sweep", "engine"),
    ("sweep", "address"),
    ("audit", "allow_download"),
    ("audit", "engine"),
    ("audit", "address"),
    ("reproduce", "every"),
    ("plan", "seconds"),
}


@dataclass(frozen=True)
class Parameter:
    """What a verb takes: its name, how it is spelled, its kind, and whether it is an argument without a name."""

    name: str
    spellings: tuple[str, ...]
    kind: type
    several: bool
    argument: bool
    needed: bool


@cache
def parameters(verb: str) -> tuple[Parameter, ...]:
    """The parameters of a verb: spelled as the command takes them, of the kind that its signature says."""
    hints = typing.get_type_hints(VERBS[verb])
    found = []
    for one in _parser().commands[verb].params:  # type: ignore[attr-defined]
        base = hints[one.name]
        kinds = [kind for kind in typing.get_args(base) if kind is not types.NoneType] if _union(base) else [base]
        several = typing.get_origin(kinds[0]) is list
        kind = typing.get_args(kinds[0])[0] if several else kinds[0]
        argument = one.param_type_name == "argument"
        found.append(Parameter(one.name, (*one.opts, *one.secondary_opts), kind, several, argument, one.required))
    return tuple(found)


@cache
def _parser() -> Any:
    from rankfall.cli.main import app

    return typer.main.get_command(app)


def _union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def command(draw: random.Random) -> Case:
    """A random command line."""
    verb = pick(draw, SHARES)
    chosen: list[str] = [verb]
    busy, bold = draw.choice((0.08, 0.2, 0.4)), draw.choice(BOLD)
    for one in parameters(verb):
        if (verb, one.name) in NEVER or one.name == "json":
            continue
        if not one.needed and draw.random() > (GIVEN.get(verb, 0.6) if one.argument else busy):
            continue
        if one.needed and draw.random() < 0.02:
            continue
        for _ in range(draw.randint(1, 3) if one.several and draw.random() < 0.2 else 1):
            chosen += _given(draw, one, bold)
    chosen += _kept_small(verb, chosen)
    if verb == "bounds" and draw.random() < 0.9:
        chosen += [part for option in ("--rank", "--heads") if option not in chosen for part in (option, "2")]
    chosen += ALWAYS.get(verb, ())
    if draw.random() < 0.4:
        chosen.append("--json")
    if draw.random() < 0.02:
        chosen.insert(draw.randrange(len(chosen) + 1), draw.choice(values.NONSENSE))
    return Case(tuple(chosen))


def _given(draw: random.Random, one: Parameter, bold: float) -> list[str]:
    if one.kind is bool:
        return [draw.choice(one.spellings)]
    text = _value(draw, one, bold)
    return [text] if one.argument else [draw.choice(one.spellings), text]


def _value(draw: random.Random, one: Parameter, bold: float) -> str:
    if one.kind is int:
        return values.whole(draw, 2 if one.name in ("seeds", "passages", "thin") else 12, bold)
    if one.kind is float:
        return values.real(draw, bold)
    if one.kind is Path:
        return USUAL[one.name] if one.name in USUAL and draw.random() < 0.5 else values.path(draw, bold, one.name)
    words = WORDS[one.name]() if one.name in WORDS else values.NONSENSE
    chance, word = draw.random(), draw.choice(words)
    if one.name in ("mask", "norm", "task"):
        word += "".join(
            f":{values.whole(draw, 9, bold) if draw.random() < 0.8 else values.real(draw, bold)}"
            for _ in range(draw.choice((0, 0, 1, 2)))
        )
        if one.name == "mask" and draw.random() < 0.1:
            word += "+" + draw.choice(words)
    if chance > 0.15 * bold:
        return word
    return values.mutated(draw, word) if chance > 0.05 * bold else draw.choice(values.NONSENSE)


def _kept_small(verb: str, chosen: list[str]) -> list[str]:
    """Sizes that the draw left at defaults which take seconds."""
    small = {
        "simulate": {"--layers": "20", "--tokens": "6", "--width": "4", "--mask": "causal"},
        "plan": {"--time": "--no-time"},
        "audit": {"--tokens": "8", "--passages": "1"},
        "compare": {"--tokens": "8", "--passages": "1"},
        "equilibrium": {"--layers": "20", "--draws": "2"},
    }
    added: list[str] = []
    for option, value in small.get(verb, {}).items():
        if option not in chosen and not (option == "--width" and "--dim" in chosen):
            added += [value] if value.startswith("--") else [option, value]
    if verb == "plan" and "--time" in chosen:
        added += ["--seconds", "0.1"]
    return added
