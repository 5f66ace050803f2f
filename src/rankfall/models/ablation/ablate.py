"""The ablated blocks that are compared (figure 2 of paper B)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.masks import Mask
from rankfall.measures.measures import measure
from rankfall.models.ablation.blocks import Block, recognise
from rankfall.models.ablation.step import Step, changed
from rankfall.models.depth.capture import Place, capture
from rankfall.models.interface.route import routed
from rankfall.models.trace.record import Trace, traced

Scaling = Literal["raw", "matched"]
"""raw: tokens as they come. matched: before each layer all tokens are multiplied by one number, so that their
Frobenius norm is what the layer got in the real model; without it a missing norm lets them grow until softmax
saturates."""

SCALINGS: tuple[Scaling, ...] = get_args(Scaling)


@final
@dataclass(frozen=True)
class Variant:
    """Attention always runs; feed-forward layers never do (they do in the full model, which is traced)."""

    name: str
    norm: bool
    residual: bool


ATTENTION = Variant("attention", norm=False, residual=False)
WITH_NORM = Variant("attention + norm", norm=True, residual=False)
WITH_RESIDUAL = Variant("attention + residual", norm=False, residual=True)
WITH_BOTH = Variant("attention + norm + residual", norm=True, residual=True)
FULL = "full model"

ALL_VARIANTS: tuple[Variant, ...] = (ATTENTION, WITH_NORM, WITH_RESIDUAL, WITH_BOTH)


def whole_under(
    model: Any,
    inputs: Mapping[str, Any],
    masks: Sequence[Mask],
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> list[dict[str, Any]]:
    """Rows as `ablate` gives them for the full model, one run per text and mask, in the model's own precision.

    Layer 0 is what enters the first block; the last layer is before the final norm, where the model has one.
    """
    body = getattr(model, "base_model", model)
    texts = list(single_texts(inputs))
    rows = []
    for number, text in enumerate(texts):
        for turn, mask in enumerate(masks):
            share = (number + turn / len(masks)) / len(texts)
            progress(f"full model under {mask}, text {number + 1} of {len(texts)}", share)
            with routed(body, changed(1.0, mask)):
                found = list(_by_layer(body, text))
            where = {"variant": FULL, "scaling": "raw", "temperature": 1.0, "mask": str(mask), "text": number}
            rows += [{**where, "layer": layer, **measured(tokens)} for layer, tokens in found]
    return rows


def _by_layer(body: Any, text: Mapping[str, Any]) -> Iterator[tuple[int, Tensor]]:
    streams: dict[int, Tensor] = {}

    def on_tokens(place: Place, tokens: Tensor) -> None:
        # What the last block gave comes before what the final norm makes of it.
        if place.part in ("boundary", "before_final_norm"):
            streams.setdefault(place.layer, tokens)

    capture(body, text, on_tokens)
    yield from streams.items()


MEASURES = ("mu", "relative_mu", "rank", "effective_rank", "mean_abs_cosine", "min_singular_value")


@final
@dataclass(frozen=True)
class Ablation:
    """`rows` hold, per variant, scaling, temperature, mask, text and layer, the measures of the tokens there.

    Layer 0 is what enters the first block. `blocks` are the kinds of the blocks, `verified` is the largest relative
    distance of a replayed block from the traced one. A model that cannot be taken apart has no rows but a
    `refusal`.
    """

    rows: tuple[dict[str, Any], ...]
    blocks: tuple[str, ...] = ()
    verified: float | None = None
    refusal: str | None = None


@final
@dataclass(frozen=True)
class _Setting:
    variant: Variant
    scaling: Scaling
    temperature: float
    mask: Mask | None


def ablate(
    model: Any,
    inputs: Mapping[str, Any],
    variants: Sequence[Variant] = ALL_VARIANTS,
    scalings: Sequence[Scaling] = SCALINGS,
    temperatures: Sequence[float] = (1.0,),
    masks: Sequence[Mask | None] = (None,),
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Ablation:
    """Replay the blocks in float64 for every combination asked for, and the full model beside them.

    `inputs` are those of the model's own forward pass, one row per text; padding is cut off first. A mask of None is
    the model's own.
    """
    settings = [_Setting(*one) for one in itertools.product(variants, scalings, temperatures, masks)]
    rows: list[dict[str, Any]] = []
    kinds: tuple[str, ...] = ()
    worst = 0.0
    body = getattr(model, "base_model", model)
    texts = list(single_texts(inputs))
    for number, text in enumerate(texts):
        trace = traced(body, text)
        try:
            blocks = _blocks(trace)
            for layer, found in _replayed(blocks, settings):
                worst = max(worst, found.pop("verified"))
                rows += [{**row, "text": number, "layer": layer} for row in found["rows"]]
                progress(f"text {number + 1} of {len(texts)}", (number + layer / len(blocks)) / len(texts))
        except RequestError as refusal:
            return Ablation((), refusal=str(refusal))
        rows += [{**row, "text": number} for row in _full(blocks, trace)]
        kinds = tuple(block.kind for block in blocks)
    return Ablation(tuple(rows), kinds, worst)


def single_texts(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each text of a batch alone, without its padding: what padding does to a replay need not be known then."""
    mask = inputs.get("attention_mask")
    batch = next(value.shape[0] for value in inputs.values() if isinstance(value, Tensor))
    for index in range(batch):
        text = {name: value[index : index + 1] for name, value in inputs.items() if isinstance(value, Tensor)}
        if mask is not None:
            kept = mask[index].bool()
            text = {
                name: value[:, kept] if value.ndim == 2 and value.shape[1] == kept.shape[0] else value
                for name, value in text.items()
                if name != "attention_mask"
            }
        yield text


