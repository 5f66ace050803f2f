"""A class without its line in the catalogue, or a line that does not say what the class says, fails here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import MISSING, fields

import pytest

import rankfall
from rankfall import catalogue
from rankfall.constructions.base import Construction
from rankfall.equilibria.families import EquilibriumFamily
from rankfall.errors import RequestError
from rankfall.figures.base import Reproduction
from rankfall.masks import Explicit, Mask, Window
from rankfall.measures.base import Measure
from rankfall.models.heads.weights import WeightLayout
from rankfall.models.load.named import NamedModel
from rankfall.norms import LayerNorm, Norm
from rankfall.registry import Registry, made
from rankfall.tasks.base import Task
from rankfall.training.engines.base import Engine

BASES = {
    "MASKS": Mask,
    "NORMS": Norm,
    "TASKS": Task,
    "CONSTRUCTIONS": Construction,
    "FAMILIES": EquilibriumFamily,
    "ENGINES": Engine,
}
# Kinds whose items are objects, not classes.
OBJECTS = {"MEASURES": Measure, "LAYOUTS": WeightLayout, "NAMED_MODELS": NamedModel}
# A mask given as a matrix has no spelling.
WITHOUT_A_NAME = {Explicit}
REGISTRIES = {name: value for name, value in vars(catalogue).items() if isinstance(value, Registry)}


def modules() -> Iterator[str]:
    for one in pkgutil.walk_packages(rankfall.__path__, "rankfall."):
        if not one.name.endswith(("__main__", "explorer.page")):
            yield one.name


def concrete(base: type) -> set[type]:
    for name in modules():
        if name.startswith(base.__module__.rpartition(".")[0]):
            importlib.import_module(name)
    found, queue = set(), [base]
    while queue:
        for kind in queue.pop().__subclasses__():
            queue.append(kind)
            if not inspect.isabstract(kind) and kind.__module__.startswith("rankfall."):
                found.add(kind)
    return found - WITHOUT_A_NAME


@pytest.mark.parametrize("name", BASES)
def test_every_class_is_listed(name: str) -> None:
    assert set(REGISTRIES[name]) == concrete(BASES[name])


def test_every_figure_is_listed() -> None:
    loaded = [importlib.import_module(name) for name in modules() if name.startswith("rankfall.figures.")]
    found = [value for module in loaded for value in vars(module).values() if isinstance(value, Reproduction)]
    assert sorted(one.id for one in found) == sorted(catalogue.FIGURES.names)
    assert [one.id for one in catalogue.FIGURES] == list(catalogue.FIGURES.names)


@pytest.mark.parametrize("name", OBJECTS)
def test_every_object_is_listed_under_its_name(name: str) -> None:
    kind = OBJECTS[name]
    room = kind.__module__.rpartition(".")[0]
    loaded = [importlib.import_module(one) for one in modules() if one.startswith(room)]
    written = {id(value): value for module in loaded for value in vars(module).values() if isinstance(value, kind)}
    assert {id(one) for one in REGISTRIES[name]} == {*written}
    assert [one.name for one in REGISTRIES[name]] == list(REGISTRIES[name].names)


@pytest.mark.parametrize("name", BASES)
def test_names_are_those_of_the_classes(name: str) -> None:
    registry = REGISTRIES[name]
    assert [kind.name for kind in registry] == list(registry.names)


def spelled(kind: Any) -> str:
    """How an argument names a dataclass of numbers: `name:FIELD`, or `name[:FIELD]` where the field has a default."""
    parts = ((":" + one.name.upper(), one.default is MISSING) for one in fields(kind))
    return str(kind.name) + "".join(part if needed else f"[{part}]" for part, needed in parts)


@pytest.mark.parametrize("name", ["MASKS", "NORMS", "TASKS"])
def test_spellings_are_those_of_the_fields(name: str) -> None:
    registry = REGISTRIES[name]
    assert [registry.spelling(kind.name) for kind in registry] == [spelled(kind) for kind in registry]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"a mask among complete, causal, .*; got casual; did you mean causal\?"):
        catalogue.MASKS["casual"]
    with pytest.raises(RequestError, match="got zzz; for example causal or window:4"):
        catalogue.MASKS["zzz"]
    with pytest.raises(RequestError, match="got nothing"):
        catalogue.MASKS[""]


def test_items_are_made_from_their_spelling() -> None:
    assert made(catalogue.MASKS, " window:4 ") == Window(4)
    assert made(catalogue.NORMS, "layer:1e-5") == LayerNorm(1e-5)
    assert made(catalogue.NORMS, "layer") == LayerNorm()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window", "a mask written window:WIDTH; got window; give one number"),
        ("causal:3", "a mask written causal; got causal:3; give no number"),
        ("window:x", "numbers in window:WIDTH; got window:x; write a whole number instead of 'x'"),
        ("dilated:4", "a mask written dilated:WIDTH:STEP; got dilated:4; give 2 numbers"),
        ("random:x", "got random:x; write a number instead of 'x'"),
        ("random:0.5:1:2", r"random:PROBABILITY\[:SEED\]; got random:0.5:1:2; give 1 to 2 numbers"),
    ],
)
def test_wrong_numbers_are_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        made(catalogue.MASKS, text)


def test_completion_and_choices_import_nothing() -> None:
    lazy: Registry[object] = Registry("thing", {"alpha:N": "no.such:Thing", "beta": "nor.this:One"}, example="beta")
    assert lazy.complete("al") == ["alpha"]
    assert lazy.choices == "alpha:N or beta"
    assert "beta" in lazy
    assert len(lazy) == 2
