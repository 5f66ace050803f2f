"""Token representations at every block boundary, handed over as the model computes them; nothing is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.models.depth.blocks import Stack, choose_stack
from rankfall.models.depth.inside import InsideHooks

Part = Literal["boundary", "before_final_norm", "attention_output", "after_attention", "mlp_output"]


@final
@dataclass(frozen=True)
class Place:
    """Where tokens were taken. `layer` counts as in `hidden_states`: 0 is the embeddings, l the output of block l.

    boundary           what `hidden_states` holds; at the last layer that is after the final norm, where there is one
    before_final_norm  what the last block gave, where a final norm follows
    attention_output   what the block's attention gave, before it was added to the stream
    after_attention    the stream between attention and feed-forward
    mlp_output         what the block's feed-forward gave, before it was added
    """

    layer: int
    part: Part = "boundary"


OnTokens = Callable[[Place, Tensor], None]


def capture(
    model: nn.Module,
    inputs: Mapping[str, Any],
    on_tokens: OnTokens,
    *,
    inside: bool = False,
    stack: str | Stack | None = None,
) -> int:
    """Run the model once; `on_tokens` gets (b, n, d) tokens at every boundary. Gives the number of layers run."""
    chosen = stack if isinstance(stack, Stack) else choose_stack(model, stack)
    watcher = _Watcher(on_tokens)
    with contextlib.ExitStack() as hooks, torch.inference_mode():
        for handle in watcher.hooks(chosen):
            hooks.callback(handle.remove)
        if inside:
            for handle in InsideHooks(chosen.blocks, watcher.inner).hooks():
                hooks.callback(handle.remove)
        output = model(**inputs)
    return watcher.finish(output, chosen)


def first_tokens(value: Any) -> Tensor | None:
    """The token tensor (b, n, d) that a module takes or gives: itself, or the first in a tuple, list or output."""
    if isinstance(value, Tensor):
        return value if value.ndim == 3 and value.is_floating_point() else None
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            if (found := first_tokens(item)) is not None:
                return found
    return None


class _Watcher:
    """Counts blocks in the order of their calls. The newest output waits until it is known not to be the last."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._waiting: Tensor | None = None
        self.layer = 0

    def hooks(self, stack: Stack) -> Iterator[Any]:
        for block in dict.fromkeys(stack.blocks):
            yield block.register_forward_pre_hook(self._enter, with_kwargs=True)
            yield block.register_forward_hook(self._leave)

    def inner(self, part: Part, tokens: Tensor) -> None:
        self._on_tokens(Place(self.layer, part), tokens)

    def _enter(self, block: nn.Module, arguments: Any, named: Any) -> None:
        if self.layer == 0:
            tokens = first_tokens(arguments)
            self._emit(tokens if tokens is not None else first_tokens(named))
        elif self._waiting is not None:
            self._emit(self._waiting)
        self.layer += 1

    def _leave(self, block: nn.Module, arguments: Any, output: Any) -> None:
        self._waiting = first_tokens(output)

    def _emit(self, tokens: Tensor | None) -> None:
        if tokens is None:
            raise RequestError(
                required="blocks that take and give tokens of shape (b, n, d)",
                got=f"something else at layer {self.layer}",
                remedy="pass the part of the model whose layers do",
            )
        self._on_tokens(Place(self.layer), tokens)

    def finish(self, output: Any, stack: Stack) -> int:
        if self.layer == 0 or self._waiting is None:
            raise RequestError(
                required=f"a run through the blocks of {stack.name}",
                got="none of them was called",
                remedy="name another stack, or give the inputs that this one needs",
            )
        final = _final_tokens(output, stack)
        if final is None or final.shape != self._waiting.shape or torch.equal(final, self._waiting):
            self._emit(self._waiting)
        else:
            self._on_tokens(Place(self.layer, "before_final_norm"), self._waiting)
            self._emit(final)
        self._waiting = None
        return self.layer


def _final_tokens(output: Any, stack: Stack) -> Tensor | None:
    """What the model itself calls its last hidden state; of an encoder-decoder, the encoder's for its stack."""
    if "encoder" in stack.name and getattr(output, "encoder_last_hidden_state", None) is not None:
        return output.encoder_last_hidden_state
    found = getattr(output, "last_hidden_state", None)
    return found if isinstance(found, Tensor) else None
