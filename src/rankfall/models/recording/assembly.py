"""How a block is put together, told by which sum of recorded tensors reappears in the pass, not by its name.

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

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor, nn

from rankfall.models.recording.blocks import is_leaf
from rankfall.models.recording.events import Ran

BlockKind = Literal["pre", "parallel", "sandwich", "inner", "post", "bare"]
InnerPart = Literal["attention_output", "after_attention", "mlp_output"]

# Relative to the sum: float32 adds in the same order as the model, so equality is near exact.
TOLERANCE = 1e-5
HALF = (torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True, eq=False)
class Assembly:
    """The attention half of a block. `stream` is what entered it, `target` what it made of the stream; `before` and
    `after` are its norms, `scale` is the number by which the branch was multiplied."""

    kind: BlockKind
    before: nn.Module | None
    after: nn.Module | None
    scale: float
    stream: Tensor
    target: Tensor


def assemblies(given: Tensor, branch: Tensor, before: Sequence[Ran], after: Sequence[Ran]) -> Iterator[Assembly]:
    """Every way of putting a block together that fits what ran before and after attention, the likeliest first.

    `given` are the tokens (b, n, d) that attention was given, `branch` is what it gave.
    """
    if branch.shape != given.shape:
        return
    before, after = _in_place(before, given.shape), _in_place(after, given.shape)
    pre = next((ran for ran in reversed(before) if ran.kind == "norm" and _equal(ran.output, given)), None)
    first = next((ran for ran in after if ran.kind == "norm"), None)
    if first is not None and (scale := _scale(first.input, given, branch)) is not None and _goes_on(after, first):
        yield Assembly("post", None, first.module, scale, given, first.output)
    # The norm that gave the tokens may belong to this block, or to whatever came before it.
    for owned in (pre, None) if pre is not None else (None,):
        stream = given if owned is None else owned.input
        norm = None if owned is None else owned.module
        if first is not None and _equal(first.input, branch) and (found := _reappears(after, stream, first.output)):
            kind: BlockKind = "inner" if owned is None else "sandwich"
            yield Assembly(kind, norm, first.module, found[0], stream, found[1])
        if found := _reappears(after, stream, branch):
            yield Assembly("bare" if owned is None else "pre", norm, None, found[0], stream, found[1])
        if owned is not None and (half := _parallel(after, stream, branch)) is not None:
            yield Assembly("parallel", norm, None, 1.0, stream, half)


def in_place(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Tokens that stand in a row (b * n, d), put back into their places (b, n, d)."""
    flat = tensor.ndim == 2 and tensor.shape[-1] == shape[-1] and tensor.numel() == shape.numel()
    return tensor.reshape(shape) if flat else tensor


def _in_place(ran: Sequence[Ran], shape: torch.Size) -> list[Ran]:
    return [replace(one, input=in_place(one.input, shape), output=in_place(one.output, shape)) for one in ran]


def inner_tokens(entered: Tensor, ran: Sequence[Ran], left: Tensor) -> dict[InnerPart, Tensor]:
    """What happened inside one run of a block, from all of its modules that ran; what no sum shows is left out.

    attention_output   what the first attention gave, before it was added to the stream
    after_attention    the stream between the last attention and the feed-forward; parallel blocks have none
    mlp_output         what the feed-forward gave, before it was added
    """
    attending = [place for place, one in enumerate(ran) if one.kind == "attention"]
    if not attending or left.shape != entered.shape:
        return {}
    found: dict[InnerPart, Tensor] = {}
    # What the block gives is what the next thing takes: its end is evidence like any module's input.
    end = Ran("norm", "", nn.Identity(), left, left)
    start, stream = 0, entered
    for place, following in itertools.zip_longest(attending, attending[1:], fillvalue=len(ran)):
        before, attention = ran[start:place], ran[place]
        inside = [at for at in range(start, place) if attention.module in ran[at].within]
        last_linear = [at for at in inside if ran[at].kind == "linear"][-1:]
        for at in (*last_linear, *range(place, following)):
            after = [*(one for one in ran[at + 1 :] if one is not attention), end]
            way = next(assemblies(attention.input, ran[at].output, before, after), None)
            if way is not None and way.kind != "parallel" and way.target.shape == entered.shape:
                found.setdefault("attention_output", _origin(ran[place : at + 1], ran[at]))
                stream, start = way.target, at + 1
                break
        else:
            # Attention that adds and normalises by itself gives the stream; its branch cannot be told then.
            if not any(ran[at].kind == "norm" and _equal(ran[at].output, attention.output) for at in inside):
                return found or _side_by_side(entered, ran, place, left)
            stream, start = attention.output, place + 1
    found["after_attention"] = stream
    if (branch := _added(stream, ran[start:], left)) is not None:
        found["mlp_output"] = branch
    return found


