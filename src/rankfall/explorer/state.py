"""What a control of the page may be set to: one description serves the widget, the link and its check."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar, final
from urllib.parse import parse_qsl, urlencode, urlsplit

from rankfall.catalogue import NORMS
from rankfall.dynamics.weights import ALL_QUERY_KEYS, ALL_VALUES
from rankfall.errors import RequestError
from rankfall.masks import parse_mask
from rankfall.norms import PLACEMENTS

Setting: TypeAlias = str | int | float


@final
@dataclass(frozen=True)
class Knob:
    """A number within its steps' ends. A link may name any number between them; the slider then has it as a step."""

    key: str
    label: str
    steps: tuple[float, ...]

    def parse(self, text: str, like: Setting) -> Setting:
        """The number that the text writes, a whole one where the default is whole."""
        number = int(text) if isinstance(like, int) else float(text)
        if not self.steps[0] <= number <= self.steps[-1]:
            raise ValueError
        return number

    def stops(self, value: float) -> list[float]:
        """The slider's steps, with the given value among them."""
        return sorted({*self.steps, value})


@final
@dataclass(frozen=True)
class Choice:
    """One of several names."""

    key: str
    label: str
    names: tuple[str, ...]

    def parse(self, text: str, like: Setting) -> Setting:
        """The name itself, if it is one of them."""
        if text not in self.names:
            raise ValueError
        return text


@final
@dataclass(frozen=True)
class Words:
    """Text of a grammar of its own, which `check` refuses with an error."""

    key: str
    label: str
    check: Callable[[str], object]

    def parse(self, text: str, like: Setting) -> Setting:
        """The text, once checked."""
        try:
            self.check(text)
        except RequestError as error:
            raise ValueError from error
        return text


Control: TypeAlias = Knob | Choice | Words


def control(kind: type[Control], default: Setting, key: str, label: str, allowed: Any) -> Any:
    """A field of a state, with its default and what it may be set to."""
    return field(default=default, metadata={"control": kind(key, label, allowed)})


knob, choice, words = (functools.partial(control, kind) for kind in (Knob, Choice, Words))


