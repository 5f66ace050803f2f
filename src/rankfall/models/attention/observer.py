"""Attention statistics while a model runs: of every call some rows, read and let go.

Up to `ROWS_AT_MOST` queries of a text every row is read, and the matrix is whole; of longer texts so many rows are
drawn, one from each of as many stretches of equal length, the same for every head and layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from rankfall.errors import reason_of, require
from rankfall.models.attention.heads import AttendedText, HeadAttention, head_attention
from rankfall.models.attention.seen import attention_rows, looks_at_itself, sizes
from rankfall.models.attention.statistics import (
    AttentionRows,
    head_means,
    logit_statistics,
    matrix_gram,
    matrix_statistics,
    output_shares,
    received,
    row_statistics,
)
from rankfall.models.recording.events import AttentionKind, Call, Ran

ROWS_AT_MOST = 256
# Rows of which what each head writes is computed, per text.
WRITTEN_ROWS = 32
# Weights that are turned into float64 together: heads are read in groups of so many numbers.
NUMBERS_AT_ONCE = 2**23
# So many numbers of matrices wait on the host for their spectra: to be taken together, which uses every core; or, of
# a model on a GPU, on a few threads beside the pass, which mostly waits for the GPU (many threads wait for each other
# inside BLAS: eight take half as long as two).
NUMBERS_WAITING = 2**26
BESIDE, THREADS_BESIDE = ("cuda",), 2


def sampled_rows(count: int, seed: int = 0, most: int = ROWS_AT_MOST) -> Int[Tensor, " r"]:
    """All places below `count`, or `most` of them in order, one drawn at random from each stretch."""
    if count <= most:
        return torch.arange(count)
    edges = np.linspace(0, count, most + 1).astype(int)
    return torch.from_numpy(np.random.default_rng(seed).integers(edges[:-1], edges[1:]))


@final
@dataclass(eq=False)
class _Layer:
    """What was seen of the call of one number in every pass."""

    module: str
    kind: AttentionKind
    texts: list[AttendedText]


@dataclass(eq=False)
class _Written:
    """A call whose output map has not run yet: its texts and the rows of each to be followed."""

    call: Call
    layer: _Layer
    rows: list[Tensor]


@final
class AttentionObserver:
    """Subscribes to attention calls, and to linear maps for what each head writes.

    `real` marks the tokens of each text that are no padding, `names` names them. Several passes read one text after
    the other. A failure ends neither the run nor other observations: `missing` has it by module.
    """

    def __init__(
        self, real: Sequence[Tensor | None], names: Sequence[list[str]] = (), passes: int = 1, seed: int = 0
    ) -> None:
        self._real, self._names, self._seed = real, names, seed
        self._passes = passes
        self._run, self._calls, self._first, self._texts = 0, 0, 0, 0
        self._layers: dict[int, _Layer] = {}
        self._waiting: _Written | None = None
        self._grams: list[tuple[AttendedText, Tensor]] = []
        self._begun: list[tuple[AttendedText, Future[dict[str, Tensor]]]] = []
        self._numbers_waiting = 0
        self._threads: ThreadPoolExecutor | None = None
        self.missing: dict[str, str] = {}

    def see(self, call: Call) -> None:
        """Read one call."""
        if call.run != self._run:
            self._run, self._calls, self._first, self._texts = call.run, 0, self._first + self._texts, 0
        number, self._calls = self._calls, self._calls + 1
        self._waiting = None
        try:
            self._read(number, call)
        except Exception as failure:
            self.missing.setdefault(call.name, reason_of(failure))

    def see_linear(self, ran: Ran) -> None:
        """The first linear map after a call is its output map, if it was given what attention gave."""
        waiting = self._waiting
        if waiting is None or ran.kind != "linear":
            return
        self._waiting = None
        try:
            self._follow(waiting, ran)
        except Exception as failure:
            self.missing.setdefault(waiting.call.name, reason_of(failure))

    def heads(self) -> list[HeadAttention]:
        """One record for each head of each call, in the order of calls; a call without a choice has none."""
        try:
            self._take_spectra()
        finally:
            if self._threads is not None:
                self._threads.shutdown(cancel_futures=True)
                self._threads = None
        found: list[HeadAttention] = []
        for number, layer in sorted(self._layers.items()):
            if layer.texts:
                heads = head_attention(number, layer.module, layer.kind, layer.texts, self._seed)
                if not heads:
                    self.missing.setdefault(layer.module, "each of its tokens sees one key alone: there is no choice")
                found += heads
        return found

    def _read(self, number: int, call: Call) -> None:
        itself = looks_at_itself(call)
        layer = self._layers.setdefault(number, _Layer(call.name, "self" if itself else "cross", []))
        queries, keys = sizes(call)
        self._texts = self._texts or self._texts_of(call)
        followed = []
        for at in range(self._texts):
            text = self._first + at
            rows, columns = (self._places(text, count, call) for count in (queries, keys))
            drawn = rows[sampled_rows(len(rows), self._seed).to(rows.device)]
            seen = attention_rows(call, at, drawn, columns, self._texts)
            layer.texts.append(self._measured(text, seen, len(rows), itself))
            counted = drawn[seen.counted[0]]
            followed.append(counted[sampled_rows(len(counted), self._seed, WRITTEN_ROWS).to(counted.device)])
        if call.output is not None:
            self._waiting = _Written(call, layer, followed)

    def _texts_of(self, call: Call) -> int:
        """Texts of this pass, told by its first call."""
        some = call.query if call.query is not None else call.weights
        rest = len(self._real) - self._first
        if some is None or some.ndim == 3:
            # Texts and heads may share an axis.
            return max(1, len(self._real) // self._passes)
        return min(rest, some.shape[0]) if rest > 0 else some.shape[0]

    def _places(self, text: int, count: int, call: Call) -> Tensor:
        """The places among so many that are no padding."""
        some = call.query if call.query is not None else call.weights
        device = None if some is None else some.device
        real = self._real[text] if text < len(self._real) else None
        if real is None or len(real) != count:
            return torch.arange(count, device=device)
        return real.nonzero()[:, 0].to(device)

    def _measured(self, text: int, seen: AttentionRows, rows_in_all: int, itself: bool) -> AttendedText:
        heads, rows, keys = seen.weights.shape
        at_once = max(1, NUMBERS_AT_ONCE // (rows * keys))
        parts = [seen.of_heads(slice(at, at + at_once)) for at in range(0, heads, at_once)]
        groups = [_statistics(part) for part in parts]
        values = {name: torch.cat([one[0][name] for one in groups]) for name in groups[0][0]}
        by_row = {name: torch.cat([one[1][name] for one in groups]) for name in groups[0][1]}
        names = self._names[text] if itself and text < len(self._names) and len(self._names[text]) == keys else []
        busiest = [int(place) for one in groups for place in one[2]]
        found = AttendedText(
            text=text,
            tokens=keys,
            rows=rows,
            rows_in_all=rows_in_all,
            values=values,
            busiest=[(place, names[place] if names else "") for place in busiest],
            by_row=by_row if len(self._real) == 1 else None,
        )
        gram = torch.cat([matrix_gram(part).cpu() for part in parts])
        require(
            bool(gram.isfinite().all()),
            required="finite attention weights",
            got="others",
            remedy="its attention is left out",
        )
        if seen.weights.device.type in BESIDE:
            self._threads = self._threads or ThreadPoolExecutor(THREADS_BESIDE)
            self._begun.append((found, self._threads.submit(matrix_statistics, gram, threads=1)))
        else:
            self._grams.append((found, gram))
        self._numbers_waiting += gram.numel()
        if self._numbers_waiting > NUMBERS_WAITING:
            self._take_spectra()
        return found

    def _take_spectra(self) -> None:
        """Those that were begun, and of the matrices that wait, those of one size together."""
        begun, self._begun = self._begun, []
        waiting, self._grams = self._grams, []
        self._numbers_waiting = 0
        for text, spectra in begun:
            text.values.update(spectra.result())
        for size in {gram.shape[-1] for _, gram in waiting}:
            alike = [(text, gram) for text, gram in waiting if gram.shape[-1] == size]
            found = matrix_statistics(torch.cat([gram for _, gram in alike]))
            for name, values in found.items():
                for (text, _), part in zip(alike, values.split([len(gram) for _, gram in alike]), strict=True):
                    text.values[name] = part

    def _follow(self, waiting: _Written, ran: Ran) -> None:
        attended = waiting.call.output
        assert attended is not None
        texts, tokens, heads, value = attended.shape
        given = ran.input
        if given.ndim == 3 and given.shape[:2] == (tokens, texts) != (texts, tokens):
            given = given.transpose(0, 1)
        if given.numel() != attended.numel():
            return
        given = given.reshape(attended.shape)
        # A gate between attention and its output map changes sizes, not signs.
        if not bool((given * attended >= 0).all()):
            return
        for at, rows in enumerate(waiting.rows):
            if len(rows):
                parts = torch.zeros(heads, len(rows), heads, value, dtype=given.dtype, device=given.device)
                parts[range(heads), :, range(heads)] = given[at, rows].transpose(0, 1)
                flat = parts.flatten(2)
                # Past the hooks: this is no run of the model.
                written = ran.module.forward(flat) - ran.module.forward(torch.zeros_like(flat[:1, :1]))
                place = len(waiting.layer.texts) - len(waiting.rows) + at
                waiting.layer.texts[place].values["output_share"] = output_shares(written)


def _statistics(seen: AttentionRows) -> tuple[dict[str, Tensor], dict[str, Tensor], list[int]]:
    by_row = row_statistics(seen)
    mass, places = received(seen).max(dim=-1)
    values = {**head_means(by_row), **logit_statistics(seen), "busiest_mass": mass}
    return values, by_row, places.tolist()
