"""Token matrices that are measured together on their device, from the start to the numbers on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rankfall.linalg.device.packing import unpacked
from rankfall.linalg.lapack import Vector
from rankfall.models.depth.capture import Place
from rankfall.models.depth.facts import Station, station

STREAMS = 2
"""Companies that may be at work at once."""

Mask = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True, eq=False)
class Item:
    """One text's tokens (n, d) at one place, and which of them count (None: all)."""

    place: Place
    text: int
    tokens: Tensor
    kept: Mask | None
    without_sinks: bool = False


@final
@dataclass(frozen=True, eq=False)
class Company:
    """Items whose facts are on their way to the host, or there."""

    items: Sequence[Item]
    numbers: Tensor
    station: Station
    arrived: torch.cuda.Event | None

    @property
    def is_back(self) -> bool:
        return self.arrived is None or self.arrived.query()

    def facts(self) -> dict[str, Vector]:
        """As `facts_of` names them; waits for them."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return unpacked(self.numbers.numpy(), self.station.shapes)


@torch.inference_mode()
def start(items: Sequence[Item]) -> Company:
    """Begin the work on items of one shape, as soon as their device has got to them. Off GPUs, do it."""
    first = items[0].tokens
    room = 1 << (len(items) - 1).bit_length()
    if not first.is_cuda:
        place = station(room, *first.shape, first.dtype, first.device)
        _fill(place, items)
        return Company(items, place.run().clone(), place, None)
    stream = next(_streams(first.device))
    # A station serves one company at a time: those of the same stream come after each other.
    place = station(room, *first.shape, first.dtype, first.device, turn=stream.cuda_stream)
    stream.wait_stream(torch.cuda.current_stream(first.device))
    with torch.cuda.stream(stream):
        _fill(place, items)
        found = place.run()
        numbers = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        numbers.copy_(found, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
    return Company(items, numbers, place, arrived)


def _fill(place: Station, items: Sequence[Item]) -> None:
    torch.stack([item.tokens for item in items], out=place.tokens[: len(items)])
    if all(item.kept is None for item in items):
        place.kept.fill_(1.0)
        return
    everything = np.ones(place.kept.shape[1])
    masks = np.stack([everything if item.kept is None else item.kept.astype(np.float64) for item in items])
    place.kept[: len(items)] = torch.from_numpy(masks).to(place.kept.device)


@contextlib.contextmanager
def ahead(device: torch.device) -> Iterator[None]:
    """Inside, what runs on this device goes before all companies: each of its many small steps would else queue up
    behind theirs."""
    if device.type != "cuda":
        yield
        return
    stream, before = _first_in_line(device), torch.cuda.current_stream(device)
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)


@cache
def _first_in_line(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)


@cache
def _streams(device: torch.device) -> cycle[torch.cuda.Stream]:
    """Always the same ones, in turn."""
    return cycle([torch.cuda.Stream(device) for _ in range(STREAMS)])