def whole(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    """Every so many whole numbers, both ends included."""
    return tuple(range(first, last + 1, step))


TABS = ("Token rank", "Head rank", "Stored")
VIEWS = ("2-D", "3-D")
# Steps of a slider that are even in the logarithm.
DEPTHS = (*whole(1, 64), 80, 96, 128, 192, 256)
TEMPERATURES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SINKS = ("none", "-4", "-2", "-1", "0", "1", "2", "4", "8")
DIMS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@final
@dataclass(frozen=True)
class TokenState:
    """One simulation: what `rankfall simulate` takes, and which layer and view are shown of it."""

    mask: str = words("causal", "mask", "mask", parse_mask)
    tokens: int = knob(32, "tokens", "tokens N", whole(2, 128))
    width: int = knob(16, "width", "width d", whole(2, 64))
    temperature: float = knob(1.0, "temperature", "temperature", TEMPERATURES)
    norm: str = choice("none", "norm", "norm", list(NORMS.names))
    value: str = choice("orthogonal", "value", "value matrix", list(ALL_VALUES))
    residual: float = knob(0.0, "residual", "residual", [step / 20 for step in range(21)])
    depth: int = knob(40, "depth", "depth", DEPTHS)
    query_key: str = choice("random", "query_key", "queries and keys", list(ALL_QUERY_KEYS))
    heads: int = knob(1, "heads", "heads", whole(1, 8))
    placement: str = choice("post", "placement", "norm stands", PLACEMENTS)
    sink: str = choice("none", "sink", "sink's logit", SINKS)
    seed: int = knob(0, "seed", "seed", whole(0, 99))
    layer: int = knob(0, "layer", "layer shown", whole(0, 256))
    view: str = choice("2-D", "view", "view", VIEWS)


@final
@dataclass(frozen=True)
class HeadState:
    """One layer of heads, and the model around it that the planner counts."""

    dim: int = knob(64, "d", "width d", DIMS)
    rank: int = knob(8, "r", "rank r", whole(1, 1024))
    heads: int = knob(8, "H", "heads H", [2**power for power in range(21)])
    layers: int = knob(12, "L", "layers of the model", whole(1, 96))
    context: int = knob(1024, "N", "tokens of context", [2**power for power in range(5, 18)])


@final
@dataclass(frozen=True)
class StoredState:
    """What is picked among stored results: an audit's measure and view, and the axes of a picture of runs."""

    measure: str = choice(
        "effective_rank",
        "measure",
        "measure",
        (
            "effective_rank",
            "energy_rank",
            "first_direction_share",
            "relative_mu",
            "mean_abs_cosine",
            "stable_rank",
            "rank",
            "min_singular_value",
            "mu",
        ),
    )
    seen: str = choice("unit", "seen", "tokens as", ("unit", "raw", "centred", "centred_unit"))
    error: str = choice("mse_best", "error", "error of runs", ("mse_best", "mse_final", "mse_fresh"))


@final
@dataclass(frozen=True)
class PageState:
    """All of it. What is at its default stays out of the link."""

    tab: str = choice(TABS[0], "tab", "tab", TABS)
    token: TokenState = field(default_factory=TokenState)
    head: HeadState = field(default_factory=HeadState)
    stored: StoredState = field(default_factory=StoredState)


Part = TypeVar("Part", TokenState, HeadState, StoredState, PageState)


def controls(kind: type[Any]) -> dict[str, Control]:
    """The controls of a state's class, by the name of the field."""
    return {one.name: one.metadata["control"] for one in fields(kind) if "control" in one.metadata}


def to_query(state: PageState) -> dict[str, str]:
    """The settings that differ from the defaults, as a link's parameters."""
    query: dict[str, str] = {}
    for part in (state, state.token, state.head, state.stored):
        usual = type(part)()
        for name, control in controls(type(part)).items():
            value = getattr(part, name)
            if value != getattr(usual, name):
                query[control.key] = f"{value:.12g}" if isinstance(value, float) else str(value)
    return query


def from_query(query: Mapping[str, Any]) -> tuple[PageState, list[str]]:
    """The state that a link's parameters name, and a note for each one that could not be read.

    A link comes from somebody else: whatever is wrong in it is left at its default, never an error.
    """
    notes: list[str] = []
    page = PageState(
        token=_read(TokenState, query, notes),
        head=_read(HeadState, query, notes),
        stored=_read(StoredState, query, notes),
        **_settings(PageState, query, notes),
    )
    return page, notes


def keys() -> list[str]:
    """Every parameter that a link may have."""
    kinds = (PageState, TokenState, HeadState, StoredState)
    return [control.key for kind in kinds for control in controls(kind).values()]


def query_of(link: str) -> dict[str, str]:
    """The parameters of a whole link, or of what stands after its question mark; what is not ours is dropped."""
    parts = urlsplit(link)
    text = parts.query if parts.query or parts.scheme else link.removeprefix("?")
    known = set(keys())
    return {key: value for key, value in parse_qsl(text) if key in known}


def link_of(state: PageState) -> str:
    """What stands after the question mark of the link to a state."""
    return urlencode(to_query(state))


def _read(kind: type[Part], query: Mapping[str, Any], notes: list[str]) -> Part:
    return kind(**_settings(kind, query, notes))


def _settings(kind: type[Any], query: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    usual = kind()
    found: dict[str, Setting] = {}
    for name, control in controls(kind).items():
        given = query.get(control.key)
        if given is None:
            continue
        text = str(given[-1] if isinstance(given, list) else given)
        try:
            found[name] = control.parse(text, getattr(usual, name))
        except ValueError:
            notes.append(f"{control.key}={text[:40]}: not possible here, {getattr(usual, name)} is shown instead")
    return found
