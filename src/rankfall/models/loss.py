"""A language model's loss on the text that it was given: whether the model, its tokenizer and the text fit together.

The body has run already, for the audit. Its last hidden state goes through the model's own head here, a stretch of
tokens at a time, so that soft caps and scales of the logits are the model's and the body does not run again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.models.inputs.given import of_library
from rankfall.models.inputs.texts import Batch
from rankfall.models.load.folder import LoadedModel

# Logits of so many numbers at a time: 128 MiB in float32.
LOGITS_AT_ONCE = 1 << 25
# Of log(vocabulary), which is the loss of guessing uniformly: a convention. Trained models of 135 to 270 million
# parameters are at 0.31 to 0.38 of it on the text that ships.
UNTRAINED_SHARE = 0.7


@final
@dataclass(frozen=True)
class TextLoss:
    """Mean nats per token, None with the reason in words; `warning` when it is that of an untrained model."""

    value: float | None
    reason: str | None = None
    warning: str | None = None


@final
@dataclass(eq=False)
class LastHidden:
    """The final hidden state (b, n, d) of the newest run of a network."""

    tokens: Tensor | None = field(default=None)


@contextlib.contextmanager
def last_hidden(network: nn.Module) -> Iterator[LastHidden]:
    """Inside, every run of the network leaves its last hidden state here."""
    kept = LastHidden()

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        found = getattr(output, "last_hidden_state", None)
        kept.tokens = found if isinstance(found, Tensor) else None

    hook = network.register_forward_hook(keep)
    try:
        yield kept
    finally:
        hook.remove()


def text_loss(loaded: LoadedModel, batch: Batch | None, hidden: LastHidden) -> TextLoss:
    """Next-token loss of a causal language model over all texts, or why there is none."""
    whole = loaded.whole
    if batch is None:
        return TextLoss(None, "the inputs are not token ids")
    if reason := _no_head(loaded):
        return TextLoss(None, reason)
    assert whole is not None
    if hidden.tokens is None or hidden.tokens.shape[:2] != batch.ids.shape:
        return TextLoss(None, "the body gave no hidden state for every token")
    try:
        value, vocabulary = _next_token_loss(whole, loaded.network, batch, hidden.tokens)
    except Exception as error:
        return TextLoss(None, f"the head did not run: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
    if not math.isfinite(value):
        return TextLoss(None, "it is not a finite number")
    return TextLoss(value, None, _warning(value, vocabulary))


def _warning(value: float, vocabulary: int) -> str | None:
    chance = math.log(vocabulary)
    if value < UNTRAINED_SHARE * chance:
        return None
    return (
        f"the loss on the text, {value:.2f} nats per token, is that of an untrained model (guessing gives"
        f" {chance:.2f}): the weights, the tokenizer or the text may not be the right ones"
    )


def _no_head(loaded: LoadedModel) -> str | None:
    """Why the model has no next-token loss; None when it has one."""
    from transformers.models.auto import modeling_auto

    whole: Any = loaded.whole
    config = getattr(loaded.network, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder-decoder predicts a second text, of which no loss is computed"
    if whole is None and not of_library(loaded.network):
        return "no loss is known of a module of one's own"
    if whole is None:
        return "the model has no language-model head, or its weights are not in the files"
    kind = type(whole).__name__
    if kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values():
        return "an encoder sees the tokens on both sides, so it has no next-token loss"
    causal = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )
    if not any(kind in table.values() for table in causal):
        return f"{kind} is no causal language model"
    if getattr(config, "is_decoder", None) is False and kind in ENCODERS_WITH_A_DECODER_CLASS:
        return "an encoder sees the tokens on both sides, so it has no next-token loss"
    if getattr(config, "model_type", None) == "xlnet":
        return "a permutation language model sees the tokens on both sides, so it has no next-token loss"
    return None


ENCODERS_WITH_A_DECODER_CLASS = (
    "BertLMHeadModel", "BertGenerationDecoder", "BigBirdForCausalLM", "CamembertForCausalLM",
    "Data2VecTextForCausalLM", "ElectraForCausalLM", "ErnieForCausalLM", "MegatronBertForCausalLM",
    "RemBertForCausalLM", "RobertaForCausalLM", "RobertaPreLayerNormForCausalLM", "RoCBertForCausalLM",
    "RoFormerForCausalLM", "XLMRobertaForCausalLM", "XLMRobertaXLForCausalLM", "XmodForCausalLM",
)  # fmt: skip


@torch.inference_mode()
def _next_token_loss(whole: Any, body: nn.Module, batch: Batch, hidden: Tensor) -> tuple[float, int]:
    """Mean over the tokens that have a real token before them, and the size of the vocabulary."""
    table = whole.get_input_embeddings()
    stretch = max(1, LOGITS_AT_ONCE // int(getattr(table, "num_embeddings", 1 << 15)))
    total, count, vocabulary = 0.0, 0, 0
    for text in range(batch.texts):
        real = batch.real[text].nonzero()[:, 0]
        for begin in range(0, len(real) - 1, stretch):
            at = real[begin : begin + stretch + 1]
            sources, targets = at[: len(at) - 1], batch.ids[text, at[1:]]
            logits = _logits(whole, body, hidden[text, sources.to(hidden.device)][None])[0].float()
            vocabulary = logits.shape[-1]
            chosen = torch.nn.functional.cross_entropy(logits, targets.to(logits.device), reduction="sum")
            total, count = total + float(chosen), count + len(targets)
    return (total / count if count else math.nan), vocabulary


class _Computed(tuple[Tensor]):
    """What a body gives, with nothing but the tokens in it: no cache, no router's logits, no attention."""

    def __new__(cls, tokens: Tensor) -> _Computed:
        return super().__new__(cls, (tokens,))

    @property
    def last_hidden_state(self) -> Tensor:
        """The tokens (b, n, d) after the last layer."""
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


class _BodyReachedError(Exception):
    """The head asked the body for another pass."""


def _logits(whole: Any, body: Any, tokens: Tensor) -> Tensor:
    """The model's own forward pass, in which the body hands over what it computed before."""
    reached = False

    def computed(*arguments: Any, **options: Any) -> Any:
        nonlocal reached
        reached = True
        return _Computed(tokens)

    def below(*arguments: Any, **options: Any) -> Any:
        raise _BodyReachedError

    ids = torch.zeros(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    with replaced_forward(body, computed), contextlib.ExitStack() as parts:
        for child in body.children():
            parts.enter_context(replaced_forward(child, below))
        try:
            logits: Tensor = whole(input_ids=ids, use_cache=False).logits
        except _BodyReachedError:
            # Some classes call a part of the body (OPT its decoder): their head is the output embedding alone.
            return whole.get_output_embeddings()(tokens)
    assert reached, "the body was not asked"
    return logits


@contextlib.contextmanager
def replaced_forward(module: nn.Module, forward: Any) -> Iterator[None]:
    """Inside, the module runs this instead; afterwards it is as it was, wrapped by another library or not."""
    own = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:
            module.__dict__["forward"] = own
