"""How many directions of its scores a head needs: the fewest that reproduce its attention on the tokens it saw.

What a head needs is not what its weights spread over: directions that no token uses, or that the softmax does not
see, are not needed. Attention is recomputed by the model's own function with cut queries, so masks, position biases,
sinks and soft caps stay as they are; keys and values are those of the run, so a head is judged alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, reason_of, require, require_number
from rankfall.models.controls.reset import fresh_weights
from rankfall.models.controls.twin import random_weights, separate_twin
from rankfall.models.heads.calls import Attended, CallPlace, HeldCall, held_calls
from rankfall.models.heads.truncation import ScoreMoments, Truncation, best_truncation, row_divergences

DIVERGENCE = 0.01
"""Nats a row, in the mean: a model whose heads all differ by so much has its loss to a few hundredths of a nat."""
MOST_WEIGHTS = 1 << 27
"""Attention weights of one layer on all texts, held a few times over: half a GiB in float32 each time."""

Made = TypeVar("Made")


@final
@dataclass(frozen=True)
class HeadNeed:
    """One head on the tokens that it saw.

    `needed_rank` is the smallest number of directions with which the mean divergence of its rows from the model's is
    at most `limit` nats, `divergence` what it is with that number, `divergence_without` what it is with none: then
    only masks, position biases and sinks are left. `rows` is how many rows of attention were compared.
    """

    layer: int
    head: int
    kv_head: int
    module: str
    head_dim: int
    needed_rank: int
    divergence: float
    divergence_without: float
    limit: float
    rows: int

    @property
    def at_limit(self) -> bool:
        """Whether one direction fewer than it has is too few."""
        return self.needed_rank == self.head_dim

    def record(self) -> dict[str, Any]:
        """The head as `--json` prints it."""
        return {**asdict(self), "at_limit": self.at_limit}


@final
@dataclass(frozen=True, eq=False)
class HeadNeeds:
    """One record per head in the order of calls; by call, the truncations that were measured and the ranks (h,) that
    its heads need; why other modules have none."""

    records: tuple[HeadNeed, ...]
    truncations: Mapping[CallPlace, Truncation]
    ranks: Mapping[CallPlace, Tensor]
    missing: Mapping[str, str]


def head_needs(
    network: nn.Module,
    calls: Sequence[Mapping[str, Any]],
    real: Sequence[Tensor | None] = (),
    *,
    limit: float = DIVERGENCE,
) -> HeadNeeds:
    """What every head of the network needs on these inputs; `real` marks the tokens of each text that are no padding.

    One pass where all texts are read in one call, otherwise one to know the tokens, one with all directions kept,
    which must change nothing, and one for each step of a bisection, which takes the logarithm of the head size.
    """
    require_number("limit", limit, above=0)
    search = _Search(limit)
    with torch.inference_mode():
        if len(calls) == 1:
            with held_calls(network, search.at_once(real)):
                network(**calls[0])
        else:
            _in_turns(network, calls, real, search)
    require(
        bool(search.sites) or not search.missing,
        required="attention whose weights can be computed again",
        got=next(iter(search.missing.values()), "none"),
        remedy="what the heads need is left out",
    )
    require(
        bool(search.sites),
        required="attention through the library's interface or torch's functions",
        got=f"{type(network).__name__}, of which no queries and keys were seen",
        remedy="what the heads need is left out",
    )
    records = [one for number, site in enumerate(search.sites.values()) for one in site.records(number, limit)]
    return HeadNeeds(
        tuple(records),
        {place: site.cut for place, site in search.sites.items()},
        {place: site.high for place, site in search.sites.items()},
        search.missing,
    )


def on_random_twin(network: nn.Module, seed: int, work: Callable[[nn.Module], Made]) -> Made:
    """What `work` makes of the same architecture with random weights, in place where the library can draw them."""
    if not hasattr(network, "_from_config"):
        with fresh_weights(network, seed):
            return work(network)
    try:
        with random_weights(network, seed):
            return work(network)
    except RequestError:
        # Some parameters are initialised nowhere but where the library builds the model.
        return work(separate_twin(network, seed))


class _Site:
    """One attention call of the pass: its moments, then a bisection for all heads at once."""

    def __init__(self, call: HeldCall) -> None:
        self.name = call.place[0]
        self.heads, self.rank = call.query.shape[1], call.query.shape[-1]
        self.groups = self.heads // call.key.shape[1]
        self.moments: ScoreMoments | None = None
        self.cut: Truncation = None  # type: ignore[assignment]
        self.low = torch.full((self.heads,), -1)
        self.high = torch.full((self.heads,), self.rank)
        self.reached = torch.zeros(self.heads, dtype=torch.float64)
        self.with_all: Tensor | None = None
        self.without: Tensor | None = None
        self._sum = torch.zeros(self.heads, dtype=torch.float64)

    def add(self, call: HeldCall, weights: Tensor, real: Tensor | None) -> None:
        found = ScoreMoments.of(call.query, call.key, weights, real)
        self.moments = found if self.moments is None else self.moments + found

    def know(self) -> None:
        """All tokens were seen."""
        assert self.moments is not None
        self.cut = best_truncation(self.moments)

    @property
    def open(self) -> bool:
        return self.without is None or bool((self.high - self.low > 1).any())

    @property
    def trial(self) -> Tensor:
        if self.with_all is None:
            return self.high
        # Rounded up: a head that is done is tried again with what it needs, while others of the layer are open.
        return torch.zeros_like(self.low) if self.without is None else (self.low + self.high + 1) // 2

    def measure(self, call: HeldCall, weights: Tensor, real: Tensor | None) -> None:
        _, cut = call.with_weights(self.cut.queries(call.query, self.trial))
        for text in range(len(weights)):
            kept = slice(None) if real is None else real[text].to(weights.device)
            self._sum += row_divergences(weights[text, :, kept], cut[text, :, kept]).sum(dim=-1).cpu()

    def step(self, limit: float) -> None:
        """All tokens were measured at the trial's ranks."""
        assert self.moments is not None
        mean, trial = self._sum / max(self.moments.rows, 1), self.trial
        self._sum = torch.zeros_like(self._sum)
        if self.with_all is None:
            self.with_all = self.reached = mean
            _require_exact(mean, limit, self.name)
            return
        enough = mean <= limit
        if self.without is None:
            self.without = mean
        self.reached = torch.where(enough & (trial < self.high), mean, self.reached)
        self.high = torch.where(enough, trial.minimum(self.high), self.high)
        self.low = torch.where(enough, self.low, trial.maximum(self.low))

    def records(self, layer: int, limit: float) -> list[HeadNeed]:
        assert self.moments is not None
        assert self.without is not None
        return [
            HeadNeed(
                layer=layer,
                head=head,
                kv_head=head // self.groups,
                module=self.name,
                head_dim=self.rank,
                needed_rank=int(self.high[head]),
                divergence=float(self.reached[head]),
                divergence_without=float(self.without[head]),
                limit=limit,
                rows=self.moments.rows,
            )
            for head in range(self.heads)
        ]


