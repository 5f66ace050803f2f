"""One block run again in float64, with or without its norm and its residual; verified before it is used."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.masks import Mask
from rankfall.models.ablation.blocks import Block
from rankfall.models.interface.route import Eager, Route
from rankfall.models.trace.precision import KeepFloat64
from rankfall.models.trace.replay import Replay

# Float64 against the float32 pass that was traced.
VERIFIED = 1e-3

# The library masks by adding the most negative float32; scores can be larger than that in float64.
FORBIDDEN = -1e30


class Step:
    """A block's attention half as a function of tokens (b, n, d)."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._replay = Replay(block.site)
        self._before = _float64(block.before)
        self._after = _float64(block.after)

    def __call__(self, tokens: Tensor, *, norm: bool, residual: bool, route: Route) -> Tensor:
        """The block without what is switched off."""
        kind = self.block.kind
        normed = self._normed(self._before, tokens) if norm else tokens
        branch = self._replay.run(normed, route=route).projected
        assert branch is not None
        if kind in ("sandwich", "inner") and norm:
            branch = self._normed(self._after, branch)
        out = tokens + self.block.branch_scale * branch if residual else branch
        return self._normed(self._after, out) if kind == "post" and norm else out

    def verify(self) -> float:
        """Run it whole on the traced tokens: its relative distance from what the model did, or a refusal."""
        ours = self(self.block.stream.double(), norm=True, residual=True, route=as_traced)
        theirs = self.block.target.double()
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-300))
        if not error < VERIFIED:
            raise RequestError(
                required=f"the replay of {self.block.site.name} to equal the traced pass to {VERIFIED:g}",
                got=f"{error:.2g} as a {self.block.kind}-norm block",
                remedy="its ablation would not be the model's own",
            )
        return error

    def _normed(self, norm: nn.Module | None, tokens: Tensor) -> Tensor:
        if norm is None:
            return tokens
        with torch.no_grad(), KeepFloat64():
            out: Tensor = norm(tokens)
        return out


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
        pattern = _truly_forbidden(given) if mask is None else _added(mask, given, query)
        return eager(module, query, key, value, pattern, **options)

    return route


def _added(mask: Mask, given: Tensor | None, query: Tensor) -> Tensor:
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


def _float64(module: nn.Module | None) -> nn.Module | None:
    return None if module is None else copy.deepcopy(module).double().eval()
