"""Every attention call of a run, by name, with the means to attend again with other queries.

Calls at the library's interface go through the model's own eager function, so that soft caps, sinks and position
biases are the model's; calls of torch's fused attention have no weights, which are then written out here.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import require
from rankfall.models.recording.interface import Eager, attention_modules, routed
from rankfall.models.recording.torch_attention import as_written, fused_attention

Attended = tuple[Tensor, Tensor | None]
CallPlace = tuple[str, int]
"""The name of an attention module, and how often it was called before in the same pass."""


@final
@dataclass(frozen=True, eq=False)
class HeldCall:
    """One attention call that waits for an answer: query (b, h, n, r), key and value (b, g, m, ...)."""

    place: CallPlace
    function: Eager
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: Mapping[str, Any]

    def attend(self, query: Tensor | None = None) -> Attended:
        """What attention gives and, where it says them, its weights; with other queries, if given."""
        asked = self.query if query is None else query
        return self.function(self.module, asked, self.key, self.value, self.mask, **self.options)

    def with_weights(self, query: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The same; weights (b, h, n, m) always."""
        output, weights = self.attend(query)
        if weights is None and self.function is fused_attention:
            weights = self._written_out(self.query if query is None else query)
        require(
            weights is not None and weights.shape[:3] == self.query.shape[:3],
            required=f"attention weights of {self.place[0]}, a row for each query of each head",
            got="none" if weights is None else str(tuple(weights.shape)),
            remedy="what its heads need is left out",
        )
        assert weights is not None
        return output, weights

    def _written_out(self, query: Tensor) -> Tensor:
        key = self.key.repeat_interleave(query.shape[1] // self.key.shape[1], dim=1)
        scaling = self.options.get("scaling")
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if self.mask is not None:
            scores = (
                scores.masked_fill(~self.mask, -torch.inf) if self.mask.dtype == torch.bool else scores + self.mask
            )
        elif self.options.get("is_causal"):
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        # A row that sees nothing has no weights.
        return scores.softmax(dim=-1).nan_to_num()


@contextlib.contextmanager
def held_calls(network: nn.Module, answer: Callable[[HeldCall], Attended]) -> Iterator[None]:
    """Inside, `answer` is asked for what every attention call of the network gives."""
    names = {id(module): name for name, module in network.named_modules()}
    attention = {id(module) for module in attention_modules(network).values()}
    running: list[int] = []
    counts: Counter[str] = Counter()

    def start(*_: Any) -> None:
        counts.clear()
        running.clear()

    def enter(module: nn.Module, *_: Any) -> None:
        running.append(id(module))

    def leave(module: nn.Module, *_: Any) -> None:
        if running and running[-1] == id(module):
            running.pop()

    def route(
        function: Eager, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> Attended:
        inmost = next((one for one in reversed(running) if one in attention), running[-1] if running else id(module))
        name = names[inmost]
        place = (name, counts[name])
        counts[name] += 1
        return answer(HeldCall(place, function, module, query, key, value, mask, options))

    with contextlib.ExitStack() as hooks:
        hooks.callback(network.register_forward_pre_hook(start).remove)
        for module in network.modules():
            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        hooks.enter_context(as_written())
        hooks.enter_context(routed(network, route))
        yield
