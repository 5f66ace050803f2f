"""Token representations at every block boundary, handed over as the model computes them; nothing is kept.

Tokens are handed over as (b, n, d). Blocks whose multi-head attention says that it takes the sequence first are given
(n, b, d), unless they turn the tokens round by themselves: the shapes in the run tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.recording.assembly import in_place, inner_tokens
from rankfall.models.recording.blocks import BlockStack, as_tokens, choose_stack, is_norm, is_tokens
from rankfall.models.recording.events import Ran
from rankfall.models.recording.recorder import recorded
from rankfall.models.recording.torch_attention import as_written

Part = Literal["boundary", "before_final_norm", "attention_output", "after_attention", "mlp_output"]


@final
@dataclass(frozen=True)
class Place:
    """Where tokens were taken. Layer 0 is the embeddings, layer l the output of block l.

    boundary           what `hidden_states` of a language model holds; at the last layer that is after the final norm,
                       where there is one (`hidden_states` of models of images ends before it)
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
    watcher = _Watcher(on_tokens, chosen, inputs.get("input_ids"))
    with (
        torch.inference_mode(),
        as_written(),
        watcher.beside(model),
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

    def __init__(self, on_tokens: OnTokens, stack: BlockStack, ids: Tensor | None = None) -> None:
        self._on_tokens = on_tokens
        self._ids = ids
        self._stack = stack
        self._entered: Tensor | None = None
        self._left: Tensor | None = None
        self._copy: Tensor | None = None
        self._ran: list[Ran] = []
        self._names = {id(block): name for name, block in zip(stack.names, stack.blocks, strict=True)}
        self._module = ""
        self._normed: Tensor | None = None
        self._turning = stack.sequence_first
        # Known from the start where no attention takes the sequence first.
        self._turned: bool | None = None if self._turning else False
        self._first: Tensor | None = None
        self.layer = 0

    @contextlib.contextmanager
    def beside(self, model: nn.Module) -> Iterator[None]:
        """Watch the norms outside of the blocks, one of which may be the final one, and what tells the layout."""
        inside = {id(inner) for block in self._stack.blocks for inner in block.modules()}
        with contextlib.ExitStack() as hooks:
            for module in model.modules():
                if id(module) not in inside and is_norm(module):
                    hooks.callback(module.register_forward_hook(self._norm).remove)
            for attention in self._turning:
                hooks.callback(attention.register_forward_pre_hook(self._attention, with_kwargs=True).remove)
            yield

    def _norm(self, norm: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._left is not None and args and args[0] is self._left and isinstance(output, Tensor):
            self._normed = output

    def _attention(self, attention: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Whether the block's tokens lie as its attention's do: if the sizes fit both ways, then they do."""
        query: Any = args[0] if args else kwargs.get("query")
        if self._turned is None and self._entered is not None and is_tokens(query):
            self._turned = query.shape[:2] == self._entered.shape[:2]
            if self._first is not None:
                self._on_tokens(Place(0), self._upright(self._first))
                self._first = None

    def _upright(self, tokens: Tensor) -> Tensor:
        return tokens.transpose(0, 1) if self._turned and tokens.ndim == 3 else as_tokens(tokens, self._ids)

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
        self._entered, self._copy, self._normed = tokens, None, None
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
        given, output = (in_place(one, shape).clone() for one in (ran.input, ran.output))
        if shape in (given.shape, output.shape):
            self._ran.append(replace(ran, input=given, output=output))

    def leave(self, block: nn.Module, tokens: Tensor | None) -> None:
        self._left = tokens
        if tokens is not None and self._copy is not None:
            for part, inner in inner_tokens(self._copy, self._ran, tokens).items():
                self._on_tokens(self._place(part), self._upright(inner))
        self._ran.clear()

    def _emit(self, tokens: Tensor | None) -> None:
        if tokens is None:
            raise RequestError(
                required="blocks that take and give tokens of shape (b, n, d)",
                got=f"something else at layer {self.layer}",
                remedy="pass the part of the model whose layers do",
            )
        if self._turned is None and self.layer == 0:
            # The attention of the first block will tell; a block may add in place, so this is a copy.
            self._first = tokens.clone()
            return
        self._on_tokens(self._place(), self._upright(tokens))

    def _place(self, part: Part = "boundary") -> Place:
        return Place(self.layer, part, self._module)

    def finish(self, output: Any) -> int:
        if self.layer == 0 or self._left is None:
            raise RequestError(
                required=f"a run through the blocks of {self._stack.name}",
                got="none of them was called",
                remedy="name another stack, or give the inputs that this one needs",
            )
        if self._first is not None:
            self._on_tokens(Place(0), self._upright(self._first))
        final = _final_tokens(output, self._stack)
        if final is None:
            final = self._normed
        if final is None or final.shape != self._left.shape or torch.equal(final, self._left):
            self._emit(self._left)
        else:
            self._on_tokens(self._place("before_final_norm"), self._upright(self._left))
            self._emit(final)
        return self.layer


def _final_tokens(output: Any, stack: BlockStack) -> Tensor | None:
    """What the model itself calls its last hidden state; of an encoder-decoder, the encoder's for its stack."""
    if "encoder" in stack.name and getattr(output, "encoder_last_hidden_state", None) is not None:
        return output.encoder_last_hidden_state
    found = getattr(output, "last_hidden_state", None)
    return found if isinstance(found, Tensor) else None