def _added(stream: Tensor, ran: Sequence[Ran], left: Tensor) -> Tensor | None:
    """The output of a module that makes the block's output, or what the norm at its end was given, out of the
    stream: of several, the one that fits best."""
    ends = [left, *(one.input for one in ran if one.kind == "norm" and _equal(one.output, left))]
    best, fit = None, TOLERANCE
    for at, one in enumerate(ran):
        for end in ends:
            if one.output.shape != end.shape or (scale := _scale(end, stream, one.output)) is None:
                continue
            error = _distance(end, stream + scale * one.output)
            if error < fit:
                best, fit = _origin(ran[: at + 1], one), error
    return best


def _origin(ran: Sequence[Ran], last: Ran) -> Tensor:
    """What a branch was before norms, dropout and scales that are modules of their own came over it."""
    while last.kind in ("norm", "other") and is_leaf(last.module):
        earlier = next((one for one in reversed(ran) if one is not last and _equal(one.output, last.input)), None)
        if earlier is None:
            break
        ran, last = [one for one in ran if one is not last], earlier
    return last.output


def _side_by_side(entered: Tensor, ran: Sequence[Ran], place: int, left: Tensor) -> dict[InnerPart, Tensor]:
    """Attention and feed-forward of a block that adds both to its input at once."""
    best: dict[InnerPart, Tensor] = {}
    fit = TOLERANCE
    attention = ran[place].module
    alike = [one for one in ran if one.output.shape == left.shape and one.kind != "norm"]
    own = [one for one in alike if attention in one.within and one.kind == "linear"]
    apart = [one for one in alike if attention not in one.within and attention not in one.module.modules()]
    for branch in (*own[-1:], *(one for one in alike if one is ran[place])):
        for other in apart:
            error = _distance(left, entered + branch.output + other.output)
            if error < fit:
                best, fit = {"attention_output": branch.output, "mlp_output": other.output}, error
    return best


def _reappears(after: Sequence[Ran], stream: Tensor, branch: Tensor) -> tuple[float, Tensor] | None:
    """The first thing that ran later on stream + scale * branch."""
    for ran in after:
        scale = _scale(ran.input, stream, branch)
        if scale is not None:
            return scale, ran.input
    return None


def _parallel(after: Sequence[Ran], stream: Tensor, branch: Tensor) -> Tensor | None:
    half = stream + branch
    for late in after:
        if late.input.shape == half.shape:
            for other in _linear_outputs(after, half):
                if _equal(late.input, half + other) or _rounded(late.input, half.double() + other):
                    return half
    return None


def _goes_on(after: Sequence[Ran], norm: Ran) -> bool:
    """Whether the stream goes on from what the norm gave, and not past it: from what it was given."""
    later = [ran for ran in after if ran.kind == "norm" and ran is not norm]
    if not later:
        return True
    branches = list(_linear_outputs(after, norm.output))
    return not any(_equal(later[0].input, norm.input + branch) for branch in branches)


def _linear_outputs(after: Sequence[Ran], like: Tensor) -> Iterator[Tensor]:
    yield from (ran.output for ran in after if ran.kind == "linear" and ran.output.shape == like.shape)


def _scale(total: Tensor, stream: Tensor, branch: Tensor) -> float | None:
    """c with total = stream + c * branch, if there is one that is not zero."""
    if total.shape != stream.shape:
        return None
    if _equal(total, stream + branch):
        return 1.0
    rest, wide = total.double() - stream.double(), branch.double()
    if total.dtype in HALF:
        # The rounding of one long token outweighs all others: each token has its say.
        energies = wide.square().sum(dim=-1)
        scale = float(((rest * wide).sum(dim=-1) / energies.where(energies > 0, 1.0)).median())
    else:
        energy = float(wide.square().sum())
        scale = float((rest * wide).sum()) / energy if energy > 0 else 0.0
    # Small next to rounding is no evidence: a scale is believed only when the branch shows in the sum.
    if abs(scale) < 1e-3:
        return None
    same = _equal(total, stream + scale * branch) or _rounded(total, stream.double() + scale * wide)
    return scale if same else None


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) <= TOLERANCE * float(other.abs().max())


def _rounded(one: Tensor, exact: Tensor) -> bool:
    """Whether every token in half precision is the exact sum to one rounding: scaled and repeated sums are rounded on
    the way, which sums of two, made as the model makes them, are not. A token is judged by its own length, so that a
    token that outweighs all others does not hide a difference."""
    if one.dtype not in HALF or one.shape != exact.shape:
        return False
    apart = torch.linalg.vector_norm(one.double() - exact, dim=-1)
    return bool((apart <= torch.finfo(one.dtype).eps * torch.linalg.vector_norm(exact, dim=-1)).all())


def _distance(one: Tensor, other: Tensor) -> float:
    largest = float(other.abs().max())
    return float((one - other).abs().max()) / largest if largest > 0 else 0.0
