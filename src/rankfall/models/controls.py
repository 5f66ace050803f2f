"""Something to compare a number with: random weights, shuffled tokens, random tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, final

from torch import nn

from rankfall.errors import RequestError, require_count
from rankfall.models import configuration as aliases
from rankfall.models.depth.measure import measure_depth
from rankfall.models.depth.rows import DepthRow
from rankfall.models.texts import Batch, shuffled, with_random_tokens
from rankfall.models.twin import draw_seed, random_weights, separate_twin

DRAWS = 3
# Decompositions grow with the cube of the smaller side: beyond this size a control is measured at a few layers.
EVERY_LAYER_BELOW = 1024
LARGE_LAYERS = 5


@final
@dataclass(frozen=True)
class Control:
    """Depth rows of one draw of one control; `reason` says why there are none.

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
    network: nn.Module, batch: Batch, *, layers: int, seed: int = 0, draws: int = DRAWS
) -> tuple[Control, ...]:
    """The three controls on the same texts, several draws of each; draw 0 is the one of `seed` itself.

    `layers` is how many the model has.
    """
    require_count("draws", draws)
    vocabulary = _vocabulary(network)
    shuffle, uniform = "the same tokens in random order", "tokens drawn uniformly from the vocabulary"
    made: list[Control] = []
    width = aliases.number(getattr(network, "config", None), aliases.WIDTH) or EVERY_LAYER_BELOW
    few = _spread(layers, LARGE_LAYERS) if min(width, batch.ids.shape[1]) > EVERY_LAYER_BELOW else None
    for draw in range(draws):
        own, wanted = draw_seed(seed, draw), few if draw == 0 else _spread(layers, 3)
        made.append(_random_weights(network, batch, own, wanted, draw))
        mixed = shuffled(batch, own)
        made.append(_measured(Control("shuffled_tokens", shuffle, draw=draw), network, mixed, own, wanted))
        if vocabulary is not None:
            drawn = with_random_tokens(batch, vocabulary, own)
            made.append(_measured(Control("random_tokens", uniform, draw=draw), network, drawn, own, wanted))
        elif draw == 0:
            made.append(Control("random_tokens", uniform, reason="the model has no table of token embeddings"))
    return tuple(made)


def _spread(layers: int, count: int) -> set[int]:
    """So many layers, spread evenly from the embeddings to the last."""
    return {round(place * layers / (count - 1)) for place in range(count)}


def _vocabulary(network: Any) -> int | None:
    """How many tokens the model has embeddings for."""
    table = network.get_input_embeddings() if hasattr(network, "get_input_embeddings") else None
    return getattr(table, "num_embeddings", None)


def _random_weights(
    network: nn.Module, batch: Batch, seed: int, layers: Collection[int] | None, draw: int
) -> Control:
    control = Control("random_weights", "the same architecture with freshly initialised weights", draw=draw)
    try:
        with random_weights(network, seed):
            return _measured(control, network, batch, seed, layers)
    except RequestError:
        # Some parameters are initialised nowhere but where the library builds the model.
        return _with_separate_twin(control, network, batch, seed, layers)
    except Exception as error:
        return replace(control, reason=f"{type(error).__name__}: {str(error)[:120]}")


def _with_separate_twin(
    control: Control, network: nn.Module, batch: Batch, seed: int, layers: Collection[int] | None
) -> Control:
    try:
        return _measured(control, separate_twin(network, seed), batch, seed, layers)
    except Exception as error:
        return replace(control, reason=f"{type(error).__name__}: {str(error)[:120]}")


def _measured(
    control: Control, network: nn.Module, batch: Batch, seed: int, layers: Collection[int] | None
) -> Control:
    rows = measure_depth(
        network,
        batch.inputs(network),
        real=batch.kept(),
        names=batch.names,
        layers=layers,
        without_sinks=control.draw == 0,
        seed=seed,
    )
    return replace(control, rows=tuple(rows))