class _Search:
    """All attention calls of a pass."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.sites: dict[CallPlace, _Site] = {}
        self.missing: dict[str, str] = {}

    def at_once(self, real: Sequence[Tensor | None]) -> Callable[[HeldCall], Attended]:
        """Everything while the call waits."""

        def work(call: HeldCall, weights: Tensor) -> None:
            kept = _rows(call, real)
            site = _Site(call)
            site.add(call, weights, kept)
            site.know()
            while site.open:
                site.measure(call, weights, kept)
                site.step(self.limit)
            self.sites[call.place] = site

        return self._answering(work)

    def adding(self, real: Sequence[Tensor | None]) -> Callable[[HeldCall], Attended]:
        """The tokens of one pass of several."""

        def work(call: HeldCall, weights: Tensor) -> None:
            site = self.sites.get(call.place) or _Site(call)
            site.add(call, weights, _rows(call, real))
            self.sites[call.place] = site

        return self._answering(work)

    def measuring(self, real: Sequence[Tensor | None]) -> Callable[[HeldCall], Attended]:
        """The trial's ranks on one pass of several."""

        def work(call: HeldCall, weights: Tensor) -> None:
            site = self.sites.get(call.place)
            if site is not None and site.open:
                site.measure(call, weights, _rows(call, real))

        return self._answering(work)

    def step(self) -> None:
        """Every call was measured at its trial's ranks."""
        for place, site in list(self.sites.items()):
            try:
                if site.open:
                    site.step(self.limit)
            except RequestError as error:
                self._leave_out(place, error)

    def _leave_out(self, place: CallPlace, error: Exception) -> None:
        self.missing[place[0]] = reason_of(error)
        self.sites.pop(place, None)

    def _answering(self, work: Callable[[HeldCall, Tensor], None]) -> Callable[[HeldCall], Attended]:
        def answer(call: HeldCall) -> Attended:
            if call.place[0] in self.missing:
                return call.attend()
            try:
                output, weights = call.with_weights()
                _require_few(weights)
                work(call, weights)
            except Exception as error:  # whatever a module's own function does with other queries
                self._leave_out(call.place, error)
                return call.attend()
            return output, weights

        return answer


def _in_turns(
    network: nn.Module, calls: Sequence[Mapping[str, Any]], real: Sequence[Tensor | None], search: _Search
) -> None:
    parts = _real_parts(calls, real)

    def read(way: Callable[[Sequence[Tensor | None]], Callable[[HeldCall], Attended]]) -> None:
        for call, part in zip(calls, parts, strict=True):
            with held_calls(network, way(part)):
                network(**call)

    read(search.adding)
    for site in search.sites.values():
        site.know()
    while any(site.open for site in search.sites.values()):
        read(search.measuring)
        search.step()


def _real_parts(calls: Sequence[Mapping[str, Any]], real: Sequence[Tensor | None]) -> list[Sequence[Tensor | None]]:
    """Which tokens are real, call by call: texts that share a call are padded only where a mask says so."""
    if len(calls) == len(real):
        # A call of its own for each text holds no padding, unless a mask goes with it.
        return [[one] for one in real]
    return [() for _ in calls]


def _rows(call: HeldCall, real: Sequence[Tensor | None]) -> Tensor | None:
    """(b, n): which queries are real tokens; None where all are, or where the rows are no tokens of these texts."""
    texts, _, tokens, _ = call.query.shape
    fits = len(real) == texts and all(one is None or one.shape[0] == tokens for one in real)
    if not fits or all(one is None for one in real):
        return None
    return torch.stack([torch.ones(tokens, dtype=torch.bool) if one is None else one.bool().cpu() for one in real])


def _require_exact(divergences: Tensor, limit: float, name: str) -> None:
    """With all directions kept attention must be the model's, but for rounding."""
    require(
        bool((divergences <= limit / 2).all()),
        required=f"attention of {name} that stays within {limit / 2:g} nats a row when nothing is cut",
        got=f"{float(divergences.max()):.2g}",
        remedy="use --dtype float32, or a larger --head-divergence",
    )


def _require_few(weights: Tensor) -> None:
    require(
        weights.numel() <= MOST_WEIGHTS,
        required=f"at most {MOST_WEIGHTS:,} attention weights a layer, to compare them",
        got=f"{weights.numel():,}, of shape {tuple(weights.shape)}",
        remedy="give fewer tokens (--tokens) or fewer passages",
    )
