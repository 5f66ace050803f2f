"""The tokens that every attention module of a model is given on real inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.models.heads.latents import spread
from rankfall.models.recording.replay import Site, traced

# Tokens, and numbers, that are kept for each module at most; evenly spread over passages.
MOST_SEEN, MOST_NUMBERS = 2048, 2**22


@final
@dataclass(frozen=True, eq=False)
class Seen:
    """Tokens (N, d) of the queries of one attention module, those of its keys, and the passage of each key."""

    name: str
    tokens: Tensor
    keys: Tensor
    passages: Tensor


class SeenWatch:
    """Takes the tokens of each attention module the first time that it runs in a pass; texts are counted on.

    `real` says for each text, over all passes, which positions are no padding (None: all).
    """

    def __init__(self, real: Sequence[Tensor | None] = ()) -> None:
        self.passes = 0
        self._kept: dict[int, list[tuple[str, list[Tensor], list[Tensor]]]] = {}
        self._real = list(real)
        self._first = 0
        self._done: dict[int, int] = {}

    def see(self, site: Site) -> None:
        """Read one attention call."""
        module = id(site.call.module)
        if module in self._done or site.tokens_name is None:
            return
        tokens = site.tokens
        context = tokens if site.context_name is None else site.upright(site.arguments[site.context_name])
        self._done[module] = tokens.shape[0]
        most = min(MOST_SEEN, MOST_NUMBERS // tokens.shape[-1])
        each = max(1, most // max(1, len(self._real), tokens.shape[0]))
        masks = self._real[self._first : self._first + tokens.shape[0]]

        def kept(side: Tensor) -> list[Tensor]:
            return [_real(row, mask, each).float().cpu() for row, mask in _paired(side, masks)]

        queries = kept(tokens)
        keys = queries if context is tokens else kept(context)
        self._kept.setdefault(module, []).append((site.name, queries, keys))

    def next_pass(self) -> None:
        """What is seen from now on are the texts after those that were seen so far."""
        self.passes += 1
        self._first += max(self._done.values(), default=1)
        self._done = {}

    def found(self) -> dict[int, Seen]:
        """By the module's id; of one that runs several times in a pass, the first run."""
        return {module: _joined(runs) for module, runs in self._kept.items()}


def tokens_seen(
    model: nn.Module, calls: Sequence[Mapping[str, Any]], real: Sequence[Tensor | None] = ()
) -> dict[int, Seen]:
    """What each attention module was given, in passes of their own."""
    watch = SeenWatch(real)
    for call in calls:
        traced(model, call, watch.see)
        watch.next_pass()
    return watch.found()


def _paired(tokens: Tensor, masks: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor | None]]:
    """Each text with its mask, where there is one of its length."""
    fits = len(masks) == tokens.shape[0]
    return [
        (row, mask if mask is not None and mask.shape == row.shape[:1] else None)
        for row, mask in zip(tokens, masks if fits else [None] * tokens.shape[0], strict=True)
    ]


def _real(row: Tensor, mask: Tensor | None, most: int) -> Tensor:
    return spread(row if mask is None else row[mask.to(row.device).bool()], most)


def _joined(runs: Sequence[tuple[str, list[Tensor], list[Tensor]]]) -> Seen:
    tokens = torch.cat([one for _, parts, _ in runs for one in parts])
    of_keys = [one for _, _, parts in runs for one in parts]
    passages = torch.cat([torch.full((one.shape[0],), number) for number, one in enumerate(of_keys)])
    themselves = all(queries is keys for _, queries, keys in runs)
    return Seen(runs[0][0], tokens, tokens if themselves else torch.cat(of_keys), passages)
