"""Which part of a block holds the token rank up: attention alone, with the norm, with the residual, with both.

Blocks are run again in float64, with what is switched off left out, and verified against the traced pass before they
are used (figure 2 of paper B, on pretrained weights). What a block was given and what it made of it is kept in the
host's memory until its turn comes, so that what lies on the device does not grow with depth.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.masks import Mask
from rankfall.measures.measures import NUMBERS_AT_ONCE, measure
from rankfall.models import configuration as aliases
from rankfall.models.assembly import HALF, Assembly, assemblies
from rankfall.models.blocks import BlockStack, as_tokens, body_of, stacks_that_run
from rankfall.models.calling import Inputs
from rankfall.models.depth.capture import Place, capture
from rankfall.models.interface import Eager, Route, routed
from rankfall.models.placement import alone
from rankfall.models.recorder import Call, recorded
from rankfall.models.replay import KeepFloat64, Replay, Site, float64_copy, tensors_changed, traced
from rankfall.norms import UnitNorm
from rankfall.progress import Progress, silent

Scaling = Literal["raw", "matched"]
"""raw: tokens as they come. matched: before each layer all tokens are multiplied by one number, so that their
Frobenius norm is what the layer got in the real model; without it a missing norm lets them grow until softmax
saturates."""

SCALINGS: tuple[Scaling, ...] = get_args(Scaling)

# Float64 against the pass that was traced, relative to the largest entry: a model in half precision has rounded
# several times by the end of a block. It is first run again in its own arithmetic, where one rounding may differ.
VERIFIED = {torch.bfloat16: 2**-5, torch.float16: 2**-8}
VERIFIED_AT_LEAST = 1e-3

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
    """The tokens of one text at one layer under one variant; measures are None where the tokens overflowed, or where
    they were not asked for.

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
    unit_relative_mu: float | None = None
    unit_energy_rank: float | None = None

    def record(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        row = asdict(self)
        return {name: value for name, value in row.items() if value is not None or name not in BY_SVD}


MEASURES = ("mu", "relative_mu", "rank", "effective_rank", "energy_rank", "mean_abs_cosine", "min_singular_value")
# Of collapsed tokens these need a singular value decomposition, which takes longer than everything else together.
BY_SVD = ("rank", "effective_rank", "min_singular_value")
QUICK = tuple(name for name in MEASURES if name not in BY_SVD)
# These need no decomposition at all.
PLAIN = ("mu", "relative_mu", "mean_abs_cosine")
# Decompositions grow with the cube of the smaller side: beyond this size they are made at a few layers.
EVERY_LAYER_BELOW = 1024
LARGE_LAYERS = 5
# What decides whether a variant collapses, as for the model itself: of tokens scaled to length one.
UNIT_MEASURES = ("relative_mu", "energy_rank")


@final
@dataclass(frozen=True)
class Ablation:
    """`rows` for every variant, scaling, temperature, mask, text and layer.

    `blocks` are the kinds of the blocks, `check` says how far replayed blocks are from the traced ones. A model that
    cannot be taken apart has no rows but a `refusal`.
    """

    rows: tuple[AblationRow, ...]
    blocks: tuple[str, ...] = ()
    check: ReplayCheck | None = None
    refusal: str | None = None

    @property
    def verified(self) -> float | None:
        """The largest relative distance of a block replayed in float64 from the traced one."""
        return None if self.check is None else self.check.error


@final
@dataclass(frozen=True)
class ReplayCheck:
    """How far replayed blocks are from the traced pass, at worst, relative to their largest entry.

    `error` is that of the replay in float64, which may be at most `tolerance`, a number that follows `dtype`, the
    arithmetic of the model. `own_error` is that of the replay in this arithmetic, for models in half precision: it
    may be at most one rounding, `own_tolerance`.
    """

    dtype: str
    error: float
    tolerance: float
    own_error: float | None = None
    own_tolerance: float | None = None

    def and_(self, other: ReplayCheck) -> ReplayCheck:
        """The worse of both."""
        own = [one for one in (self.own_error, other.own_error) if one is not None]
        return replace(self, error=max(self.error, other.error), own_error=max(own) if own else None)

    def record(self) -> dict[str, Any]:
        """The check as `--json` prints it."""
        return asdict(self)


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
    progress: Progress = silent,
) -> Ablation:
    """Replay the blocks in float64 for every combination asked for, and the full model beside them.

    `inputs` are those of the model's own forward pass, one row per text, and padding is cut off first; or those of
    several passes, one text each. A mask of None is the model's own. Rows of one length run together, as far as
    `STATE_NUMBERS` allows. Of a model with several stacks of blocks one is taken apart: `stack`, or the one that the
    inputs' tokens run through. Cross-attention counts with the feed-forward layers as what is left out.
    """
    settings = [_Setting(*one) for one in itertools.product(variants, scalings, temperatures, masks)]
    rows: list[AblationRow] = []
    kinds: tuple[str, ...] = ()
    check: ReplayCheck | None = None
    body = body_of(model)
    texts, waiting = _groups(body, inputs, len(settings))
    while waiting:
        numbers, group = waiting.pop(0)
        stack = stack or stacks_that_run(body, group)[0]
        try:
            steps, end = _steps(body, group, stack)
            if len(numbers) > 1 and len(end) != len(numbers):
                # Blocks whose tokens are not one row for each text.
                waiting = [*(([number], texts[number]) for number in numbers), *waiting]
                continue
            for layer, found, states in _replayed(steps, settings):
                check = found if check is None else check if found is None else check.and_(found)
                wanted = _measures_at(layer, len(steps), steps[0].block.stream, measures)
                rows += _rows(states, [setting.label for setting in settings], numbers, layer, wanted)
                share = (numbers[0] + len(numbers) * layer / len(steps)) / len(texts)
                progress(f"text {numbers[-1] + 1} of {len(texts)}", share)
        except RequestError as refusal:
            return Ablation((), refusal=str(refusal))
        for layer, tokens in enumerate([*(step.block.stream for step in steps), end]):
            wanted = _measures_at(layer, len(steps), tokens, measures)
            rows += _rows([tokens.to(steps[0].device)], [_label()], numbers, layer, wanted)
        kinds = tuple(step.block.kind for step in steps)
    return Ablation(tuple(sorted(rows, key=lambda row: row.text)), kinds, check)


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


