"""All measures at every boundary of one batched run, in rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from rankfall.audit.depth.capture import Place, capture
from rankfall.audit.depth.rows import DepthRow, Measured, Values, gather
from rankfall.audit.depth.sinks import find_sinks
from rankfall.audit.depth.workers import Workers
from rankfall.linalg.scratch import Scratch
from rankfall.linalg.threads import single_threaded_blas
from rankfall.measures import ALL_MEASURES
from rankfall.measures.views import Views, together, views_with_and_without

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
    memory = threading.local()

    def measured(place: Place, text: int, tokens: Tensor) -> Measured:
        if not hasattr(memory, "scratch"):
            memory.scratch = Scratch()
        return measure_one(place, text, tokens, names[text], without_sinks, memory.scratch)

    done = (lambda: None) if step is None else (lambda: step(1))
    workers: Workers[Measured] = Workers(done)
    with single_threaded_blas(), workers:

        def on_tokens(place: Place, tokens: Tensor) -> None:
            if layers is not None and place.layer not in layers:
                return
            for text in range(tokens.shape[0]):
                kept = tokens[text] if real[text] is None else tokens[text][real[text]]
                workers.submit(kept, partial(measured, place, text))

        capture(model, inputs, on_tokens, inside=inside, stack=stack)
        return gather(workers.results(), seed)


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
