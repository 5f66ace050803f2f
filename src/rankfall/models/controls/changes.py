"""Inputs without their order or meaning, for the controls: shuffled and random tokens, or numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.models.controls.lookups import looked_up
from rankfall.models.inputs.calling import Inputs, as_calls, is_ids
from rankfall.models.inputs.texts import Batch, drawn_rows, shuffled_rows
from rankfall.models.recording.blocks import BlockStack


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

    @property
    def argument(self) -> str | None:
        """The input that holds the texts' tokens; None where they are no ids."""
        if self.batch is None:
            return None
        return "input_ids" if self.batch.calling is None else self.batch.calling.argument

    @property
    def in_columns(self) -> bool:
        """Whether texts lie in the columns of the inputs."""
        calling = None if self.batch is None else self.batch.calling
        return self.text_axis == 1 if calling is None else calling.in_columns

    def rows(self, ids: Tensor) -> Tensor:
        """Ids as (texts, tokens)."""
        if ids.ndim == 1:
            return ids[:, None] if len(ids) == len(self.real) else ids[None]
        return ids.mT if self.in_columns else ids

    def like(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Rows in the layout of the ids that they were made of."""
        return (rows.mT if self.in_columns and ids.ndim == 2 else rows.reshape(ids.shape)).to(ids)


ChangeIds = Callable[[Tensor, Tensor, int | None, torch.Generator], Tensor]
ChangeNumbers = Callable[[Tensor, torch.Generator], Tensor]


@final
@dataclass(frozen=True)
class Change:
    """One control of the inputs: `of` gives them for a seed."""

    name: str
    meaning: str
    of: Callable[[int], Given]


def input_changes(network: nn.Module, given: Given) -> tuple[Change, Change]:
    """Every input that holds ids is changed, each within its own table; in models of images or sound, numbers too."""
    fixed = placeholders(getattr(network, "config", None))

    @functools.cache
    def sizes() -> dict[str, int | None]:
        return id_inputs(network, given)

    def shuffle(rows: Tensor, free: Tensor, size: int | None, generator: torch.Generator) -> Tensor:
        return shuffled_rows(rows, free, generator)

    def draw(rows: Tensor, free: Tensor, size: int | None, generator: torch.Generator) -> Tensor:
        if size is None:
            raise RequestError(
                required="a table of token embeddings, to draw tokens from",
                got="none",
                remedy="leave this control out",
            )
        drawn = drawn_rows(rows, free, size, generator)
        return torch.where(_among(drawn, fixed), rows, drawn)

    if given.batch is not None:
        # What the tokenizer added, and where an image or a sound goes into a text, stays where it is.
        held = fixed | set(given.batch.ids[given.batch.special].tolist())
        return (
            Change(
                "shuffled_tokens",
                "the same tokens in random order",
                lambda seed: _with_ids(given, sizes(), shuffle, held, seed),
            ),
            Change(
                "random_tokens",
                "tokens drawn uniformly from the vocabulary",
                lambda seed: _with_ids(given, sizes(), draw, held, seed),
            ),
        )
    return (
        Change(
            "shuffled_inputs",
            "the same numbers of each input in random order",
            lambda seed: _with_ids(_with_numbers(given, _mixed, seed), sizes(), shuffle, fixed, seed),
        ),
        Change(
            "random_inputs",
            "inputs drawn from a normal distribution with their mean and deviation",
            lambda seed: _with_ids(_with_numbers(given, _drawn, seed), sizes(), draw, fixed, seed),
        ),
    )


def id_inputs(network: nn.Module, given: Given) -> dict[str, int | None]:
    """The inputs that hold ids, each with how many there are; None where the texts' own are looked up in no table."""
    call = as_calls(given.inputs)[0]
    sizes = looked_up(network, call)
    main = given.argument
    others: dict[str, int | None] = {
        name: size
        for name, size in sizes.items()
        if name != main and is_ids(call[name]) and not _counts(given.rows(call[name]))
    }
    return others if main is None else {main: sizes.get(main), **others}


def _counts(rows: Tensor) -> bool:
    """Numbers that never fall and rise by one at most are positions or segments: where a token is, not which."""
    steps = rows.long().diff(dim=-1)
    return steps.numel() > 0 and bool(((steps == 0) | (steps == 1)).all())


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


def _with_ids(given: Given, sizes: Mapping[str, int | None], change: ChangeIds, held: set[int], seed: int) -> Given:
    """Inputs of equal length are changed alike: what stands at one place stays together, and a decoder that is given
    the text's own ids is given the new ones."""
    generators = {name: torch.Generator().manual_seed(seed) for name in sizes}

    def other(call: Mapping[str, Any]) -> dict[str, Any]:
        changed = {}
        for name, size in sizes.items():
            rows = given.rows(call[name]).cpu().long()
            free = _kept(name, call, rows.shape) & ~_among(rows, held)
            changed[name] = given.like(call[name], change(rows, free, size, generators[name]))
        return {**call, **changed}

    return replace(given, inputs=[other(call) for call in as_calls(given.inputs)])


def _among(rows: Tensor, ids: set[int]) -> Tensor:
    return torch.isin(rows, torch.tensor(sorted(ids), dtype=torch.long))


def _kept(name: str, call: Mapping[str, Any], shape: torch.Size) -> Tensor:
    """Which of these ids are no padding, by the mask of their shape, rather one whose name begins as theirs."""
    masks = {
        other: value
        for other, value in call.items()
        if other.endswith(("attention_mask", "padding_mask")) and isinstance(value, Tensor) and value.shape == shape
    }
    if not masks:
        return torch.ones(shape, dtype=torch.bool)
    beginning = name.removesuffix("input_ids")
    own = min(masks, key=lambda other: (not other.startswith(beginning), len(other)))
    return (masks[own].cpu() > 0) == own.endswith("attention_mask")


def _with_numbers(given: Given, change: ChangeNumbers, seed: int) -> Given:
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
