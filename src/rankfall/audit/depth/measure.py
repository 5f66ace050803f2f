"""Measure tokens while the model computes the next layer: few threads, a short queue, no growth with depth."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.audit.depth.capture import Place, capture
from rankfall.audit.depth.rows import DepthRow, Measured, Values, gather
from rankfall.audit.depth.sinks import find_sinks
from rankfall.linalg.threads import single_threaded_blas
from rankfall.measures import ALL_MEASURES
from rankfall.measures.views import Views, views_with_and_without

Real = Sequence[Tensor | None]
"""For each text which positions are real tokens, (n,) boolean; None where all are."""

Step = Callable[[int], None]


def measure_depth(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    real: Real,
    names: Sequence[list[str]],
    layers: Collection[int] | None = None,
    inside: bool = False,
    stack: str | None = None,
    without_sinks: bool = True,
    step: Step | None = None,
    seed: int = 0,
) -> list[DepthRow]:
    """Rows of all measures of all views at every boundary of one batched run, padding left out.

    `layers` limits what is measured (default: all); `without_sinks` repeats all measures without the sinks, where
    there are some. `step` is called with 1 for every text measured at a place.
    """
    with single_threaded_blas(), Workers() as workers:

        def on_tokens(place: Place, tokens: Tensor) -> None:
            if layers is not None and place.layer not in layers:
                return
            for text in range(tokens.shape[0]):
                kept = tokens[text] if real[text] is None else tokens[text][real[text]]
                workers.submit(to_host(kept), place, text, names[text], without_sinks)

        capture(model, inputs, on_tokens, inside=inside, stack=stack)
        return gather(workers.results(step), seed)


Ready = Callable[[], object]
"""Waits until tokens have arrived."""


def to_host(tokens: Tensor) -> tuple[Tensor, Ready]:
    """A copy in main memory, because the model is free to overwrite what it gave us; a GPU does not wait for it."""
    if not tokens.is_cuda:
        return tokens.detach().clone(), lambda: None
    copy = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    copy.copy_(tokens.detach(), non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return copy, arrived.synchronize


def measure_one(place: Place, text: int, tokens: Tensor, names: list[str], without_sinks: bool = True) -> Measured:
    """All measures of one text at one place."""
    sinks = find_sinks(tokens, text, names)
    apart = [sink.position for sink in sinks] if without_sinks else []
    with_all, without = views_with_and_without(tokens, apart)
    return Measured(place, text, _read(with_all), None if without is None else _read(without), tuple(sinks))


def _read(views: Views) -> Values:
    return {name: {one.name: float(one.of(profile)) for one in ALL_MEASURES} for name, profile in views.items()}


class Workers:
    """Threads that measure. At most a few token matrices wait; then the model waits."""

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = max(1, cores - 1)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="rankfall-measure")
        self._room = threading.BoundedSemaphore(2 * count)
        self._futures: list[Future[Measured]] = []

    def submit(
        self, delivered: tuple[Tensor, Ready], place: Place, text: int, names: list[str], without_sinks: bool
    ) -> None:
        self._room.acquire()
        future = self._pool.submit(self._run, delivered, place, text, names, without_sinks)
        future.add_done_callback(lambda _: self._room.release())
        self._futures.append(future)

    @staticmethod
    def _run(
        delivered: tuple[Tensor, Ready], place: Place, text: int, names: list[str], without_sinks: bool
    ) -> Measured:
        tokens, ready = delivered
        ready()
        with torch.inference_mode():
            return measure_one(place, text, tokens, names, without_sinks)

    def results(self, step: Step | None) -> list[Measured]:
        measured = []
        for future in self._futures:
            measured.append(future.result())
            if step is not None:
                step(1)
        return measured

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
