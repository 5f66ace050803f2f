"""Which part of a block holds the token rank up: attention alone, with the norm, with the residual, with both.

Blocks are run again in float64, with what is switched off left out, and verified against the traced pass before they
are used (figure 2 of paper B, on pretrained weights).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.masks import Mask
from rankfall.measures.measures import measure
from rankfall.models.assembly import Assembly, assemblies
from rankfall.models.blocks import BlockStack, as_tokens, body_of, stacks_that_run
from rankfall.models.depth.capture import Place, capture
from rankfall.models.interface import Eager, Route, routed
from rankfall.models.recorder import recorded
from rankfall.models.replay import KeepFloat64, Replay, Site, Trace, float64_copy, traced
from rankfall.progress import Progress, silent

Scaling = Literal["raw", "matched"]
"""raw: tokens as they come. matched: before each layer all tokens are multiplied by one number, so that their
Frobenius norm is what the layer got in the real model; without it a missing norm lets them grow until softmax
saturates."""

SCALINGS: tuple[Scaling, ...] = get_args(Scaling)

# Float64 against the float32 pass that was traced.
VERIFIED = 1e-3

# The library masks by adding the most negative float32; scores can be larger than that in float64.
FORBIDDEN = -1e30


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


@final
@dataclass(frozen=True)
class AblationRow:
    """The tokens of one text at one layer under one variant; measures are None where the tokens overflowed.

    Layer 0 is what enters the first block. A mask of None is the model's own.
    """

    variant: str
    scaling: Scaling
    temperature: float
    mask: str | None
    mu: float | None
    relative_mu: float | None
    rank: float | None
    effective_rank: float | None
    energy_rank: float | None
    mean_abs_cosine: float | None
    min_singular_value: float | None
    text: int
    layer: int

    def record(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        return asdict(self)


MEASURES = ("mu", "relative_mu", "rank", "effective_rank", "energy_rank", "mean_abs_cosine", "min_singular_value")


@final
@dataclass(frozen=True)
class Ablation:
    """`rows` for every variant, scaling, temperature, mask, text and layer.

    `blocks` are the kinds of the blocks, `verified` is the largest relative distance of a replayed block from the
    traced one. A model that cannot be taken apart has no rows but a `refusal`.
    """

    rows: tuple[AblationRow, ...]
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

    def row(self, tokens: Tensor, text: int, layer: int) -> AblationRow:
        mask = None if self.mask is None else str(self.mask)
        return _row(tokens, text, layer, self.variant.name, self.scaling, self.temperature, mask)


def ablate(
    model: Any,
    inputs: Mapping[str, Any],
    variants: Sequence[Variant] = ALL_VARIANTS,
    scalings: Sequence[Scaling] = SCALINGS,
    temperatures: Sequence[float] = (1.0,),
    masks: Sequence[Mask | None] = (None,),
    stack: BlockStack | None = None,
    progress: Progress = silent,
) -> Ablation:
    """Replay the blocks in float64 for every combination asked for, and the full model beside them.

    `inputs` are those of the model's own forward pass, one row per text; padding is cut off first. A mask of None is
    the model's own. Of a model with several stacks of blocks one is taken apart: `stack`, or the one that the
    inputs' tokens run through. Cross-attention counts with the feed-forward layers as what is left out.
    """
    settings = [_Setting(*one) for one in itertools.product(variants, scalings, temperatures, masks)]
    rows: list[AblationRow] = []
    kinds: tuple[str, ...] = ()
    worst = 0.0
    body = body_of(model)
    texts = list(single_texts(inputs))
    for number, text in enumerate(texts):
        stack = stack or stacks_that_run(body, text)[0]
        trace, end = _traced(body, text, stack)
        try:
            steps = _steps(trace, stack)
            for layer, error, states in _replayed(steps, settings):
                worst = max(worst, error)
                rows += [setting.row(tokens, number, layer) for setting, tokens in states.items()]
                progress(f"text {number + 1} of {len(texts)}", (number + layer / len(steps)) / len(texts))
        except RequestError as refusal:
            return Ablation((), refusal=str(refusal))
        rows += [
            _row(tokens, number, layer) for layer, tokens in enumerate([*(step.block.stream for step in steps), end])
        ]
        kinds = tuple(step.block.kind for step in steps)
    return Ablation(tuple(rows), kinds, worst)


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
            rows += [_row(tokens, number, layer, mask=str(mask)) for layer, tokens in streams.items()]
    return rows


def single_texts(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each text of a batch alone, without its padding: what padding does to a replay need not be known then."""
    mask = inputs.get("attention_mask")
    first = inputs.get("input_ids", next((value for value in inputs.values() if isinstance(value, Tensor)), None))
    assert isinstance(first, Tensor)
    batch = first.shape[0]
    for index in range(batch):
        # What has another number of rows, such as the patches of all images in one row, goes with every text.
        text = {
            name: value[index : index + 1] if value.shape[:1] == (batch,) else value
            for name, value in inputs.items()
            if isinstance(value, Tensor)
        }
        if mask is not None:
            kept = mask[index].bool()
            text = {
                name: value[:, kept] if value.ndim == 2 and value.shape[1] == kept.shape[0] else value
                for name, value in text.items()
                if name != "attention_mask"
            }
        yield text


