"""What happens inside a block: attention's output, the stream after it, and the feed-forward's output.

Children of a block are told apart by what they do: the one that holds an attention module, and the one with the most
parameters among those called after it. The stream after attention is what the feed-forward (or the norm just before
it) takes in; a block whose feed-forward reads the block's own input has no such state, and none is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Report = Callable[[Any, Tensor], None]


class InsideHooks:
    """Hooks on the direct children of each block."""

    def __init__(self, blocks: Sequence[nn.Module], report: Report) -> None:
        from rankfall.audit.interface import attention_modules

        self._report = report
        self._blocks = tuple(dict.fromkeys(blocks))
        self._attending = {
            id(part) for block in self._blocks for part in attention_modules(block).values() if part is not block
        }
        self._block_input: Tensor | None = None
        self._inputs: list[tuple[nn.Module, Tensor | None]] = []

    def hooks(self) -> Iterator[Any]:
        for block in self._blocks:
            yield block.register_forward_pre_hook(self._start, with_kwargs=True)
            children = [child for child in block.children() if not isinstance(child, nn.Dropout)]
            attention = [child for child in children if any(id(part) in self._attending for part in child.modules())]
            if not attention:
                continue
            others = [child for child in children if child is not attention[0] and child not in attention]
            yield attention[0].register_forward_hook(self._after_attention)
            if others:
                heaviest = max(others, key=lambda child: sum(p.numel() for p in child.parameters()))
                for child in others:
                    yield child.register_forward_pre_hook(self._remember, with_kwargs=True)
                yield heaviest.register_forward_pre_hook(self._before_mlp, with_kwargs=True)
                yield others[-1 if _is_split(others, heaviest) else others.index(heaviest)].register_forward_hook(
                    self._after_mlp
                )

    def _start(self, block: nn.Module, arguments: Any, named: Any) -> None:
        self._block_input = _tokens(arguments, named)
        self._inputs = []

    def _after_attention(self, child: nn.Module, arguments: Any, output: Any) -> None:
        self._inputs = []
        self._give("attention_output", _tokens(output, {}))

    def _remember(self, child: nn.Module, arguments: Any, named: Any) -> None:
        self._inputs.append((child, _tokens(arguments, named)))

    def _before_mlp(self, child: nn.Module, arguments: Any, named: Any) -> None:
        # The last call before this one is the norm in front of the feed-forward, if it has one.
        calls = [call for call in self._inputs if call[0] is not child]
        stream = calls[-1][1] if calls else _tokens(arguments, named)
        if stream is None or self._block_input is None:
            return
        if stream.shape == self._block_input.shape and torch.equal(stream, self._block_input):
            return
        self._give("after_attention", stream)

    def _after_mlp(self, child: nn.Module, arguments: Any, output: Any) -> None:
        self._give("mlp_output", _tokens(output, {}))

    def _give(self, part: str, tokens: Tensor | None) -> None:
        if tokens is not None:
            self._report(part, tokens)


def _is_split(others: Sequence[nn.Module], heaviest: nn.Module) -> bool:
    """Whether the feed-forward is two children of like size (BERT's intermediate and output), not one."""
    sizes = sorted((sum(p.numel() for p in child.parameters()) for child in others), reverse=True)
    return len(sizes) > 1 and sizes[1] > 0.5 * sizes[0]


def _tokens(arguments: Any, named: Any) -> Tensor | None:
    from rankfall.audit.depth.capture import first_tokens

    found = first_tokens(arguments)
    return found if found is not None else first_tokens(named)