def _blocks(trace: Trace) -> list[Block]:
    if not trace.coverage.complete:
        raise RequestError(
            required="every attention call of the model, with its queries and keys",
            got=trace.coverage.reason,
            remedy="only what the interface reaches can be replayed",
        )
    return [recognise(site) for site in trace.sites]


def _replayed(blocks: Sequence[Block], settings: Sequence[_Setting]) -> Iterator[tuple[int, dict[str, Any]]]:
    start = blocks[0].stream.double()
    states = dict.fromkeys(settings, start)
    yield 0, {"verified": 0.0, "rows": [_row(setting, states[setting]) for setting in settings]}
    for layer, block in enumerate(blocks, 1):
        step = Step(block)
        error = step.verify()
        for (temperature, mask), group in itertools.groupby(settings, key=lambda one: (one.temperature, one.mask)):
            route = changed(temperature, mask)
            for setting in group:
                entering = _scaled(states[setting], setting, block)
                variant = setting.variant
                states[setting] = step(entering, norm=variant.norm, residual=variant.residual, route=route)
        yield layer, {"verified": error, "rows": [_row(setting, states[setting]) for setting in settings]}


def _scaled(state: Tensor, setting: _Setting, block: Block) -> Tensor:
    """Tokens as large as those that the real layer got: its stream where the norm is in place, else the norm's."""
    if setting.scaling == "raw":
        return state
    real = block.stream if setting.variant.norm else block.site.tokens
    size = torch.linalg.vector_norm(state)
    return state * (torch.linalg.vector_norm(real.double()) / size) if size > 0 else state


def _full(blocks: Sequence[Block], trace: Trace) -> Iterator[dict[str, Any]]:
    last = [ran for ran in blocks[-1].site.after if ran.kind == "norm" and ran.input.shape == blocks[-1].stream.shape]
    streams = [block.stream for block in blocks]
    if last:
        streams.append(last[-1].output if blocks[-1].kind == "post" else last[-1].input)
    for layer, stream in enumerate(streams):
        yield {
            "variant": FULL,
            "scaling": "raw",
            "temperature": 1.0,
            "mask": None,
            "layer": layer,
            **measured(stream),
        }


def _row(setting: _Setting, state: Tensor) -> dict[str, Any]:
    return {
        "variant": setting.variant.name,
        "scaling": setting.scaling,
        "temperature": setting.temperature,
        "mask": None if setting.mask is None else str(setting.mask),
        **measured(state),
    }


def measured(state: Tensor) -> dict[str, float | None]:
    """Measures of one text's tokens; nothing where they overflowed."""
    if not bool(state.isfinite().all()):
        return dict.fromkeys(MEASURES)
    return {name: float(value) for name, value in measure(state[0], MEASURES).items()}
