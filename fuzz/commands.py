"""Command lines: the options of every verb are read from its signature, so that a new one is tried at once."""

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
SHARES = {"simulate": 30, "bounds": 20, "equilibrium": 20, "plan": 16, "runs": 14, "sweep": 12, "survey": 4}
SHARES |= {"audit": 6, "compare": 2, "coverage": 1, "reproduce": 1, "explore": 1}
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
    """The parameters of a verb, from its signature."""
    import inspect

    function = VERBS[verb]
    defaults = inspect.signature(function).parameters
    found = []
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if name == "return" or hint is typer.Context:
            continue
        base, *notes = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
        kinds = [one for one in typing.get_args(base) if one is not types.NoneType] if _union(base) else [base]
        several = typing.get_origin(kinds[0]) is list
        kind = typing.get_args(kinds[0])[0] if several else kinds[0]
        argument = any(type(note).__name__ == "ArgumentInfo" for note in notes)
        given = next((getattr(note, "param_decls", None) for note in notes), None) or ()
        spelled = tuple(part for one in given for part in one.split("/")) or _usual(name, kind)
        needed = defaults[name].default is inspect.Parameter.empty
        found.append(Parameter(name, spelled, kind, several, argument, needed))
    return tuple(found)


def _union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _usual(name: str, kind: type) -> tuple[str, ...]:
    dashed = name.replace("_", "-")
    return (f"--{dashed}", f"--no-{dashed}") if kind is bool else (f"--{dashed}",)


def command(draw: random.Random) -> Case:
    """A random command line."""
    verb = pick(draw, SHARES)
    chosen: list[str] = [verb]
    busy = draw.choice((0.08, 0.2, 0.4))
    for one in parameters(verb):
        if (verb, one.name) in NEVER or one.name == "json":
            continue
        if not one.needed and draw.random() > (0.6 if one.argument else busy):
            continue
        if one.needed and draw.random() < 0.02:
            continue
        for _ in range(draw.randint(1, 3) if one.several and draw.random() < 0.2 else 1):
            chosen += _given(draw, verb, one)
    chosen += _kept_small(verb, chosen)
    chosen += ALWAYS.get(verb, ())
    if draw.random() < 0.4:
        chosen.append("--json")
    if draw.random() < 0.02:
        chosen.insert(draw.randrange(len(chosen) + 1), draw.choice(values.NONSENSE))
    return Case(tuple(chosen))


def _given(draw: random.Random, verb: str, one: Parameter) -> list[str]:
    if one.kind is bool:
        return [draw.choice(one.spellings)]
    text = _value(draw, verb, one)
    return [text] if one.argument else [draw.choice(one.spellings), text]


def _value(draw: random.Random, verb: str, one: Parameter) -> str:
    if one.kind is int:
        return values.whole(draw, 2 if one.name in ("seeds", "passages", "thin") else 12)
    if one.kind is float:
        return values.real(draw)
    if one.kind is Path:
        return _file(draw, one.name)
    words = WORDS[one.name]() if one.name in WORDS else values.NONSENSE
    chance, word = draw.random(), draw.choice(words)
    if one.name in ("mask", "norm", "task"):
        word += "".join(
            f":{values.whole(draw) if draw.random() < 0.8 else values.real(draw)}"
            for _ in range(draw.choice((0, 0, 1, 2)))
        )
        if one.name == "mask" and draw.random() < 0.1:
            word += "+" + draw.choice(words)
    if chance < 0.85:
        return word
    return values.mutated(draw, word) if chance < 0.95 else draw.choice(values.NONSENSE)


def _file(draw: random.Random, name: str) -> str:
    usual = {"polish": "layer.json", "text": "text.txt", "store": "runs", "out": "new", "export_results": "new"}
    if name in usual and draw.random() < 0.5:
        return usual[name]
    return values.path(draw)


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
