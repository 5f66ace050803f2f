"""A block's attention half run again alone, whole or without its norm or residual, verified before it is used.

Routes change the attention call inside it: another temperature, another mask, what is forbidden truly forbidden.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.masks import Mask
from rankfall.models.recording.assembly import HALF, Assembly, assemblies
from rankfall.models.recording.interface import Eager, Route
from rankfall.models.recording.placement import alone
from rankfall.models.recording.replay import Replay, Site, float64_copy, tensors_changed
from rankfall.models.recording.torch_calls import KeepFloat64

# Float64 against the pass that was traced, relative to the largest entry: a model in half precision has rounded
# several times by the end of a block. It is first run again in its own arithmetic, where one rounding may differ.
VERIFIED = {torch.bfloat16: 2**-5, torch.float16: 2**-8}
VERIFIED_AT_LEAST = 1e-3

# The library masks by adding the most negative float32; scores can be larger than that in float64.
FORBIDDEN = -1e30


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


class AblatedBlock:
    """A block's attention half as a function of tokens (b, n, d), in float64; `cross` are the cross-attentions that
    follow it in its block, each a half of its own."""

    def __init__(self, site: Site, block: Assembly) -> None:
        self.site, self.block = site, block
        self.cross: list[AblatedBlock] = []
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
        """Bring back what is parked, once and as it is, because hosts are slow at converting it; copy the modules in
        float64. All goes again on the way out, so that a deep model is never held twice."""
        self._aside = self.site, self.block
        arguments = {name: tensors_changed(value, self._back) for name, value in self.site.arguments.items()}
        entry = self.site.entry and replace(self.site.entry, output=self._back(self.site.entry.output))
        self.site = replace(self.site, arguments=arguments, entry=entry)
        self.block = replace(self.block, stream=self._back(self.block.stream), target=self._back(self.block.target))
        self._copy(own=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.site, self.block = self._aside
        self._replay = self._before = self._after = None

    def _back(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

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
            wide = self._replay, self._before, self._after
            self._copy(own=True)
            rounding = torch.finfo(dtype).eps
            check = replace(check, own_error=self._error(dtype, rounding), own_tolerance=rounding)
            self._replay, self._before, self._after = wide
        return replace(check, error=self._error(torch.float64, tolerance))

    def _error(self, dtype: torch.dtype, most: float) -> float:
        given = self.block.stream.to(dtype)
        # Minus infinity has no place in half precision's own mask.
        route = as_traced if dtype == torch.float64 else None
        ours = self(given, norm=True, residual=True, route=route).double()
        theirs = self.block.target.double()
        largest = theirs.abs().amax(dim=(-2, -1)).clamp_min(1e-300)
        error = float(((ours - theirs).abs().amax(dim=(-2, -1)) / largest).max())
        if not error <= most:
            raise RequestError(
                required=f"the replay of {self.site.name} to equal the traced pass to {most:.2g}",
                got=f"{error:.2g} as a {self.block.kind}-norm block in {str(dtype).removeprefix('torch.')}",
                remedy="its ablation would not be the model's own",
            )
        return error

    def scaled(self, tokens: Tensor, *, norm: bool) -> Tensor:
        """Tokens of each text as large as those that the real layer got: its stream where the norm is in place, else
        what the norm gave."""
        real = (self.block.stream if norm else self.site.tokens).to(tokens.device, torch.float64)
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


def _refusal(site: Site, got: str, remedy: str) -> RequestError:
    return RequestError(
        required=f"a block around {site.name} ({type(site.call.module).__name__}) that can be taken apart",
        got=got,
        remedy=remedy,
    )
