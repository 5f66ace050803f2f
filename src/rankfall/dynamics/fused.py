"""Many layers of one head on a GPU, without norm and residual connection: few launches, and one look for all of them.

A short sequence stays in one program's registers from the first layer to the last. Along a band a layer is two
kernels: one reads the residual once and writes it once, the other finds the normal form, which the next layer applies
while reading. Forms of a layer that these kernels do not know (see `split_attention`) end the run of layers in front
of them: whoever asked computes that layer otherwise, and asks again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from rankfall.dynamics.kernels import MOST_WHOLE, one_map_per_token, power, usable
from rankfall.dynamics.launch import Launch, launch
from rankfall.dynamics.mixing import SampleGroup
from rankfall.dynamics.replay import LONGEST_PAUSE, MOST_KEPT, MOVING, PassedLayers, recorded_layers
from rankfall.dynamics.split import Split, joined
from rankfall.dynamics.split_attention import log_score_gap, split_step
from rankfall.mechanism.heads import Heads

MOST_LAYERS, MOST_TOLD = 256, 16
"""Layers between two looks; where log mu is asked of every layer, for someone who may soon not need it any more."""
MOST_PARTS, FOLDED = 128, 32
"""Blocks whose numbers one program gathers at once, and of how many one is made before where there are more."""
FEWER_REGISTERS = 128
"""A thread's, of small tiles with scores: a few spill, but twice as many blocks run side by side (a sixth faster)."""
PLACES = 8
"""Numbers carried per sample behind common part and offset; see `band_kernels`."""
SIZE, RATIO, INVERSE, RIGHT, MU, RELATIVE = range(6)
MOST_RECENT = 4
TRIED, CLOSE = 2, 1e-10

Run = tuple[int, Tensor, list[Split]]
"""How many layers were right; log mu and log relative mu (layers, 2, b), of those recorded or, if exact, of all; the
states of those recorded, if kept, and of the last."""
_tried: dict[Hashable, bool] = {}


