"""Many layers without a look at values: the same layer again, assuming that it chooses as the last one did.

On a GPU such layers are captured once and replayed: a layer of many small kernels then costs what they compute, not
what it costs to launch them. How many layers kept to the assumption is counted on the device and read once for all of
them; those behind the first that did not are thrown away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from typing import final

import torch
from torch import Tensor

from rankfall.dynamics.decisions import Answers, NotAssumableError, assuming
from rankfall.dynamics.mixing import SampleGroup
from rankfall.dynamics.split import Split, joined
from rankfall.dynamics.split_attention import split_step
from rankfall.dynamics.step import Rule
from rankfall.mechanism.heads import Heads

DEVICES = ("cuda",)
"""Where launches, not arithmetic, are what small layers cost; tests add the processor, which replays uncaptured."""
# Layers of one captured program. Its last state is copied to where the first began, once for all of them.
SMALL_NUMBERS, UNROLLED, UNROLLED_LARGE = 1 << 20, 4, 2
MOST_LAYERS = 32
"""Layers between two looks."""
MOST_KEPT = 1 << 24
"""Numbers of the states that are kept between two looks, unless one program has more."""
WORTH = 8
"""Layers that must be left for a capture to pay, which costs about as much as two of them by single launches."""
MOST_RECENT, MOST_RECENT_NUMBERS = 4, 1 << 26
"""Runs whose captured layers are kept for the next of the same, and what these may hold together: half a gigabyte."""
LONGEST_PAUSE = 32

MOVING = tuple(field.name for field in fields(Split) if field.name != "reference")
"""What a layer changes of a state."""


@final
@dataclass(frozen=True)
class LayerKind:
    """Weights, masks and rule that all layers of a run share."""

    heads: Heads
    groups: list[SampleGroup]
    rule: Rule


def recorded_layers(passed: range, thin: int, last: int) -> list[int]:
    """Those of the layers passed that are recorded: every `thin`-th, and the last of a run."""
    return [layer for layer in passed if layer % thin == 0 or layer == last]


@final
@dataclass(frozen=True)
class PassedLayers:
    """Layers that were passed: the state behind the last, and what is recorded of those that are, if any are."""

    reached: int
    state: Split
    layers: list[int]
    states: Split | None
    """Their states, one behind the other."""
    spreads: Tensor | None = None
    """Instead, where that is all one asks: log mu and log relative mu, (layers, 2, b)."""
    sound: bool = False
    """Whether it is known already that the state is of numbers, and of a size that can be carried on."""
    log_mu: Tensor | None = None
    """Of every layer passed, (layers, b), where that was asked for."""


@final
class RepeatedLayers:
    """`count` layers of the same weights, masks and choices as one program, captured where there is a GPU."""

    def __init__(self, state: Split, layer: LayerKind, answers: Answers, count: int, spreads: bool) -> None:
        self.layer, self.answers, self.count = layer, answers, count
        self.spreads: Tensor | None = torch.empty(count, 2, state.batch).to(state.residual) if spreads else None
        """Of each layer, where they are asked for: log mu and log relative mu."""
        self.start = _copied(state)
        device = state.residual.device
        self.alive = torch.ones((), dtype=torch.bool, device=device)
        self.held = torch.zeros((), dtype=torch.int64, device=device)
        self.states: list[Split] = []
        self._graph = self._captured(device) if device.type == "cuda" else None

    def load(self, state: Split) -> None:
        """Begin at this state, with nothing assumed wrongly yet. Its reference must be that of the first."""
        for name in MOVING:
            getattr(self.start, name).copy_(getattr(state, name))
        self.alive.fill_(True)
        self.held.zero_()

    def replay(self) -> None:
        """`count` layers on; their states are then `states`, until the next replay."""
        if self._graph is None:
            self.states = self._run(self.count)
        else:
            self._graph.replay()

    def _run(self, count: int) -> list[Split]:
        state, made = self.start, []
        for place in range(count):
            with assuming(self.answers) as assumed:
                state = split_step(state, self.layer.heads, self.layer.groups, self.layer.rule)
            if assumed.asked != len(self.answers):
                raise NotAssumableError("fewer questions than were assumed")
            self.alive.logical_and_(assumed.held())
            self.held.add_(self.alive)
            made.append(state)
            if self.spreads is not None:
                self.spreads[place].copy_(state.spreads())
        for name in MOVING:
            getattr(self.start, name).copy_(getattr(state, name))
        return made

    def _captured(self, device: torch.device) -> torch.cuda.CUDAGraph:
        here, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        aside.wait_stream(here)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(aside):
                self._run(1)  # whatever is loaded or compiled on first use
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self.states = self._run(self.count)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise NotAssumableError(str(error)) from error
        finally:
            here.wait_stream(aside)
        return graph


@final
class Replays:
    """The repeated layers of a run, by what they assume."""

    def __init__(self, layer: LayerKind, key: Hashable = None) -> None:
        self.layer, self.key = layer, key
        self.known: dict[tuple[Answers, bool], RepeatedLayers | None] = {}
        self.again = False
        """Whether a run before this one left it behind."""
        self._first: Answers | None = None
        self._answers: Answers | None = None
        self._left: Answers | None = None
        self._next: dict[Answers, Answers] = {}
        self._programs, self._pause, self._failed = 1, 0, 0

    @property
    def numbers(self) -> int:
        """What the states of its programs hold."""
        programs = [one for one in self.known.values() if one is not None]
        return sum((1 + one.count) * one.start.residual.numel() for one in programs)

    def begin_again(self) -> None:
        """A run like the one before: its first layer will choose as that one's did."""
        self._answers, self._left, self.again = self._first, None, True
        self._programs, self._pause, self._failed = 1, 0, 0

    def note(self, answers: Answers) -> None:
        """What the last layer chose, which the next is assumed to choose as well."""
        self._first = self._first or answers
        if self._left is not None and self._left != answers:
            self._next[self._left] = answers
        self._answers, self._left = answers, None

    def advance(self, layer: int, state: Split, layers: int, thin: int, spreads: bool) -> PassedLayers | None:
        """As many layers as keep to the assumption, at most up to `layers`; None when the next must look first.

        With `spreads`, and every layer recorded, nothing of their states is kept but these.
        """
        if self._pause > 0:
            self._pause -= 1
            return None
        spreads = spreads and thin == 1
        program = self._program(state, layers - layer, spreads)
        if program is None:
            return None
        count = program.count
        programs = min(self._programs, MOST_LAYERS // count, -(-(layers - layer) // count))
        if not spreads:
            programs = min(programs, max(1, MOST_KEPT // state.residual.numel()) * thin // count)
        programs = max(1, programs)
        program.load(state)
        states: dict[int, Split] = {}
        told: list[Tensor] = []
        for number in range(programs):
            program.replay()
            if program.spreads is not None:
                told.append(program.spreads.clone())
                continue
            for place, made in enumerate(program.states, start=layer + number * count + 1):
                if place <= layers and (place % thin == 0 or place == layers):
                    states[place] = _copied(made)
        reached = min(layers, layer + int(program.held))
        self._learn(reached == min(layers, layer + programs * count), reached - layer, programs)
        if reached == layer:
            return None
        last = states.get(reached) or _state_at(program, state, reached - layer, programs)
        if told:
            passed = list(range(layer + 1, reached + 1))
            return PassedLayers(reached, last, passed, None, torch.cat(told)[: len(passed)])
        found = [place for place in states if place <= reached]
        return PassedLayers(reached, last, found, joined([states[place] for place in found]) if found else None)

    def _program(self, state: Split, left: int, spreads: bool) -> RepeatedLayers | None:
        if self._answers is None:
            return None
        key = (self._answers, spreads)
        if key not in self.known:
            if left < (2 if self.again else WORTH):
                return None
            unrolled = UNROLLED if state.residual.numel() <= SMALL_NUMBERS else UNROLLED_LARGE
            try:
                self.known[key] = RepeatedLayers(state, self.layer, self._answers, min(unrolled, left), spreads)
            except NotAssumableError:
                self.known[key] = None
        return self.known[key]

    def _learn(self, all_held: bool, passed: int, programs: int) -> None:
        """Go further after success; after a failure look first, and for longer each time that nothing was gained."""
        if all_held:
            self._programs, self._failed = 2 * programs, 0
            return
        self._programs = 1
        self._failed = 0 if passed else min(2 * self._failed or 1, LONGEST_PAUSE)
        if passed and self._answers in self._next:
            self._answers = self._next[self._answers]  # as in the run before
            return
        self._left = self._answers if passed else None
        self._pause = max(1, self._failed)


def _state_at(program: RepeatedLayers, start: Split, passed: int, programs: int) -> Split:
    """The state so many layers behind the start, computed again where it is gone."""
    whole, place = divmod(passed - 1, program.count)
    if whole != programs - 1:
        program.load(start)
        for _ in range(whole + 1):
            program.replay()
    return _copied(program.states[place])


def _copied(state: Split) -> Split:
    """A state that the next replay does not write over."""
    return replace(state, **{name: getattr(state, name).clone() for name in MOVING})


_recent: OrderedDict[Hashable, Replays] = OrderedDict()


def borrowed(layer: LayerKind, state: Split, masks: Hashable) -> Replays:
    """What an earlier run of the same weights, masks and shapes left behind, or nothing captured yet."""
    key = (id(layer.heads), masks, layer.rule, *state.residual.shape, str(state.residual.device))
    found = _recent.pop(key, None)
    if found is None or found.layer.heads is not layer.heads:
        return Replays(layer, key)
    found.begin_again()
    return found


def given_back(replays: Replays) -> None:
    """Keep them for the next run of the same, as far as they hold little memory."""
    _recent[replays.key] = replays
    while len(_recent) > MOST_RECENT or sum(one.numbers for one in _recent.values()) > MOST_RECENT_NUMBERS:
        _recent.popitem(last=False)
