"""Something to compare a number with: random weights, shuffled tokens, random tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, reason_of, require_count
from rankfall.models import configuration as aliases
from rankfall.models.blocks import BlockStack, same_stack
from rankfall.models.calling import Inputs, as_calls
from rankfall.models.depth.measure import measure_depth
from rankfall.models.depth.rows import DepthRow
from rankfall.models.reset import fresh_weights, not_reset
from rankfall.models.texts import Batch, shuffled, with_random_tokens
from rankfall.models.twin import draw_seed, random_weights, separate_twin

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


@final
@dataclass(frozen=True, eq=False)
class Given:
    """What the model itself was run on: the arguments of its forward pass, or of several, which positions of each
    text are real, the tokens' names, and the stack of blocks that was measured. `batch` holds the token ids, where
    there are some; numbers have their texts on `text_axis`."""

    inputs: Inputs
    real: Sequence[Tensor | None]
    names: Sequence[list[str]]
    batch: Batch | None = None
    stack: BlockStack | None = None
    text_axis: int = 0

    def with_ids(self, batch: Batch) -> Given:
        """The same with other token ids; a decoder that was given the text's own ids is given the new ones."""
        if batch.calling is not None:
            return replace(self, inputs=batch.calling.calls(batch.ids, batch.real))
        (inputs,) = as_calls(self.inputs)
        before, after = inputs["input_ids"], batch.ids.to(inputs["input_ids"].device)
        changed = {
            name: after
            for name, value in inputs.items()
            if name == "input_ids" or (name == "decoder_input_ids" and torch.equal(value, before))
        }
        return replace(self, inputs={**inputs, **changed})


Change = Callable[[Given], Given]


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
    for draw in range(draws):
        own, wanted = draw_seed(seed, draw), few if draw == 0 else _spread(layers, 3)
        failed = {one.name for one in made if one.reason is not None}
        if "random_weights" not in failed:
            made.append(_random_weights(network, given, own, wanted, draw))
        for name, meaning, change in (
            token_changes(network, given.batch, own) if given.batch is not None else _number_changes(own)
        ):
            if name in failed:
                continue
            control = Control(name, meaning, draw=draw)
            try:
                made.append(_measured(control, network, change(given), own, wanted))
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


def token_changes(network: nn.Module, batch: Batch, seed: int) -> Iterator[tuple[str, str, Change]]:
    """Name, meaning and way of each control of a text."""
    fixed = torch.tensor(sorted(placeholders(getattr(network, "config", None))), dtype=torch.long)
    held = torch.isin(batch.ids, fixed)
    # Where an image or a sound goes into a text stays where it is.
    batch = replace(batch, special=batch.special | held)
    yield "shuffled_tokens", "the same tokens in random order", lambda given: given.with_ids(shuffled(batch, seed))

    def drawn(given: Given) -> Given:
        vocabulary = _vocabulary(network) if batch.calling is None else batch.calling.vocabulary
        if vocabulary is None:
            raise RequestError(
                required="a table of token embeddings, to draw tokens from",
                got="none",
                remedy="leave this control out",
            )
        made = with_random_tokens(batch, vocabulary, seed)
        return given.with_ids(replace(made, ids=torch.where(torch.isin(made.ids, fixed), batch.ids, made.ids)))

    yield "random_tokens", "tokens drawn uniformly from the vocabulary", drawn


def placeholders(config: Any) -> set[int]:
    """The ids that stand for an image, a video or a sound in a text."""
    table = config.to_dict() if hasattr(config, "to_dict") else {}
    return {
        value
        for name, value in table.items()
        if isinstance(value, int)
        and name.endswith(("_token_id", "_token_index"))
        and any(kind in name for kind in ("image", "video", "vision", "audio"))
    }


def _number_changes(seed: int) -> Iterator[tuple[str, str, Change]]:
    yield (
        "shuffled_inputs",
        "the same numbers of each input in random order",
        lambda given: _changed(given, _mixed, seed),
    )
    normal = "inputs drawn from a normal distribution with their mean and deviation"
    yield "random_inputs", normal, lambda given: _changed(given, _drawn, seed)


def _changed(given: Given, change: Callable[[Tensor, torch.Generator], Tensor], seed: int) -> Given:
    generator = torch.Generator().manual_seed(seed)

    def other(call: Mapping[str, Any]) -> dict[str, Any]:
        numbers = {
            name: torch.stack(
                [change(one.cpu(), generator) for one in value.unbind(given.text_axis)], given.text_axis
            ).to(value)
            for name, value in call.items()
            # Masks are no inputs to be changed: they say what is seen.
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1 and "mask" not in name
        }
        return {**call, **numbers}

    return replace(given, inputs=[other(call) for call in as_calls(given.inputs)])


def _mixed(one: Tensor, generator: torch.Generator) -> Tensor:
    return one.flatten()[torch.randperm(one.numel(), generator=generator)].reshape(one.shape)


def _drawn(one: Tensor, generator: torch.Generator) -> Tensor:
    return one.mean() + one.std() * torch.randn(one.shape, generator=generator)


def _vocabulary(network: Any) -> int | None:
    """How many tokens the model has embeddings for."""
    try:
        table = network.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        # Models of two halves do not say which table is theirs. The longest one is that of the words where no
        # configuration has their number.
        tables = [one.num_embeddings for one in network.modules() if isinstance(one, nn.Embedding)]
        of_text = network.config.get_text_config()
        known = (aliases.number(one, aliases.VOCABULARY) for one in (network.config, of_text))
        return next((number for number in known if number), max(tables, default=None))
    return getattr(table, "num_embeddings", None)


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
