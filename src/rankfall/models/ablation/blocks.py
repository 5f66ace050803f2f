"""How a block is put together, told by which sum of traced tensors reappears in the trace, not by its name.

With h the stream, A attention with W_O, P and S norms, and x the tokens that attention was given:

    pre         h + A(P(h))            the next thing to run is given h + a
    parallel    h + A(P(h)) + M(h)     a later thing is given h + a + m, m the output of some linear map
    sandwich    h + S(A(P(h)))         S is given a, and something later h + S(a)
    inner       h + S(A(h))            the same without P
    post        S(h + A(h))            S is given x + a, and its output goes on as the stream
    bare        h + A(h)               no norm at all

a may be scaled by one number on its way into the sum (residual multipliers); it is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.models.trace.site import Ran, Site

BlockKind = Literal["pre", "parallel", "sandwich", "inner", "post", "bare"]

# Relative to the sum: float32 adds in the same order as the model, so equality is near exact.
TOLERANCE = 1e-5


@final
@dataclass(frozen=True, eq=False)
class Block:
    """One site's block. `stream` is what entered it; `target` what its attention half made of it, for checking."""

    kind: BlockKind
    site: Site
    before: nn.Module | None
    after: nn.Module | None
    branch_scale: float
    stream: Tensor
    target: Tensor


def recognise(site: Site) -> Block:
    """The block around a site, or a refusal that says what was tried."""
    if site.context_name is not None:
        raise _refusal(site, "attention that looks at other tokens (cross-attention)", "ablate the encoder alone")
    if site.tokens_name is None or site.projection is None:
        raise _refusal(site, "no (b, n, d) tokens, or no linear map after attention", "it cannot be replayed")
    for block in _candidates(site, site.projection.output):
        return block
    raise _refusal(
        site, "no sum of tokens and attention reappears in the pass", "its residual is not one we can replay"
    )


def _candidates(site: Site, branch: Tensor) -> Iterator[Block]:
    given = site.tokens
    if branch.shape != given.shape:
        return
    pre = next((ran for ran in reversed(site.before) if ran.kind == "norm" and _equal(ran.output, given)), None)
    norms = [ran for ran in site.after if ran.kind == "norm"]
    first = norms[0] if norms else None
    if first is not None and (scale := _scale(first.input, given, branch)) is not None and _goes_on(site, first):
        yield Block("post", site, None, first.module, scale, given, first.output)
    # The norm that gave the tokens may belong to this block, or to whatever came before it.
    for owned in (pre, None) if pre is not None else (None,):
        stream = given if owned is None else owned.input
        before = None if owned is None else owned.module
        if first is not None and _equal(first.input, branch) and (found := _reappears(site, stream, first.output)):
            kind: BlockKind = "inner" if owned is None else "sandwich"
            yield Block(kind, site, before, first.module, found[0], stream, found[1])
        if found := _reappears(site, stream, branch):
            yield Block("bare" if owned is None else "pre", site, before, None, found[0], stream, found[1])
        if owned is not None and (sum_of_two := _parallel(site, stream, branch)) is not None:
            yield Block("parallel", site, before, None, 1.0, stream, sum_of_two)


def _reappears(site: Site, stream: Tensor, branch: Tensor) -> tuple[float, Tensor] | None:
    """The first thing that ran later on stream + scale * branch."""
    for ran in site.after:
        scale = _scale(ran.input, stream, branch)
        if scale is not None:
            return scale, ran.input
    return None


def _parallel(site: Site, stream: Tensor, branch: Tensor) -> Tensor | None:
    half = stream + branch
    for late in site.after:
        if late.input.shape == half.shape:
            for other in _linear_outputs(site, half):
                if _equal(late.input, half + other):
                    return half
    return None


def _goes_on(site: Site, norm: Ran) -> bool:
    """Whether the stream goes on from what the norm gave, and not past it: from what it was given."""
    later = [ran for ran in site.after if ran.kind == "norm" and ran is not norm]
    if not later:
        return True
    branches = list(_linear_outputs(site, norm.output))
    return not any(_equal(later[0].input, norm.input + branch) for branch in branches)


def _linear_outputs(site: Site, like: Tensor) -> Iterator[Tensor]:
    yield from (ran.output for ran in site.after if ran.kind == "linear" and ran.output.shape == like.shape)


def _scale(total: Tensor, stream: Tensor, branch: Tensor) -> float | None:
    """c with total = stream + c * branch, if there is one that is not zero."""
    if total.shape != stream.shape:
        return None
    if _equal(total, stream + branch):
        return 1.0
    rest, wide = (total - stream).double(), branch.double()
    energy = float(wide.square().sum())
    scale = float((rest * wide).sum()) / energy if energy > 0 else 0.0
    # Small next to rounding is no evidence: a scale is believed only when the branch shows in the sum.
    if abs(scale) < 1e-3 or not _equal(total, stream + scale * branch):
        return None
    return scale


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return float((one - other).abs().max()) <= TOLERANCE * float(other.abs().max())


def _refusal(site: Site, got: str, remedy: str) -> RequestError:
    return RequestError(
        required=f"a block around {site.name} ({type(site.call.module).__name__}) that can be taken apart",
        got=got,
        remedy=remedy,
    )
