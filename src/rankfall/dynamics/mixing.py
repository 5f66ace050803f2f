"""Which samples attend under which mask in each layer, softmax attention under it, and plain averaging."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.dynamics.kernels import MOST_WHOLE, Blocks, blocks_usable, reach_of
from rankfall.dynamics.weights import PreparedHeads, take_heads
from rankfall.errors import require
from rankfall.masks import Band, Mask, MaskSchedule
from rankfall.mechanism.attend import allowed_in_blocks, banded_attend, banded_mix, pays, scores, softmax_weights
from rankfall.mechanism.heads import Heads

# Masks with a smaller share of allowed pairs are averaged as sparse matrices.
SPARSE_SHARE = 0.125

Masks = Mask | MaskSchedule | Sequence[Mask | MaskSchedule]
"""One mask or schedule for the whole batch, or one for each sample."""


@final
class Mixer:
    """One mask at n tokens (or a stack of masks, one per sample): what attention needs, and uniform averaging."""

    def __init__(self, masks: tuple[Mask, ...], n: int, device: torch.device) -> None:
        self.n, self.device = n, device
        self.masks = masks
        for mask in masks:
            mask.check(n)

    @cached_property
    def pattern(self) -> Mask | Tensor:
        """What `attend` takes: the mask itself, or a boolean (b, 1, n, n)."""
        if len(self.masks) == 1:
            return self.masks[0]
        return torch.stack([mask.dense(self.n, self.device) for mask in self.masks])[:, None]

    @cached_property
    def complete(self) -> bool:
        """Every token sees every token: then collapse is cubic and needs its own route."""
        return self.masks[0].band(self.n) is None and bool(self.masks[0].dense(self.n).all())

    @cached_property
    def _band(self) -> Band | None:
        """The band that attention follows, where that pays."""
        band = self.masks[0].band(self.n)
        return band if len(self.masks) == 1 and pays(band, self.n) else None

    @cached_property
    def _allowed(self) -> Tensor | None:
        """What the mask allows, once for all layers: by blocks where a band pays, else by pairs; None for all."""
        pattern = self.pattern
        if isinstance(pattern, Tensor):
            return pattern
        if self.complete:
            return None
        if self._band is not None:
            return allowed_in_blocks(pattern, self._band, self.n, self.device)
        return pattern.dense(self.n, self.device)

    def attend(
        self, query: Float[Tensor, "b h n r"], key: Float[Tensor, "b h n r"], value: Float[Tensor, "b h n v"]
    ) -> Float[Tensor, "b h n v"]:
        """Softmax attention under the mask; the queries bring the factor of the scores with them."""
        if self._band is not None:
            return banded_attend(query, key, value, self.masks[0], self._band, 1.0, allowed=self._allowed)
        return softmax_weights(scores(query, key, 1.0), self._allowed) @ value

    def weights(
        self, query: Float[Tensor, "b h n r"], key: Float[Tensor, "b h n r"]
    ) -> Float[Tensor, "b h n n"] | None:
        """The weights of `attend`; None where it follows a band and never forms them."""
        return None if self._band is not None else softmax_weights(scores(query, key, 1.0), self._allowed)

    def log_weights(self, query: Float[Tensor, "b h n r"], key: Float[Tensor, "b h n r"]) -> Float[Tensor, "b h n n"]:
        """Logarithms of the weights: -inf where the mask forbids, finite where a weight would be rounded to zero."""
        score = scores(query, key, 1.0)
        if self._allowed is not None:
            score = score.masked_fill(~self._allowed, -torch.inf)
        return torch.log_softmax(score, dim=-1)

    @cached_property
    def _average(self) -> Tensor:
        """Uniform attention as a matrix: sparse where few pairs are allowed, never n^2 in memory under a band."""
        pattern = self.pattern
        if isinstance(pattern, Tensor):
            weights = pattern[:, 0].double()
            return weights / weights.sum(dim=-1, keepdim=True)
        rows, columns = pattern.pairs(self.n)
        degrees = torch.bincount(rows, minlength=self.n)
        values = (1 / degrees.double())[rows]
        indices = torch.stack([rows, columns])
        size = (self.n, self.n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces that CSR tensors are in beta
            weights = torch.sparse_coo_tensor(indices, values, size, check_invariants=False).to_sparse_csr()
        sparse = len(rows) < SPARSE_SHARE * self.n**2
        return (weights if sparse else weights.to_dense()).to(self.device)

    @cached_property
    def _average_in_blocks(self) -> Tensor | None:
        """Uniform attention by the blocks of a band.

        For GPUs: on an H200 a layer by the sparse matrix took 20 ms where one with scores, by blocks, took 3.
        """
        if self._band is None or self._allowed is None or self.device.type == "cpu":
            return None
        weights = self._allowed.double()
        return weights / weights.sum(dim=-1, keepdim=True)

    def by_kernel(self, residual: Float[Tensor, "b n d"]) -> bool:
        """Whether a layer under this mask is one kernel for such tokens: along a band, or of few of them."""
        if len(self.masks) > 1 or self.complete:
            return False
        if self._band is None:
            return self.n <= MOST_WHOLE and blocks_usable(residual, self.n)
        return blocks_usable(residual, reach_of(self._band))

    @cached_property
    def blocks(self) -> Blocks:
        """The mask as the kernel takes it."""
        assert self._allowed is not None
        return Blocks.of_all(self._allowed) if self._band is None else Blocks.along(self._band, self._allowed, self.n)

    @cached_property
    def filled(self) -> bool:
        """Whether the mask follows a band and allows every pair in it."""
        band = self._band
        if band is None or self._allowed is None:
            return False
        padded = self._allowed[..., 0].numel() - self.n
        most = sum(max(0, self.n - band.step * abs(k)) for k in range(-band.lower, band.upper + 1))
        return int(self._allowed.sum()) - padded * self._allowed.shape[-1] == most

    def average(self, values: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """Uniform attention: every token becomes the mean of those it sees."""
        if self._band is not None and self._average_in_blocks is not None:
            return banded_mix(self._average_in_blocks, values, self._band)
        if self._average.layout == torch.sparse_csr and values.ndim == 3:
            together = values.transpose(0, 1).reshape(self.n, -1)
            mixed = self._average @ together
            return mixed.reshape(self.n, *values.shape[::2]).transpose(0, 1)
        return self._average @ values


@final
class SampleGroup:
    """Samples that attend alike. `index` is None when that is all of them."""

    def __init__(self, mixer: Mixer, index: Tensor | None) -> None:
        self.mixer, self.index = mixer, index
        self._last: tuple[Heads, PreparedHeads] | None = None

    def prepared(self, heads: Heads) -> PreparedHeads:
        """The group's share of the weights, prepared; kept while the same weights come again."""
        if self._last is None or self._last[0] is not heads:
            own = heads if self.index is None else take_heads(heads, self.index)
            self._last = (heads, PreparedHeads(own))
        return self._last[1]


