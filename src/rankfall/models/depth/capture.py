"""Token representations at every block boundary, handed over as the model computes them; nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.assembly import inner_tokens
from rankfall.models.blocks import BlockStack, choose_stack
from rankfall.models.recorder import Ran, recorded

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

    `module` is the name of block l; the embeddings have none.
    """

    layer: int
    part: Part = "boundary"
    module: str = field(default="", compare=False)


OnTokens = Callable[[Place, Tensor], None]


def capture(
    model: nn.Module,
    inputs: Mapping[str, Any],
    on_tokens: OnTokens,
    *,
    inside: bool = False,
    stack: str | BlockStack | None = None,
) -> int:
    """Run the model once; `on_tokens` gets (b, n, d) tokens at every boundary. Gives the number of layers run."""
    chosen = stack if isinstance(stack, BlockStack) else choose_stack(model, stack)
    watcher = _Watcher(on_tokens, chosen)
    with (
        torch.inference_mode(),
        recorded(
            model,
            blocks=chosen.blocks,
            on_enter=watcher.enter,
            on_leave=watcher.leave,
            on_module=watcher.keep if inside else None,
        ),
    ):
        output = model(**inputs)
    return watcher.finish(output)


class _Watcher:
    """Counts blocks in the order of their calls. The newest output waits until it is known not to be the last."""

    def __init__(self, on_tokens: OnTokens, stack: BlockStack) -> None:
        self._on_tokens = on_tokens
        self._stack = stack
        self._entered: Tensor | None = None
        self._left: Tensor | None = None
        self._copy: Tensor | None = None
        self._ran: list[Ran] = []
        self._names = {id(block): name for name, block in zip(stack.names, stack.blocks, strict=True)}
        self._module = ""
        self.layer = 0

    def enter(self, block: nn.Module, tokens: Tensor | None) -> None:
        require(
            tokens is None or tokens is not self._entered or tokens is self._left,
            required=f"blocks of {self._stack.name} that run one after the other",
            got="two of them that took the same tokens, side by side",
            remedy="name the stack that the token stream runs through",
        )
        if self.layer == 0:
            self._emit(tokens)
        elif self._left is not None:
            self._emit(self._left)
        self._entered, self._copy = tokens, None
        self._ran.clear()
        self._module = self._names.get(id(block), "")
        self.layer += 1

    def keep(self, ran: Ran) -> None:
        """Copies, because a model may add in place; tokens in a row (b * n, d) are put back in their places."""
        if self._entered is None:
            return
        if self._copy is None:
            self._copy = self._entered.clone()
        shape = self._entered.shape
        given, output = (_shaped(one, shape).clone() for one in (ran.input, ran.output))
        if shape in (given.shape, output.shape):
            self._ran.append(replace(ran, input=given, output=output))

    def leave(self, block: nn.Module, tokens: Tensor | None) -> None:
        self._left = tokens
        if tokens is not None and self._copy is not None:
            for part, inner in inner_tokens(self._copy, self._ran, tokens).items():
                self._on_tokens(self._place(part), inner)
        self._ran.clear()

    def _emit(self, tokens: Tensor | None) -> None:
        if tokens is None:
            raise RequestError(
                required="blocks that take and give tokens of shape (b, n, d)",
                got=f"something else at layer {self.layer}",
                remedy="pass the part of the model whose layers do",
            )
        self._on_tokens(self._place(), tokens)

    def _place(self, part: Part = "boundary") -> Place:
        return Place(self.layer, part, self._module)

    def finish(self, output: Any) -> int:
        if self.layer == 0 or self._left is None:
            raise RequestError(
                required=f"a run through the blocks of {self._stack.name}",
                got="none of them was called",
                remedy="name another stack, or give the inputs that this one needs",
            )
        final = _final_tokens(output, self._stack)
        if final is None or final.shape != self._left.shape or torch.equal(final, self._left):
            self._emit(self._left)
        else:
            self._on_tokens(self._place("before_final_norm"), self._left)
            self._emit(final)
        return self.layer


def _shaped(tensor: Tensor, shape: torch.Size) -> Tensor:
    flat = tensor.ndim == 2 and tensor.shape[-1] == shape[-1] and tensor.numel() == shape.numel()
    return tensor.reshape(shape) if flat else tensor


def _final_tokens(output: Any, stack: BlockStack) -> Tensor | None:
    """What the model itself calls its last hidden state; of an encoder-decoder, the encoder's for its stack."""
    if "encoder" in stack.name and getattr(output, "encoder_last_hidden_state", None) is not None:
        return output.encoder_last_hidden_state
    found = getattr(output, "last_hidden_state", None)
    return found if isinstance(found, Tensor) else None
