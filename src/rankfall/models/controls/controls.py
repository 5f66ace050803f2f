"""Something to compare a number with: random weights, shuffled tokens, random tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, final

from torch import nn

from rankfall.errors import RequestError, reason_of, require_count
from rankfall.models.architectures import configuration as aliases
from rankfall.models.controls.changes import Given, input_changes
from rankfall.models.controls.reset import fresh_weights, not_reset
from rankfall.models.controls.twin import draw_seed, random_weights, separate_twin
from rankfall.models.depth.measure import measure_depth
from rankfall.models.depth.rows import DepthRow
from rankfall.models.inputs.texts import Batch
from rankfall.models.recording.blocks import same_stack

DRAWS = 3
# Each is several passes of the model: more than an interval can use.
MOST_DRAWS = 10_000
# Models are judged by the directions of tokens; in the other views one long token decides. What is left without the
# mean is compared by the ranks of fewer tokens.
COMPARED = ("unit",)
# Decompositions grow with the cube of the smaller side: beyond this size a control is measured at a few layers.
EVERY_LAYER_BELOW = 1024
LARGE_LAYERS = 5


@final
@dataclass(frozen=True)
class Control:
    """Depth rows of one draw of one control, of tokens scaled to length one; `reason` says why there are none.

    Draw 0 is measured at every layer, or, where the matrices are large, at a few layers spread evenly; further draws,
    which are there for the spread, at the embeddings, in the middle and at the end.
    """

    name: str
    meaning: str
    rows: tuple[DepthRow, ...] = ()
    reason: str | None = None
    draw: int = 0

    def record(self) -> dict[str, Any]:
        """The control as `--json` prints it."""
        depth = [row.record() for row in self.rows]
        head = {"name": self.name, "meaning": self.meaning, "draw": self.draw}
        return {**head, "depth": depth, "reason": self.reason}


def run_controls(
    network: nn.Module, given: Given, *, layers: int, seed: int = 0, draws: int = DRAWS
) -> tuple[Control, ...]:
    """Random weights on the same inputs, and the same weights on inputs without their order or meaning: shuffled and
    random tokens, or numbers, for a model of images or sound.

    Several draws of each; draw 0 is the one of `seed` itself, and what fails there is not drawn again. `layers` is
    how many the model has.
    """
    require_count("draws", draws, most=MOST_DRAWS)
    made: list[Control] = []
    few = _spread(layers, LARGE_LAYERS) if _size(network, given.batch) > EVERY_LAYER_BELOW else None
    changes = input_changes(network, given)
    for draw in range(draws):
        own, wanted = draw_seed(seed, draw), few if draw == 0 else _spread(layers, 3)
        failed = {one.name for one in made if one.reason is not None}
        if "random_weights" not in failed:
            made.append(_random_weights(network, given, own, wanted, draw))
        for change in changes:
            if change.name in failed:
                continue
            control = Control(change.name, change.meaning, draw=draw)
            try:
                made.append(_measured(control, network, change.of(own), own, wanted))
            except Exception as error:
                made.append(replace(control, reason=reason_of(error)))
    return tuple(made)


def _size(network: nn.Module, batch: Batch | None) -> int:
    """The smaller side of the matrices of tokens, as far as it is known."""
    width = aliases.number(getattr(network, "config", None), aliases.WIDTH) or EVERY_LAYER_BELOW
    return width if batch is None else min(width, batch.ids.shape[1])


def _spread(layers: int, count: int) -> set[int]:
    """So many layers, spread evenly from the embeddings to the last."""
    return {round(place * layers / (count - 1)) for place in range(count)}


def _random_weights(
    network: nn.Module, given: Given, seed: int, layers: Collection[int] | None, draw: int
) -> Control:
    control = Control("random_weights", "the same architecture with freshly initialised weights", draw=draw)
    try:
        if not hasattr(network, "_from_config"):
            with fresh_weights(network, seed) as left:
                control = replace(control, meaning=control.meaning + not_reset(left))
                return _measured(control, network, given, seed, layers)
        try:
            with random_weights(network, seed):
                return _measured(control, network, given, seed, layers)
        except RequestError:
            # Some parameters are initialised nowhere but where the library builds the model.
            return _measured(control, separate_twin(network, seed), given, seed, layers)
    except Exception as error:
        return replace(control, reason=reason_of(error))


def _measured(
    control: Control, network: nn.Module, given: Given, seed: int, layers: Collection[int] | None
) -> Control:
    rows = measure_depth(
        network,
        given.inputs,
        real=given.real,
        names=given.names,
        layers=layers,
        # By name: a twin has blocks of its own.
        stack=None if given.stack is None else same_stack(network, given.stack),
        chosen=COMPARED,
        without_sinks=False,
        seed=seed,
    )
    return replace(control, rows=tuple(rows))
