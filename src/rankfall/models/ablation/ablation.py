"""Which part of a block holds the token rank up: attention alone, with the norm, with the residual, with both.

Blocks are run again in float64, with what is switched off left out, and verified against the traced pass before they
are used (figure 2 of paper B, on pretrained weights). What a block was given and what it made of it is kept in the
host's memory until its turn comes, so that what lies on the device does not grow with depth.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.masks import Mask
from rankfall.models.ablation.block import AblatedBlock, ReplayCheck, block_around, changed
from rankfall.models.ablation.rows import MEASURES, SCALINGS, AblationRow, Scaling, measures_at, rows_of
from rankfall.models.architectures import configuration as aliases
from rankfall.models.depth.capture import Place, capture
from rankfall.models.heads.seen import SeenWatch
from rankfall.models.inputs.calling import Inputs
from rankfall.models.inputs.single_texts import equal_texts, single_texts
from rankfall.models.recording.blocks import BlockStack, as_tokens, body_of, stacks_that_run
from rankfall.models.recording.events import Call
from rankfall.models.recording.interface import routed
from rankfall.models.recording.recorder import recorded
from rankfall.models.recording.replay import Site, traced
from rankfall.progress import Progress, silent


@final
@dataclass(frozen=True)
class Variant:
    """Attention always runs; feed-forward layers never do (they do in the full model, which is traced). With `cross`
    the block's cross-attention runs too, on the states of the other half as they were."""

    name: str
    norm: bool
    residual: bool
    cross: bool = False


ATTENTION = Variant("attention", norm=False, residual=False)
WITH_NORM = Variant("attention + norm", norm=True, residual=False)
WITH_RESIDUAL = Variant("attention + residual", norm=False, residual=True)
WITH_BOTH = Variant("attention + norm + residual", norm=True, residual=True)
WITH_CROSS = Variant("attention + norm + residual + cross-attention", norm=True, residual=True, cross=True)
FULL = "full model"

ALL_VARIANTS: tuple[Variant, ...] = (ATTENTION, WITH_NORM, WITH_RESIDUAL, WITH_BOTH, WITH_CROSS)
"""The last one only of blocks with cross-attention."""


@final
@dataclass(frozen=True)
class Ablation:
    """`rows` for every variant, scaling, temperature, mask, text and layer.

    `blocks` are the kinds of the blocks, `check` says how far replayed blocks are from the traced ones. A model that
    cannot be taken apart has no rows but a `refusal`; `cross_refusal` says why there are none with cross-attention.
    """

    rows: tuple[AblationRow, ...]
    blocks: tuple[str, ...] = ()
    check: ReplayCheck | None = None
    refusal: str | None = None
    cross_refusal: str | None = None

    @property
    def verified(self) -> float | None:
        """The largest relative distance of a block replayed in float64 from the traced one."""
        return None if self.check is None else self.check.error


@final
@dataclass(frozen=True)
class _Setting:
    variant: Variant
    scaling: Scaling
    temperature: float
    mask: Mask | None

    @property
    def label(self) -> dict[str, Any]:
        mask = None if self.mask is None else str(self.mask)
        where = {"scaling": self.scaling, "temperature": self.temperature, "mask": mask}
        return {"variant": self.variant.name, **where}


def _label(variant: str = FULL, mask: str | None = None) -> dict[str, Any]:
    return {"variant": variant, "scaling": "raw", "temperature": 1.0, "mask": mask}


