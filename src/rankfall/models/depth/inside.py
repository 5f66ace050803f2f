"""What happens inside a block: attention's output, the stream after it, and the feed-forward's output.

Children of a block are told apart by what they do: the one that holds an attention module, and the one with the most
parameters among those called after it. The stream after attention is what the feed-forward (or the norm just before
it) takes in; a block whose feed-forward reads the block's own input has no such state, and none is reported.

A child that adds the residual and normalises by itself (BERT's) gives the stream, not its branch: there the branch is
what the last linear map gave, which the norm then took in with something added.
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
        from rankfall.models.interface.modules import attention_modules

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
            yield from _Branch(attention[0], self._after_attention).hooks()
            if others:
                heaviest = max(others, key=lambda child: sum(p.numel() for p in child.parameters()))
                for child in others:
                    yield child.register_forward_pre_hook(self._remember, with_kwargs=True)
                yield heaviest.register_forward_pre_hook(self._before_mlp, with_kwargs=True)
                last = others[-1 if _is_split(others, heaviest) else others.index(heaviest)]
                yield from _Branch(last, self._after_mlp).hooks()

    def _start(self, block: nn.Module, arguments: Any, named: Any) -> None:
        self._block_input = _tokens(arguments, named)
        self._inputs = []

    def _after_attention(self, branch: Tensor | None) -> None:
        self._inputs = []
        self._give("attention_output", branch)

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

    def _after_mlp(self, branch: Tensor | None) -> None:
        self._give("mlp_output", branch)

    def _give(self, part: str, tokens: Tensor | None) -> None:
        if tokens is not None:
            self._report(part, tokens)


class _Branch:
    """What a child adds to the stream, told when the child is done."""

    def __init__(self, child: nn.Module, done: Callable[[Tensor | None], None]) -> None:
        self._child = child
        self._done = done
        self._mapped: Tensor | None = None
        self._normed: tuple[Tensor, Tensor] | None = None

    def hooks(self) -> Iterator[Any]:
        for module in self._child.modules():
            if isinstance(module, nn.Linear):
                yield module.register_forward_hook(self._after_linear)
            elif "Norm" in type(module).__name__:
                yield module.register_forward_hook(self._after_norm)
        yield self._child.register_forward_hook(self._finish)

    def _after_linear(self, module: nn.Module, arguments: Any, output: Tensor) -> None:
        self._mapped = output

    def _after_norm(self, module: nn.Module, arguments: Any, output: Any) -> None:
        taken, given = _tokens(arguments, {}), _tokens(output, {})
        self._normed = None if taken is None or given is None else (taken, given)

    def _finish(self, child: nn.Module, arguments: Any, output: Any) -> None:
        tokens, mapped, normed = _tokens(output, {}), self._mapped, self._normed
        self._mapped = self._normed = None
        if tokens is not None and mapped is not None and normed is not None and mapped.shape == tokens.shape:
            taken, given = normed
            if _same(given, tokens) and not _same(taken, mapped):
                tokens = mapped
        self._done(tokens)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _is_split(others: Sequence[nn.Module], heaviest: nn.Module) -> bool:
    """Whether the feed-forward is two children of like size (BERT's intermediate and output), not one."""
    sizes = sorted((sum(p.numel() for p in child.parameters()) for child in others), reverse=True)
    return len(sizes) > 1 and sizes[1] > 0.5 * sizes[0]


def _tokens(arguments: Any, named: Any) -> Tensor | None:
    from rankfall.models.depth.capture import first_tokens

    found = first_tokens(arguments)
    return found if found is not None else first_tokens(named)