@final
class FusedLayers:
    """Weights and mask of all layers of a run as the kernels take them."""

    def __init__(self, heads: Heads, groups: list[SampleGroup], key: tuple[Hashable, ...]) -> None:
        self.heads, self.groups, self.key = heads, groups, key
        prepared, mixer = groups[0].prepared(heads), groups[0].mixer
        self.query, self.key_map, self.value, self.form = (
            _Maps.of(one) for one in (prepared.query, heads.key, prepared.value_sum, prepared.score_forms)
        )
        zero = torch.zeros((), dtype=torch.float64)
        self.log_strength = float(log_score_gap(zero, zero, [prepared]))
        self.blocks = None if mixer.complete else mixer.blocks
        self.filled = mixer.filled
        self.begin_again()

    def begin_again(self) -> None:
        """A new run: nothing has failed yet."""
        self._pause, self._failed = 0, 0
        self._exact = self.blocks is None or self.blocks.whole

    def advance(
        self, layer: int, state: Split, layers: int, thin: int, only_spread: bool, every: bool = False
    ) -> PassedLayers | None:
        """As many layers as these kernels know, at most up to `layers`; None when the next needs another form.

        `every`: few of them, with log mu of each.
        """
        if self._pause > 0:
            self._pause -= 1
            return None
        run = self._whole if self.blocks is None or self.blocks.whole else self._along_a_band
        right = self._is_right(run, layer, state)
        if not right:
            self._stumble(right is None)
            return None
        count = min(MOST_TOLD if every else MOST_LAYERS, layers - layer)
        if not only_spread:
            count = min(count, max(1, MOST_KEPT // state.residual.numel()) * thin)
        recorded = recorded_layers(range(layer + 1, layer + count + 1), thin, layers)
        kept, exact = not only_spread, every or self._exact
        done, spreads, states = run(layer, state, count, recorded, kept, exact)
        if done < count and not exact:
            self._exact = True
            done, spreads, states = run(layer, state, count, recorded, kept, True)
        if done < count:
            self._stumble(done == 0)
            if done == 0:
                return None
            recorded = [place for place in recorded if place <= layer + done]
            _, spreads, states = run(layer, state, done, recorded, kept, exact or self._exact)
        log_mu = spreads[:, 0] if every else None
        if only_spread:
            all_told = len(recorded) == len(spreads)
            told = spreads if all_told else spreads[[place - layer - 1 for place in recorded]]
            return PassedLayers(layer + done, states[-1], recorded, None, told, sound=True, log_mu=log_mu)
        states_kept = joined(states[:-1]) if recorded else None
        return PassedLayers(layer + done, states[-1], recorded, states_kept, sound=True, log_mu=log_mu)

    def _stumble(self, at_once: bool) -> None:
        """Do not try again for a while, longer each time that nothing was gained."""
        self._failed = min(2 * self._failed or 1, LONGEST_PAUSE) if at_once else 0
        self._pause = max(0, self._failed - 1)

    def _is_right(self, run: Callable[..., Run], layer: int, state: Split) -> bool | None:
        """Whether the kernels, as compiled for such a run, agree with PyTorch: tried once, on its first layers.

        None where these need a form that the kernels do not know.

        Compilers, drivers and GPUs differ more than tests can follow.
        """
        kind = (*self.key[1:], self.log_strength > -torch.inf)
        if kind not in _tried:
            try:
                done, _, (*_, made) = run(layer, state, TRIED, [], False, False)
                if done < TRIED:
                    return None
                plain = state
                for _ in range(done):
                    plain = split_step(plain, self.heads, self.groups)
            except Exception:  # whatever a compiler throws
                _tried[kind] = False
                return False
            _tried[kind] = all(
                bool(torch.isclose(getattr(made, name), getattr(plain, name), rtol=CLOSE, atol=CLOSE).all())
                for name in MOVING
            )
        return _tried[kind]

    def _whole(self, layer: int, state: Split, count: int, recorded: list[int], kept: bool, exact: bool) -> Run:
        from rankfall.dynamics import fused_kernels as own

        batch, n, d = state.residual.shape
        residual, common = torch.empty_like(state.residual), torch.empty_like(state.common)
        scalars = common.new_empty(2, batch)
        told = common.new_empty((2 * count + 1) * batch)
        states = common.new_empty(len(recorded), batch, n * d + d + 2) if kept else told
        slots = _slots(layer, count, recorded).to(told.device) if kept else told
        rows, rank = power(n), self.heads.rank
        whole = launch(
            own.whole, (batch,),
            n, d, rank, self.query.stride, self.key_map.stride, self.value.stride, count, self.log_strength,
            COMPLETE=self.blocks is None, KEPT=kept, ROWS=rows, WIDTH=power(d), RANK=power(rank),
            num_warps=max(1, min(4, rows // 16)), num_stages=1,
        )  # fmt: skip
        whole(
            state.residual.contiguous(), state.common.contiguous(), state.log_size.contiguous(),
            state.log_ratio.contiguous(), self.query.maps, self.key_map.maps, self.value.maps,
            told if self.blocks is None else self.blocks.words, state.reference.contiguous(),
            residual, common, scalars, told, slots, states, told[2 * count * batch :],
        )  # fmt: skip
        end = Split(common, residual, scalars[0], scalars[1], state.reference)
        seen = told.cpu()
        spreads = seen[: 2 * count * batch].reshape(count, 2, batch)
        done = int(seen[2 * count * batch :].min())
        made = [_unpacked(one, end) for one in states] if kept else []
        return done, spreads, [*made, end]

    def _along_a_band(
        self, layer: int, state: Split, count: int, recorded: list[int], kept: bool, exact: bool
    ) -> Run:
        from rankfall.dynamics import band_kernels as own

        assert self.blocks is not None
        batch, n, d = state.residual.shape
        width = power(d)
        carried = state.residual.new_empty(count + 1, batch, 2 * width + PLACES)
        steps = carried.unbind()
        launch(own.begin, (batch,), d, WIDTH=width, num_warps=1)(
            state.common.contiguous(), state.log_size.contiguous(), state.log_ratio.contiguous(), carried
        )
        programs = [self.blocks.count * self.blocks.step]
        while programs[-1] > MOST_PARTS:
            programs.append(-(-programs[-1] // FOLDED))
        parts = [carried.new_empty(batch, many, 4 * width + PLACES) for many in programs]
        by_form = {form: self._of_a_layer(form, batch, n, d, programs) for form in {exact, True}}
        score_map, value_map, words = self.form.maps, self.value.maps, self.blocks.words
        reference, source = state.reference.contiguous(), state.residual.contiguous()
        spare = [torch.empty_like(source) for _ in range(2)]
        states: list[Split] = []
        wanted = {*recorded, layer + count}
        for place in range(count):
            target = spare[place % 2]
            band, folds, settle = by_form[exact or layer + place + 1 in wanted]
            band(source, steps[place], score_map, value_map, words, reference, target, parts[0])
            for fold, (many, few) in zip(folds, pairwise(parts), strict=True):
                fold(many, few)
            settle(parts[-1], steps[place], steps[place + 1], value_map, reference)
            source = target
            if place + 1 == count or (kept and layer + place + 1 in wanted):
                states.append(_normal(source, steps[place + 1], width, state))
        if kept and layer + count in recorded:
            states.append(states[-1])
        told = carried[1:, :, 2 * width :].cpu()
        right = told[..., RIGHT].amin(dim=-1).cumprod(dim=0)
        spreads = told[..., MU : RELATIVE + 1].transpose(1, 2)
        return int(right.sum()), spreads, states

    def _of_a_layer(
        self, exact: bool, batch: int, n: int, d: int, programs: list[int]
    ) -> tuple[Launch, list[Launch], Launch]:
        """The kernels of a layer along a band: over its blocks, to gather what many of these tell, to settle it."""
        from rankfall.dynamics import band_kernels as own

        assert self.blocks is not None
        blocks, width = self.blocks, power(d)
        scored = self.log_strength > -torch.inf
        halved = scored and self.filled and power(blocks.reach) == 2 * blocks.block == 2 * power(blocks.block)
        band = launch(
            own.band, (blocks.count, blocks.step, batch),
            n, d, self.form.stride, self.value.stride, blocks.step, blocks.lower, blocks.block, blocks.reach,
            SCORED=scored, EXACT=exact, FILLED=self.filled, HALVED=halved, EVEN=d == width,
            BLOCK=power(blocks.block), REACH=power(blocks.reach), WIDTH=width,
            num_warps=2 if blocks.block <= 32 else 4, num_stages=1,
            maxnreg=FEWER_REGISTERS if scored and blocks.block <= 32 and width <= 32 else None,
        )  # fmt: skip
        folds = [
            launch(own.fold, (few, batch), many, EXACT=exact, ROWS=FOLDED, WIDTH=width)
            for many, few in pairwise(programs)
        ]
        settle = launch(
            own.settle, (batch,), n, d, programs[-1], self.value.stride,
            SCORED=scored, EXACT=exact, ROWS=power(programs[-1]), WIDTH=width, num_warps=4,
        )  # fmt: skip
        return band, folds, settle


@final
@dataclass(frozen=True)
class _Maps:
    """One matrix for all samples (stride 0), or one for each."""

    maps: Tensor
    stride: int

    @classmethod
    def of(cls, given: Tensor) -> _Maps:
        maps = given.reshape(-1, *given.shape[-2:]).contiguous()
        return cls(maps, 0 if len(maps) == 1 else maps.stride(0))


def _slots(layer: int, count: int, recorded: list[int]) -> Tensor:
    """Which place among the recorded each layer has; -1 for none."""
    slots = torch.full((count,), -1)
    slots[[place - layer - 1 for place in recorded]] = torch.arange(len(recorded))
    return slots


def _normal(written: Tensor, carried: Tensor, width: int, like: Split) -> Split:
    """What the kernels of a band wrote, in normal form."""
    d = written.shape[-1]
    residual = (written - carried[:, None, width : width + d]).mul_(carried[:, 2 * width + INVERSE, None, None])
    return Split(
        carried[:, :d], residual, carried[:, 2 * width + SIZE], carried[:, 2 * width + RATIO], like.reference
    )


def _unpacked(numbers: Tensor, like: Split) -> Split:
    batch, n, d = like.residual.shape
    residual = numbers[:, : n * d].reshape(batch, n, d)
    common = numbers[:, n * d : n * d + d]
    return replace(like, residual=residual, common=common, log_size=numbers[:, -2], log_ratio=numbers[:, -1])


def takes(heads: Heads, groups: list[SampleGroup], residual: Tensor) -> bool:
    """Whether layers of these weights and masks are among those that the kernels know."""
    if len(groups) > 1 or len(groups[0].mixer.masks) > 1 or not usable(residual):
        return False
    prepared, mixer = groups[0].prepared(heads), groups[0].mixer
    if prepared.biased or not one_map_per_token(heads) or heads.value_rank != residual.shape[-1]:
        return False
    return residual.shape[-2] <= MOST_WHOLE if mixer.complete else mixer.by_kernel(residual)


_recent: OrderedDict[Hashable, FusedLayers] = OrderedDict()


def fused_layers(heads: Heads, groups: list[SampleGroup], residual: Tensor, masks: Hashable) -> FusedLayers | None:
    """These layers for the kernels, perhaps those of an earlier run of the same; None where they do not fit."""
    key = (id(heads), masks, *residual.shape, str(residual.device))
    found = _recent.pop(key, None)
    if found is None or found.heads is not heads:
        if not takes(heads, groups, residual):
            return None
        found = FusedLayers(heads, groups, key)
    found.begin_again()
    _recent[key] = found
    while len(_recent) > MOST_RECENT:
        _recent.popitem(last=False)
    return found