def ablate(
    model: Any,
    inputs: Inputs,
    variants: Sequence[Variant] = ALL_VARIANTS,
    scalings: Sequence[Scaling] = SCALINGS,
    temperatures: Sequence[float] = (1.0,),
    masks: Sequence[Mask | None] = (None,),
    measures: Sequence[str] = MEASURES,
    stack: BlockStack | None = None,
    also: SeenWatch | None = None,
    progress: Progress = silent,
) -> Ablation:
    """Replay the blocks in float64 for every combination asked for, and the full model beside them.

    `inputs` are those of the model's own forward pass, one row per text, and padding is cut off first; or those of
    several passes, one text each. A mask of None is the model's own. Rows of one length run together, as far as
    `STATE_NUMBERS` allows. Of a model with several stacks of blocks one is taken apart: `stack`, or the one that the
    inputs' tokens run through. Cross-attention counts with the feed-forward layers as what is left out, except in the
    variant that keeps it; blocks without any do not have that one. `also` sees the pass that is taken apart, where
    that reads all texts as they were given.
    """
    settings = [_Setting(*one) for one in itertools.product(variants, scalings, temperatures, masks)]
    rows: list[AblationRow] = []
    kinds: tuple[str, ...] = ()
    check: ReplayCheck | None = None
    cross_refusal: str | None = None
    body = body_of(model)
    # The variant that only few models have does not count.
    texts, waiting = _groups(body, inputs, len(_without_cross(settings)))
    if len(waiting) != 1 or body is not model or not _whole(inputs):
        also = None
    while waiting:
        numbers, group = waiting.pop(0)
        stack = stack or stacks_that_run(body, group)[0]
        try:
            steps, end = _steps(body, group, stack, also, cross=any(one.variant.cross for one in settings))
            also = None
            if len(numbers) > 1 and len(end) != len(numbers):
                # Blocks whose tokens are not one row for each text.
                waiting = [*(([number], texts[number]) for number in numbers), *waiting]
                continue
            if not any(step.cross for step in steps):
                settings = _without_cross(settings)
            for layer, found, states in _replayed(steps, settings):
                check = found if check is None else check if found is None else check.and_(found)
                wanted = measures_at(layer, len(steps), steps[0].block.stream, measures)
                rows += rows_of(states, [setting.label for setting in settings], numbers, layer, wanted)
                share = (numbers[0] + len(numbers) * layer / len(steps)) / len(texts)
                progress(f"text {numbers[-1] + 1} of {len(texts)}", share)
        except _CrossAttentionError as refusal:
            # The rest is taken apart without it, from the beginning.
            cross_refusal, settings = str(refusal), _without_cross(settings)
            rows, check, also = [], None, None
            waiting = _groups(body, inputs, len(settings))[1]
            continue
        except RequestError as refusal:
            return Ablation((), refusal=str(refusal))
        for layer, tokens in enumerate([*(step.block.stream for step in steps), end]):
            wanted = measures_at(layer, len(steps), tokens, measures)
            rows += rows_of([tokens.to(steps[0].device)], [_label()], numbers, layer, wanted)
        kinds = tuple(step.block.kind for step in steps)
    return Ablation(tuple(sorted(rows, key=lambda row: row.text)), kinds, check, cross_refusal=cross_refusal)


class _CrossAttentionError(RequestError):
    """Cross-attention that cannot be replayed; attention of its own can be nevertheless."""

    @classmethod
    def like(cls, error: RequestError) -> _CrossAttentionError:
        return cls(required=error.required, got=error.got, remedy=error.remedy)


def _without_cross(settings: Sequence[_Setting]) -> list[_Setting]:
    return [one for one in settings if not one.variant.cross]


# Numbers of all states together, in float64: one GiB.
STATE_NUMBERS = 1 << 27


_Group = tuple[list[int], Mapping[str, Any]]
"""Numbers of texts and the inputs that read them together."""


