"""All measures at every boundary of one batched run, in rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.linalg.scratch import Scratch
from rankfall.linalg.threads import single_threaded_blas
from rankfall.measures.catalogue import ALL_MEASURES
from rankfall.measures.views.three import Views, views_with_and_without
from rankfall.measures.views.together import together
from rankfall.models.blocks import choose_stack
from rankfall.models.depth.capture import Place, capture
from rankfall.models.depth.companies import ahead
from rankfall.models.depth.on_device import DeviceRoute
from rankfall.models.depth.passes import passes
from rankfall.models.depth.rows import DepthRow, Measured, Values, gather
from rankfall.models.depth.sinks import find_sinks
from rankfall.models.depth.workers import Workers

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
    at_once: int | None = None,
    step: Step | None = None,
    seed: int = 0,
) -> list[DepthRow]:
    """Rows of all measures of all views at every boundary, padding left out.

    `layers` limits what is measured (default: all); `without_sinks` repeats all measures without the sinks, where
    there are some. At most `at_once` texts run through the model together (default: all in one run). `step` is called
    with 1 for every text measured at a place.
    """
    memory = threading.local()

    def measured(place: Place, text: int, tokens: Tensor) -> Measured:
        if not hasattr(memory, "scratch"):
            memory.scratch = Scratch()
        return measure_one(place, text, tokens, names[text], without_sinks, memory.scratch)

    done = (lambda: None) if step is None else (lambda: step(1))
    chosen = choose_stack(model, stack)
    # The embeddings, every block's output, and that of the last once more behind the final norm.
    places = len(chosen.blocks) + 2 if layers is None else len(layers)
    device = DeviceRoute(names, real, without_sinks=without_sinks, places=places, done=done)
    workers: Workers[Measured] = Workers(done)
    with single_threaded_blas(), workers, contextlib.closing(device):

        def on_tokens(first: int, place: Place, tokens: Tensor) -> None:
            if layers is not None and place.layer not in layers:
                return
            if DeviceRoute.suits(tokens):
                device.take(place, tokens, first)
                return
            for text, given in enumerate(tokens, start=first):
                kept = given if real[text] is None else given[real[text]]
                workers.submit(kept, partial(measured, place, text))

        where = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        with ahead(where):
            for first, some in passes(inputs, len(names), at_once):
                capture(model, some, partial(on_tokens, first), inside=inside, stack=chosen)
        return gather([*workers.results(), *device.results()], seed, where)


def measure_one(
    place: Place,
    text: int,
    tokens: Tensor,
    names: list[str],
    without_sinks: bool = True,
    scratch: Scratch | None = None,
) -> Measured:
    """All measures of one text at one place; `scratch` is working memory of this thread."""
    scratch = Scratch() if scratch is None else scratch
    sinks = find_sinks(tokens, text, names, scratch)
    apart = [sink.position for sink in sinks] if without_sinks else []
    with_all, without = views_with_and_without(tokens, apart, scratch)
    return Measured(place, text, _read(with_all), None if without is None else _read(without), tuple(sinks))


def _read(views: Views) -> Values:
    batch = together(views.values())
    columns = {one.name: one.of(batch).tolist() for one in ALL_MEASURES}
    return {view: {name: column[row] for name, column in columns.items()} for row, view in enumerate(views)}
