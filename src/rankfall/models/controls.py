"""Something to compare a number with: random weights, shuffled tokens, random tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, reason_of
from rankfall.models import configuration as aliases
from rankfall.models.blocks import BlockStack, same_stack
from rankfall.models.depth.measure import measure_depth
from rankfall.models.depth.rows import DepthRow
from rankfall.models.texts import Batch, shuffled, with_random_tokens


@final
@dataclass(frozen=True)
class Control:
    """Depth rows of one control; `reason` says why there are none."""

    name: str
    meaning: str
    rows: tuple[DepthRow, ...] = ()
    reason: str | None = None

    def record(self) -> dict[str, Any]:
        """The control as `--json` prints it."""
        depth = [row.record() for row in self.rows]
        return {"name": self.name, "meaning": self.meaning, "depth": depth, "reason": self.reason}


@final
@dataclass(frozen=True, eq=False)
class Given:
    """What the model itself was run on: the arguments of its forward pass, which positions of each text are real, the
    tokens' names, and the stack of blocks that was measured. `batch` holds the token ids, where there are some."""

    inputs: Mapping[str, Any]
    real: Sequence[Tensor | None]
    names: Sequence[list[str]]
    batch: Batch | None = None
    stack: BlockStack | None = None

    def with_ids(self, batch: Batch) -> Given:
        """The same with other token ids; a decoder that was given the text's own ids is given the new ones."""
        before, after = self.inputs["input_ids"], batch.ids.to(self.inputs["input_ids"].device)
        changed = {
            name: after
            for name, value in self.inputs.items()
            if name == "input_ids" or (name == "decoder_input_ids" and torch.equal(value, before))
        }
        return replace(self, inputs={**self.inputs, **changed})


def run_controls(network: nn.Module, given: Given, *, seed: int = 0) -> tuple[Control, ...]:
    """Random weights on the same inputs, and the same weights on inputs without their order or meaning: shuffled and
    random tokens, or numbers, for a model of images or sound."""
    made = [_random_weights(network, given, seed)]
    for name, meaning, change in (
        token_changes(network, given.batch, seed) if given.batch is not None else _number_changes(seed)
    ):
        try:
            made.append(_measured(name, meaning, network, change(given), seed))
        except Exception as error:
            made.append(Control(name, meaning, reason=reason_of(error)))
    return tuple(made)


Change = Callable[[Given], Given]


def token_changes(network: nn.Module, batch: Batch, seed: int) -> Iterator[tuple[str, str, Change]]:
    """Name, meaning and way of each control of a text."""
    fixed = torch.tensor(sorted(placeholders(getattr(network, "config", None))), dtype=torch.long)
    held = torch.isin(batch.ids, fixed)
    # Where an image or a sound goes into a text stays where it is.
    batch = replace(batch, special=batch.special | held)
    yield "shuffled_tokens", "the same tokens in random order", lambda given: given.with_ids(shuffled(batch, seed))

    def drawn(given: Given) -> Given:
        vocabulary = _vocabulary(network)
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
    numbers = {
        name: torch.stack([change(one.cpu(), generator) for one in value]).to(value)
        for name, value in given.inputs.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1
    }
    return replace(given, inputs={**given.inputs, **numbers})


def _mixed(one: Tensor, generator: torch.Generator) -> Tensor:
    return one.flatten()[torch.randperm(one.numel(), generator=generator)].reshape(one.shape)


def _drawn(one: Tensor, generator: torch.Generator) -> Tensor:
    return one.mean() + one.std() * torch.randn(one.shape, generator=generator)


def _vocabulary(network: Any) -> int | None:
    """How many tokens the model has embeddings for."""
    try:
        table = network.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        # Models of two halves do not say which table is theirs; the longest one is that of the words.
        tables = [one.num_embeddings for one in network.modules() if isinstance(one, nn.Embedding)]
        return aliases.number(network.config, aliases.VOCABULARY) or max(tables, default=None)
    return getattr(table, "num_embeddings", None)


def _random_weights(network: nn.Module, given: Given, seed: int) -> Control:
    meaning = "the same architecture with freshly initialised weights"
    try:
        return _measured("random_weights", meaning, random_twin(network, seed), given, seed)
    except Exception as error:
        return Control("random_weights", meaning, reason=reason_of(error))


def random_twin(network: nn.Module, seed: int = 0) -> nn.Module:
    """A model of the same class and configuration with its library's own initialisation."""
    config: Any = network.config
    kind: Any = type(network)
    parameter = next(network.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        twin = kind._from_config(copy.deepcopy(config), dtype=parameter.dtype)
    return twin.to(parameter.device).eval()


def _measured(name: str, meaning: str, network: nn.Module, given: Given, seed: int) -> Control:
    # By name: a twin has blocks of its own.
    stack = None if given.stack is None else same_stack(network, given.stack)
    rows = measure_depth(network, given.inputs, real=given.real, names=given.names, seed=seed, stack=stack)
    return Control(name, meaning, tuple(rows))