class AblatedBlock:
    """A block's attention half as a function of tokens (b, n, d), in float64."""

    def __init__(self, site: Site, block: Assembly) -> None:
        self.site = site
        self.block = block
        self._replay: Replay | None = None

    def __enter__(self) -> AblatedBlock:
        """Copy the modules in float64; they go again on the way out, so that a deep model is never held twice."""
        self._replay = Replay(self.site)
        self._before, self._after = (
            None if norm is None else float64_copy(norm) for norm in (self.block.before, self.block.after)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._replay = self._before = self._after = None

    def __call__(self, tokens: Tensor, *, norm: bool, residual: bool, route: Route) -> Tensor:
        """The block without what is switched off."""
        assert self._replay is not None
        kind = self.block.kind
        normed = _applied(self._before, tokens) if norm else tokens
        branch = self._replay.branch(normed, route, must_reach=route is not as_traced)
        if kind in ("sandwich", "inner") and norm:
            branch = _applied(self._after, branch)
        out = tokens + self.block.scale * branch if residual else branch
        return _applied(self._after, out) if kind == "post" and norm else out

    def verify(self) -> float:
        """Run it whole on the traced tokens: its relative distance from what the model did, or a refusal."""
        ours = self(self.block.stream.double(), norm=True, residual=True, route=as_traced)
        theirs = self.block.target.double()
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-300))
        if not error < VERIFIED:
            raise RequestError(
                required=f"the replay of {self.site.name} to equal the traced pass to {VERIFIED:g}",
                got=f"{error:.2g} as a {self.block.kind}-norm block",
                remedy="its ablation would not be the model's own",
            )
        return error

    def scaled(self, tokens: Tensor, variant: Variant) -> Tensor:
        """Tokens as large as those that the real layer got: its stream where the norm is in place, else what the
        norm gave."""
        real = self.block.stream if variant.norm else self.site.tokens
        size = torch.linalg.vector_norm(tokens)
        return tokens * (torch.linalg.vector_norm(real.double()) / size) if size > 0 else tokens


def block_around(site: Site) -> Assembly:
    """The block around a site, or a refusal that says what was tried."""
    if site.tokens_name is None or site.projection is None:
        raise _refusal(site, "no (b, n, d) tokens, or no linear map after attention", "it cannot be replayed")
    for block in assemblies(site.tokens, site.projection.output, site.before, site.after):
        return block
    raise _refusal(
        site, "no sum of tokens and attention reappears in the pass", "its residual is not one we can replay"
    )