def _groups(body: Any, inputs: Inputs, settings: int) -> tuple[list[Mapping[str, Any]], list[_Group]]:
    """Each text alone, and what runs together: rows of a batch of one length; passes as they are."""
    if not isinstance(inputs, Mapping):
        return list(inputs), [([number], text) for number, text in enumerate(inputs)]
    texts = list(single_texts(inputs))
    width = aliases.number(getattr(body, "config", None), aliases.WIDTH) or 1024
    longest = max((value.shape[1] for text in texts for value in text.values() if value.ndim > 1), default=1)
    most = max(1, STATE_NUMBERS // max(1, settings * longest * width))
    return list(texts), list(equal_texts(texts, most))


# Arguments that are no tensors and change no token.
HARMLESS = ("use_cache", "return_dict", "output_attentions", "output_hidden_states")


def _whole(inputs: Inputs) -> bool:
    """Whether texts that are cut out of a batch and put together again are the same batch: nothing of it was padding,
    and nothing is left out."""
    if not isinstance(inputs, Mapping):
        return True
    mask = inputs.get("attention_mask")
    told = [name for name, value in inputs.items() if not isinstance(value, Tensor) and name not in HARMLESS]
    return not told and (mask is None or bool(mask.bool().all()))


def whole_under(
    model: Any, inputs: Mapping[str, Any], masks: Sequence[Mask], progress: Progress = silent
) -> list[AblationRow]:
    """Rows as `ablate` gives them for the full model, one run per text and mask, in the model's own precision.

    Layer 0 is what enters the first block; the last layer is before the final norm, where the model has one.
    """
    body = body_of(model)
    texts = list(single_texts(inputs))
    rows = []
    for number, text in enumerate(texts):
        for turn, mask in enumerate(masks):
            share = (number + turn / len(masks)) / len(texts)
            progress(f"full model under {mask}, text {number + 1} of {len(texts)}", share)
            streams: dict[int, Tensor] = {}

            def on_tokens(place: Place, tokens: Tensor, streams: dict[int, Tensor] = streams) -> None:
                # What the last block gave comes before what the final norm makes of it.
                streams.setdefault(place.layer, tokens)

            with routed(body, changed(1.0, mask)):
                capture(body, text, on_tokens)
            for layer, tokens in streams.items():
                rows += rows_of([tokens], [_label(mask=str(mask))], [number], layer, MEASURES)
    return rows


def _steps(
    body: nn.Module,
    inputs: Mapping[str, Any],
    stack: BlockStack,
    also: SeenWatch | None = None,
    *,
    cross: bool = False,
) -> tuple[list[AblatedBlock], Tensor]:
    """The attention halves of the stack's blocks in turn, with `cross` each with the cross-attention that follows,
    and what the last block gave (b, n, d)."""
    steps: list[AblatedBlock] = []
    refused: list[RequestError] = []
    cross_runs: list[Call] = []
    cross_refused: list[RequestError] = []
    inside = tuple(f"{name}." for name in stack.names)
    runs: list[Call] = []
    left: list[Tensor] = []

    def on_site(site: Site) -> None:
        if also is not None:
            also.see(site)
        if not f"{site.name}.".startswith(inside):
            return
        if site.context_name is not None:
            # Before any attention of its own it has nothing to follow.
            if cross and steps and not (cross_runs and _one_run(cross_runs[-1], site.call)):
                cross_runs[:] = [site.call]
                try:
                    steps[-1].cross.append(AblatedBlock(site, block_around(site)).parked())
                except RequestError as error:
                    cross_refused.append(error)
            return
        # A module may normalise several times in one run: one run is one step.
        if runs and _one_run(runs[-1], site.call):
            return
        runs[:] = [site.call]
        # What a pass did not show is known at its end, and is the better reason.
        try:
            steps.append(AblatedBlock(site, block_around(site)).parked())
        except RequestError as error:
            refused.append(error)

    def on_leave(_: nn.Module, tokens: Tensor | None) -> None:
        if tokens is not None:
            left[:] = [as_tokens(tokens, inputs.get("input_ids")).clone()]

    with recorded(body, blocks=stack.blocks, on_leave=on_leave):
        coverage = traced(body, inputs, on_site).coverage
    if also is not None:
        also.next_pass()
    missed = any(f"{one.name}.".startswith(inside) for one in coverage.missed)
    if missed or not runs:
        raise RequestError(
            required=f"every attention call in the blocks of {stack.name}",
            got=coverage.reason,
            remedy="only what is seen can be replayed",
        )
    if refused:
        raise refused[0]
    if cross_refused:
        raise _CrossAttentionError.like(cross_refused[0])
    end = left[0]
    turned = any(step.site.sequence_first for step in steps) and end.shape[1] == 1
    return steps, end.transpose(0, 1) if turned else end


def _one_run(one: Call, other: Call) -> bool:
    return one.module is other.module and all(
        mine is theirs for mine, theirs in zip(one.given, other.given, strict=True)
    )


def _replayed(
    steps: Sequence[AblatedBlock], settings: Sequence[_Setting]
) -> Iterator[tuple[int, ReplayCheck | None, list[Tensor]]]:
    """Layer by layer, the check of the verified step and the tokens of every setting."""
    states = [steps[0].block.stream.to(steps[0].device, torch.float64)] * len(settings)
    yield 0, None, states
    for layer, step in enumerate(steps, 1):
        with step:
            check = step.verify()
            for place, setting in enumerate(settings):
                variant, tokens = setting.variant, states[place].to(step.device)
                entering = step.scaled(tokens, norm=variant.norm) if setting.scaling == "matched" else tokens
                route = changed(setting.temperature, setting.mask)
                states[place] = step(entering, norm=variant.norm, residual=variant.residual, route=route)
        with_cross = [place for place, setting in enumerate(settings) if setting.variant.cross]
        for cross in step.cross if with_cross else ():
            with cross:
                check = check.and_(_verified_cross(cross))
                for place in with_cross:
                    tokens = states[place].to(cross.device)
                    entering = cross.scaled(tokens, norm=True) if settings[place].scaling == "matched" else tokens
                    route = changed(settings[place].temperature, None)
                    states[place] = cross(entering, norm=True, residual=True, route=route)
        yield layer, check, states


def _verified_cross(cross: AblatedBlock) -> ReplayCheck:
    try:
        return cross.verify()
    except RequestError as refusal:
        raise _CrossAttentionError.like(refusal) from refusal