def _measures_at(layer: int, layers: int, tokens: Tensor, measures: Sequence[str]) -> Sequence[str]:
    """All that is asked for, or without what needs a decomposition, where that is large and was made nearby."""
    spread = {round(place * layers / (LARGE_LAYERS - 1)) for place in range(LARGE_LAYERS)}
    if min(tokens.shape[-2:]) <= EVERY_LAYER_BELOW or layer in spread:
        return measures
    return [name for name in measures if name in PLAIN]


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
                rows += _rows([tokens], [_label(mask=str(mask))], [number], layer, MEASURES)
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


def equal_texts(texts: Sequence[dict[str, Any]], most: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Texts of one length together, at most `most`, with their numbers; what is no row of a text keeps them apart."""
    groups: dict[Any, list[int]] = {}
    for number, text in enumerate(texts):
        alike: Any = tuple((name, value.shape) for name, value in text.items())
        mergeable = all(value.shape[:1] == (1,) for value in text.values())
        groups.setdefault(alike if mergeable else number, []).append(number)
    for numbers in groups.values():
        for first in range(0, len(numbers), most):
            some = numbers[first : first + most]
            yield some, {name: torch.cat([texts[number][name] for number in some]) for name in texts[some[0]]}


class AblatedBlock:
    """A block's attention half as a function of tokens (b, n, d), in float64."""

    def __init__(self, site: Site, block: Assembly) -> None:
        self.site, self.block = site, block
        self.device = block.stream.device
        self._replay: Replay | None = None
        self._before: nn.Module | None = None
        self._after: nn.Module | None = None

    def parked(self) -> AblatedBlock:
        """The same without what only the search for the block needed, the rest in the host's memory."""
        moved: dict[int, Tensor] = {}

        def park(tensor: Tensor) -> Tensor:
            # Masks and position embeddings are one tensor for all blocks; it stays one for those of this block.
            return moved.setdefault(id(tensor), tensor.cpu())

        site, nothing = self.site, torch.empty(0)
        call = replace(
            site.call, query=None, key=None, value=None, mask=None, weights=None, output=None, given=((), {})
        )
        projection = site.projection and replace(site.projection, input=nothing, output=nothing)
        arguments = {name: tensors_changed(value, park) for name, value in site.arguments.items()}
        block = replace(self.block, stream=park(self.block.stream), target=park(self.block.target))
        entry = site.entry and replace(site.entry, input=nothing, output=park(site.entry.output))
        light = replace(site, call=call, arguments=arguments, before=(), after=(), projection=projection, entry=entry)
        made = AblatedBlock(light, block)
        made.device = self.device
        return made

    def __enter__(self) -> AblatedBlock:
        """Copy the modules in float64; they go again on the way out, so that a deep model is never held twice."""
        self._copy(own=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._replay = self._before = self._after = None

    def _copy(self, *, own: bool) -> None:
        copied = alone if own else float64_copy
        self._replay = Replay(self.site, own=own)
        self._before = None if self.block.before is None else copied(self.block.before)
        self._after = None if self.block.after is None else copied(self.block.after)

    def __call__(self, tokens: Tensor, *, norm: bool, residual: bool, route: Route | None) -> Tensor:
        """The block without what is switched off."""
        assert self._replay is not None
        kind = self.block.kind
        normed = _applied(self._before, tokens) if norm else tokens
        branch = self._replay.branch(normed, route, must_reach=route not in (None, as_traced))
        if kind in ("sandwich", "inner") and norm:
            branch = _applied(self._after, branch)
        out = tokens + self.block.scale * branch if residual else branch
        return _applied(self._after, out) if kind == "post" and norm else out

    def verify(self) -> ReplayCheck:
        """Run it whole on the traced tokens: its distance from what the model did, or a refusal."""
        dtype = self.block.stream.dtype
        tolerance = VERIFIED.get(dtype, VERIFIED_AT_LEAST)
        check = ReplayCheck(str(dtype).removeprefix("torch."), 0.0, tolerance)
        if dtype in HALF:
            self._copy(own=True)
            rounding = torch.finfo(dtype).eps
            check = replace(check, own_error=self._error(dtype, rounding), own_tolerance=rounding)
            self._copy(own=False)
        return replace(check, error=self._error(torch.float64, tolerance))

    def _error(self, dtype: torch.dtype, most: float) -> float:
        given = self.block.stream.to(self.device, dtype)
        # Minus infinity has no place in half precision's own mask.
        route = as_traced if dtype == torch.float64 else None
        ours = self(given, norm=True, residual=True, route=route).double()
        theirs = self.block.target.to(self.device, torch.float64)
        largest = theirs.abs().amax(dim=(-2, -1)).clamp_min(1e-300)
        error = float(((ours - theirs).abs().amax(dim=(-2, -1)) / largest).max())
        if not error <= most:
            raise RequestError(
                required=f"the replay of {self.site.name} to equal the traced pass to {most:.2g}",
                got=f"{error:.2g} as a {self.block.kind}-norm block in {str(dtype).removeprefix('torch.')}",
                remedy="its ablation would not be the model's own",
            )
        return error

    def scaled(self, tokens: Tensor, variant: Variant) -> Tensor:
        """Tokens of each text as large as those that the real layer got: its stream where the norm is in place, else
        what the norm gave."""
        real = (self.block.stream if variant.norm else self.site.tokens).to(tokens.device, torch.float64)
        size = torch.linalg.vector_norm(tokens, dim=(-2, -1), keepdim=True)
        wanted = torch.linalg.vector_norm(real, dim=(-2, -1), keepdim=True)
        return tokens * (wanted / size).where(size > 0, 1.0)


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
    return _by_rows(eager, module, query, key, value, _truly_forbidden(mask), **options)


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
        return _by_rows(eager, module, query, key, value, pattern, **options)

    return route


# Scores that are held at once, in float64: a quarter of a GiB.
SCORES_AT_ONCE = 1 << 25


def _by_rows(
    eager: Eager,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, Tensor | None]:
    """Attention for some queries at a time, which do not know of each other; whether that holds for a model's own
    function is verified with its block."""
    batch, heads, n = query.shape[:3]
    rows = max(1, SCORES_AT_ONCE // (batch * heads * key.shape[-2]))
    # A causal mask that is only a word is that of all queries together.
    if rows >= n or (mask is None and options.get("is_causal")):
        return eager(module, query, key, value, mask, **options)
    parts = []
    for first in range(0, n, rows):
        some = slice(first, first + rows)
        seen = mask if mask is None or mask.shape[-2] != n else mask[..., some, :]
        parts.append(eager(module, query[:, :, some], key, value, seen, **options)[0])
    return torch.cat(parts, dim=1), None


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
    kept = KeepFloat64() if tokens.dtype == torch.float64 else contextlib.nullcontext()
    with torch.no_grad(), kept:
        out: Tensor = norm(tokens)
    return out


def _steps(body: nn.Module, inputs: Mapping[str, Any], stack: BlockStack) -> tuple[list[AblatedBlock], Tensor]:
    """The attention halves of the stack's blocks in turn, and what the last block gave (b, n, d)."""
    steps: list[AblatedBlock] = []
    refused: list[RequestError] = []
    inside = tuple(f"{name}." for name in stack.names)
    runs: list[Call] = []
    left: list[Tensor] = []

    def on_site(site: Site) -> None:
        if not f"{site.name}.".startswith(inside) or site.context_name is not None:
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
    missed = any(f"{one.name}.".startswith(inside) for one in coverage.missed)
    if missed or not runs:
        raise RequestError(
            required=f"every attention call in the blocks of {stack.name}",
            got=coverage.reason,
            remedy="only what is seen can be replayed",
        )
    if refused:
        raise refused[0]
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
                entering = step.scaled(tokens, variant) if setting.scaling == "matched" else tokens
                route = changed(setting.temperature, setting.mask)
                states[place] = step(entering, norm=variant.norm, residual=variant.residual, route=route)
        yield layer, check, states


def _rows(
    states: Sequence[Tensor],
    labels: Sequence[Mapping[str, Any]],
    texts: Sequence[int],
    layer: int,
    measures: Sequence[str],
) -> list[AblationRow]:
    """One row for every state and text, measured together; tokens that overflowed have no measures."""
    if not states:
        return []
    nothing: dict[str, float | None] = dict.fromkeys(MEASURES)
    every = [one for state in states for one in state[: len(texts)]]
    finite = [bool(one.isfinite().all()) for one in every]
    found: list[dict[str, float | None]] = [dict(nothing) for _ in every]
    alive = [place for place, whole in enumerate(finite) if whole]
    at_once = max(1, NUMBERS_AT_ONCE // every[0].numel())
    for some in (alive[first : first + at_once] for first in range(0, len(alive), at_once)):
        tokens = torch.stack([every[place] for place in some])
        unit = measure(UnitNorm()(tokens.double()), [name for name in UNIT_MEASURES if name in measures])
        values = {**measure(tokens, measures), **{f"unit_{name}": column for name, column in unit.items()}}
        for name, column in values.items():
            for place, value in zip(some, column.tolist(), strict=True):
                found[place][name] = value
    where = [(label, text) for label in labels for text in texts]
    return [
        AblationRow(**label, **values, text=text, layer=layer)  # type: ignore[arg-type]
        for (label, text), values in zip(where, found, strict=True)
    ]


def _refusal(site: Site, got: str, remedy: str) -> RequestError:
    return RequestError(
        required=f"a block around {site.name} ({type(site.call.module).__name__}) that can be taken apart",
        got=got,
        remedy=remedy,
    )
