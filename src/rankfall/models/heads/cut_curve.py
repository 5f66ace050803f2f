"""What a model loses when its heads are cut to k directions: all heads at once, and one layer at a time.

The directions are those of `truncation`, from the tokens of the uncut run. With all directions kept the cut model
must give the loss that the model gives without us, or nothing is said. Of a model without a next-token loss the
change of its output is measured instead. Blocks before the layer that is cut are not computed again: they give what
they gave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import require
from rankfall.models.heads.calls import Attended, CallPlace, HeldCall, held_calls
from rankfall.models.heads.truncation import Truncation
from rankfall.models.inputs.texts import Batch
from rankfall.models.load.folder import LoadedModel
from rankfall.models.loss import LastHidden, last_hidden, replaced_forward, text_loss
from rankfall.models.recording.blocks import BlockStack, first_tokens, stream_of
from rankfall.progress import Progress, silent

# Nats, and relative to the output: eager attention in float32 against the model's own; half precision rounds more.
VERIFIED = {torch.bfloat16: 5e-2, torch.float16: 1e-2}
VERIFIED_AT_LEAST = 1e-3


@final
@dataclass(frozen=True)
class CutPoint:
    """The model with heads cut to `rank` directions: those of one attention layer, or of all (`layer` None).

    `loss` in nats per token, None for a model without a next-token loss; `output_change` is the root mean square over
    tokens of the distance between the outputs with and without the cut, over the length without.
    """

    layer: int | None
    module: str | None
    rank: int
    loss: float | None
    loss_change: float | None
    output_change: float

    def record(self) -> dict[str, Any]:
        """The point as `--json` prints it."""
        return asdict(self)


@final
@dataclass(frozen=True)
class CutCurve:
    """`at_needs` is the model with each head cut to what it needs alone, its `rank` the mean of these, rounded.
    `loss` is the model's own, None for `loss_reason`; `error` is how far the model with all directions kept is from
    it (in nats, or of the output where there is no loss), at most `tolerance`.
    """

    head_dim: int
    loss: float | None
    loss_reason: str | None
    points: tuple[CutPoint, ...]
    at_needs: CutPoint
    error: float
    tolerance: float

    @property
    def together(self) -> list[CutPoint]:
        """All heads at once, fewest directions first."""
        return [one for one in self.points if one.layer is None]

    @property
    def alone(self) -> list[CutPoint]:
        """One layer at a time."""
        return [one for one in self.points if one.layer is not None]

    def record(self) -> dict[str, Any]:
        """The curve as `--json` prints it."""
        points = [one.record() for one in self.points]
        return {**asdict(self), "points": points, "at_needs": self.at_needs.record()}


def cut_ranks(head_dim: int) -> list[int]:
    """Powers of two below the head size, and the head size."""
    return [*(1 << power for power in range((head_dim - 1).bit_length())), head_dim]


def cut_curve(
    loaded: LoadedModel,
    calls: Sequence[Mapping[str, Any]],
    truncations: Mapping[CallPlace, Truncation],
    needs: Mapping[CallPlace, Tensor],
    *,
    batch: Batch | None = None,
    real: Sequence[Tensor | None] = (),
    stack: BlockStack | None = None,
    progress: Progress = silent,
) -> CutCurve:
    """The points of the curve, verified; a layer is an attention call, counted from 0 in the order of the run.

    `needs` holds by call the ranks (h,) that its heads need.
    """
    run = _Runs(loaded, calls, truncations, batch, real, () if stack is None else stack.blocks)
    widest = max(one.rank for one in truncations.values())
    ranks = cut_ranks(widest)
    # A layer at a time takes as many passes as there are layers: every second number of directions shows the curve.
    few = ranks[:-1:2]
    total, done = 1 + len(ranks) + len(truncations) * len(few), 0

    def tell(what: str) -> None:
        nonlocal done
        progress(what, done / total)
        done += 1

    tell("all heads uncut")
    kept = run.point(None, widest)
    tolerance = max(VERIFIED_AT_LEAST, VERIFIED.get(run.dtype, 0.0))
    error = _require_same(kept, tolerance, "all heads")
    tell("every head cut to what it needs")
    at_needs = run.point(None, round(float(torch.cat(list(needs.values())).double().mean())), needs)
    together = []
    for rank in ranks[:-1]:
        tell(f"all heads cut to {rank}")
        together.append(run.point(None, rank))
    alone: list[CutPoint] = []
    with run.kept_blocks():
        places = list(truncations)
        _require_same(run.point(len(places) - 1, truncations[places[-1]].rank), tolerance, "the last layer")
        for layer, place in enumerate(places):
            for rank in (one for one in few if one < truncations[place].rank):
                tell(f"layer {layer + 1} of {len(places)} cut to {rank}")
                alone.append(run.point(layer, rank))
    return CutCurve(widest, run.loss, run.loss_reason, (*together, kept, *alone), at_needs, error, tolerance)


def _require_same(kept: CutPoint, tolerance: float, what: str) -> float:
    """How far the model is from itself with all directions kept, if that is little."""
    error = kept.output_change if kept.loss_change is None else abs(kept.loss_change)
    require(
        error <= tolerance,
        required=f"a model that gives the same with all directions of {what} kept",
        got=f"a difference of {error:.2g}, above {tolerance:g}",
        remedy="its heads are not cut",
    )
    return error


class _Runs:
    """The model as it is, and runs of it with cut heads."""

    def __init__(
        self,
        loaded: LoadedModel,
        calls: Sequence[Mapping[str, Any]],
        truncations: Mapping[CallPlace, Truncation],
        batch: Batch | None,
        real: Sequence[Tensor | None],
        blocks: Sequence[nn.Module],
    ) -> None:
        self._loaded, self._calls, self._batch, self._real = loaded, calls, batch, real
        self._truncations, self._places = truncations, list(truncations)
        # A block that runs several times gives something else each time.
        self._blocks = list(blocks) if len(set(map(id, blocks))) == len(blocks) else []
        self._given: list[list[Any]] = []
        self._own = self._read(None)
        found = text_loss(loaded, batch, self._hidden)
        self.loss, self.loss_reason = found.value, found.reason
        self.dtype = self._own[0].dtype

    def point(self, layer: int | None, rank: int, each: Mapping[CallPlace, Tensor] | None = None) -> CutPoint:
        """All heads, or those of one attention call, cut to so many directions, or each to its own number."""
        wanted = self._places if layer is None else [self._places[layer]]
        ranks = each or {place: torch.tensor(min(rank, self._truncations[place].rank)) for place in wanted}
        output = self._read(self._cutting(ranks), skipped=self._before(layer))
        loss = text_loss(self._loaded, self._batch, self._hidden).value if self.loss is not None else None
        change = None if loss is None or self.loss is None else loss - self.loss
        name = None if layer is None else self._places[layer][0]
        return CutPoint(layer, name, rank, loss, change, _change(output, self._own, self._real))

    def _cutting(self, ranks: Mapping[CallPlace, Tensor]) -> Callable[[HeldCall], Attended]:
        def answer(call: HeldCall) -> Attended:
            if call.place not in ranks:
                return call.attend()
            return call.attend(self._truncations[call.place].queries(call.query, ranks[call.place]))

        return answer

    @contextlib.contextmanager
    def kept_blocks(self) -> Iterator[None]:
        """Inside, what every block gives without a cut is kept, so that it need not be computed again."""
        current: list[Any] = []
        with contextlib.ExitStack() as hooks:
            for block in self._blocks:
                hooks.callback(block.register_forward_hook(lambda _m, _a, output: current.append(output)).remove)
            for call in self._calls:
                current.clear()
                with torch.inference_mode(), held_calls(self._loaded.network, lambda held: held.attend()):
                    self._loaded.network(**call)
                self._given.append(list(current) if len(current) == len(self._blocks) else [])
        try:
            yield
        finally:
            self._given = []

    def _before(self, layer: int | None) -> int:
        """How many blocks end before this attention call."""
        if layer is None or not self._given:
            return 0
        module = self._loaded.network.get_submodule(self._places[layer][0])
        holding = (at for at, block in enumerate(self._blocks) if any(module is one for one in block.modules()))
        return next(holding, 0)

    def _read(self, answer: Callable[[HeldCall], Attended] | None, skipped: int = 0) -> list[Tensor]:
        """What the model gives on every call; the last hidden state stays for the loss."""
        network = self._loaded.network
        outputs = []
        streams: list[Tensor | None] = []
        with torch.inference_mode(), last_hidden(network) as self._hidden, contextlib.ExitStack() as around:
            for block in self._blocks[-1:]:
                hook = block.register_forward_hook(lambda _m, _a, output: streams.append(stream_of(output)))
                around.callback(hook.remove)
            if answer is not None:
                around.enter_context(held_calls(network, answer))
            for number, call in enumerate(self._calls):
                with contextlib.ExitStack() as before:
                    for at in range(skipped if self._given and self._given[number] else 0):
                        given = self._given[number][at]
                        before.enter_context(
                            replaced_forward(self._blocks[at], lambda *_, given=given, **__: _copied(given))
                        )
                    output = network(**call)
                found = _tokens_of(output, streams[-1] if streams else None)
                require(
                    found is not None,
                    required="a model that gives tokens, (b, n, d)",
                    got=type(output).__name__,
                    remedy="its heads are not cut",
                )
                assert found is not None
                outputs.append(found)
        return outputs

    _hidden: LastHidden


def _tokens_of(output: Any, stream: Tensor | None) -> Tensor | None:
    """The last hidden state, else what the last block gave: a module may give its last token alone, or logits."""
    last = getattr(output, "last_hidden_state", None)
    return last if isinstance(last, Tensor) else first_tokens(output) if stream is None else stream


def _copied(value: Any) -> Any:
    """Blocks may write into what they are given."""
    if isinstance(value, Tensor):
        return value.clone()
    return type(value)(_copied(one) for one in value) if type(value) in (tuple, list) else value


def _change(output: Sequence[Tensor], own: Sequence[Tensor], real: Sequence[Tensor | None]) -> float:
    """Root mean square over real tokens of |changed - own| / |own|."""
    total, count, text = 0.0, 0, 0
    for ours, theirs in zip(output, own, strict=True):
        shares = _lengths(ours - theirs) / _lengths(theirs).clamp_min(torch.finfo(torch.float64).tiny)
        for row in shares.flatten(1) if shares.ndim > 1 else shares[None]:
            keep = real[text] if text < len(real) else None
            row = row if keep is None or keep.shape[0] != row.shape[0] else row[keep.to(row.device)]
            total, count, text = total + float(row.square().sum()), count + row.numel(), text + 1
    return (total / max(count, 1)) ** 0.5


def _lengths(tokens: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tokens.double(), dim=-1)