@final
class MaskPlan:
    """The groups of every layer, built once per distinct layer of the schedules' common period."""

    def __init__(self, masks: Masks, batch: int, n: int, device: torch.device | str = "cpu") -> None:
        given = [masks] if isinstance(masks, (Mask, MaskSchedule)) else list(masks)
        require(
            len(given) in (1, batch),
            required=f"one mask, or one for each of the {batch} samples",
            got=f"{len(given)} masks",
            remedy="repeat each mask for the samples it is meant for",
        )
        self.schedules = [MaskSchedule.of(one) for one in given]
        self.batch, self.n, self.device = batch, n, torch.device(device)
        self.period = math.lcm(*(schedule.period for schedule in self.schedules))
        self.key = tuple(tuple(_key(mask) for mask in schedule.masks) for schedule in self.schedules)
        self._groups: dict[int, list[SampleGroup]] = {}
        self._mixers: dict[object, Mixer] = {}

    def reference(self) -> Float[Tensor, "b n"]:
        """Which token the others are told apart from: a root where not all tokens are roots, else the mean."""
        roots = [
            _only_root(schedule, self.n) if _is_hashable(schedule) else _only_root.__wrapped__(schedule, self.n)
            for schedule in self.schedules
        ]
        if all(root is None for root in roots):
            return torch.full((self.batch, self.n), 1 / self.n, dtype=torch.float64, device=self.device)
        weights = torch.full((len(self.schedules), self.n), 1 / self.n, dtype=torch.float64)
        for row, root in zip(weights, roots, strict=True):
            if root is not None:
                row.zero_()
                row[root] = 1.0
        spread = weights.expand(self.batch, self.n)
        return spread if self.device.type == "cpu" else spread.to(self.device).contiguous()

    def names(self, samples: Sequence[int]) -> str:
        """The masks of these samples in words, each once."""
        own = [self.schedules[sample if len(self.schedules) > 1 else 0] for sample in samples]
        return ", ".join(dict.fromkeys(map(str, own)))

    def at(self, layer: int) -> list[SampleGroup]:
        """How the samples are grouped in that layer."""
        place = layer % self.period
        if place not in self._groups:
            self._groups[place] = self._group([schedule.at(layer) for schedule in self.schedules])
        return self._groups[place]

    def _group(self, masks: list[Mask]) -> list[SampleGroup]:
        if len(masks) == 1:
            return [SampleGroup(self._mixer((masks[0],)), None)]
        places: dict[object, list[int]] = {}
        for sample, mask in enumerate(masks):
            single = self._mixer((mask,))
            alone = single.complete or pays(mask.band(self.n), self.n)
            places.setdefault(_key(mask) if alone else "dense", []).append(sample)
        groups = []
        for key, samples in places.items():
            chosen = tuple(masks[sample] for sample in samples)
            alike = key != "dense" or len({_key(mask) for mask in chosen}) == 1
            mixer = self._mixer(chosen[:1] if alike else chosen)
            whole = len(samples) == self.batch
            groups.append(SampleGroup(mixer, None if whole else torch.tensor(samples, device=self.device)))
        return groups

    def _mixer(self, masks: tuple[Mask, ...]) -> Mixer:
        key = tuple(_key(mask) for mask in masks)
        if key not in self._mixers:
            self._mixers[key] = Mixer(masks, self.n, self.device)
        return self._mixers[key]


@lru_cache(maxsize=64)
def _only_root(schedule: MaskSchedule, n: int) -> int | None:
    """A root of the masks' graph where not all tokens are roots; to list them all takes milliseconds for many."""
    roots = schedule.facts(n).roots
    return roots[0] if 0 < len(roots) < n else None


def _key(mask: Mask) -> object:
    return mask if _is_hashable(mask) else id(mask)


def _is_hashable(thing: object) -> bool:
    try:
        hash(thing)
    except TypeError:
        return False
    return True