def as_traced(eager: Eager, module: nn.Module, *tensors: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
    """The model's own mask and scaling, with what is forbidden truly forbidden."""
    query, key, value, mask = tensors
    return eager(module, query, key, value, _truly_forbidden(mask), **options)


def changed(temperature: float, mask: Mask | None) -> Route:
    """Attention at another temperature (scores divided by it), under another mask than the model's own."""
    if temperature == 1.0 and mask is None:
        return as_traced

    def route(
        eager: Eager,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        given: Tensor | None,
        **options: object,
    ) -> tuple[Tensor, Tensor | None]:
        scaling = options.get("scaling")
        factor = float(query.shape[-1]) ** -0.5 if scaling is None else float(scaling)  # type: ignore[arg-type]
        options["scaling"] = factor / temperature
        pattern = _truly_forbidden(given) if mask is None else _replaced(mask, given, query)
        return eager(module, query, key, value, pattern, **options)

    return route


def _replaced(mask: Mask, given: Tensor | None, query: Tensor) -> Tensor:
    if given is not None and given.is_floating_point() and bool(((given != 0) & (given > FORBIDDEN)).any()):
        raise RequestError(
            required="a mask that only allows and forbids, for it to be replaced",
            got="position biases in the model's mask",
            remedy="leave the mask as it is",
        )
    n = query.shape[-2]
    forbidden = ~mask.dense(n, device=query.device)
    return torch.zeros(n, n, dtype=query.dtype, device=query.device).masked_fill(forbidden, -torch.inf)[None, None]


def _truly_forbidden(mask: Tensor | None) -> Tensor | None:
    if mask is None or not mask.is_floating_point():
        return mask
    return mask.masked_fill(mask < FORBIDDEN, -torch.inf)


def _applied(norm: nn.Module | None, tokens: Tensor) -> Tensor:
    if norm is None:
        return tokens
    with torch.no_grad(), KeepFloat64():
        out: Tensor = norm(tokens)
    return out


def _traced(model: nn.Module, text: Mapping[str, Any], stack: BlockStack) -> tuple[Trace, Tensor]:
    """The pass taken apart, and what the last block of the stack gave."""
    left: list[Tensor] = []

    def leave(_: nn.Module, tokens: Tensor | None) -> None:
        if tokens is not None:
            left[:] = [as_tokens(tokens, text.get("input_ids")).clone()]

    with recorded(model, blocks=stack.blocks, on_leave=leave):
        trace = traced(model, text)
    return trace, left[0]


def _steps(trace: Trace, stack: BlockStack) -> list[AblatedBlock]:
    inside = tuple(f"{name}." for name in stack.names)
    missed = [one.name for one in trace.coverage.missed if f"{one.name}.".startswith(inside)]
    sites = [site for site in trace.sites if f"{site.name}.".startswith(inside) and site.context_name is None]
    if missed or not sites:
        raise RequestError(
            required=f"every attention call in the blocks of {stack.name}",
            got=trace.coverage.reason,
            remedy="only what is seen can be replayed",
        )
    # A module may normalise several times in one run: one run is one step.
    runs = [
        site for last, site in zip([None, *sites], sites, strict=False) if last is None or not _one_run(last, site)
    ]
    return [AblatedBlock(site, block_around(site)) for site in runs]


def _one_run(one: Site, other: Site) -> bool:
    return one.call.module is other.call.module and all(
        mine is theirs for mine, theirs in zip(one.call.given, other.call.given, strict=True)
    )


def _replayed(
    steps: Sequence[AblatedBlock], settings: Sequence[_Setting]
) -> Iterator[tuple[int, float, dict[_Setting, Tensor]]]:
    """Layer by layer, the error of the verified step and the tokens of every setting."""
    states = dict.fromkeys(settings, steps[0].block.stream.double())
    yield 0, 0.0, states
    for layer, step in enumerate(steps, 1):
        with step:
            error = step.verify()
            for setting, tokens in states.items():
                variant = setting.variant
                entering = step.scaled(tokens, variant) if setting.scaling == "matched" else tokens
                route = changed(setting.temperature, setting.mask)
                states[setting] = step(entering, norm=variant.norm, residual=variant.residual, route=route)
        yield layer, error, states


def _row(
    tokens: Tensor,
    text: int,
    layer: int,
    variant: str = FULL,
    scaling: Scaling = "raw",
    temperature: float = 1.0,
    mask: str | None = None,
) -> AblationRow:
    values: dict[str, float | None] = dict.fromkeys(MEASURES)
    if bool(tokens.isfinite().all()):
        values = {name: float(value) for name, value in measure(tokens[0], MEASURES).items()}
    where = {"variant": variant, "scaling": scaling, "temperature": temperature, "mask": mask}
    return AblationRow(**where, **values, text=text, layer=layer)  # type: ignore[arg-type]


def _refusal(site: Site, got: str, remedy: str) -> RequestError:
    return RequestError(
        required=f"a block around {site.name} ({type(site.call.module).__name__}) that can be taken apart",
        got=got,
        remedy=remedy,
    )
