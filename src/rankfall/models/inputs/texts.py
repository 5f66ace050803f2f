"""What a model is given to read: the text that ships with the package, the user's files, as batches of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rankfall.errors import RequestError, require, require_count
from rankfall.models.inputs.calling import Calling
from rankfall.models.load.guards import MEBI, require_size
from rankfall.models.recording.placement import input_device
from rankfall.models.thresholds import THRESHOLDS


def shipped_text() -> str:
    """About seven hundred words in several paragraphs."""
    return (files("rankfall.models.inputs") / "harbour.txt").read_text(encoding="utf-8")


LARGEST = 64 * MEBI
# Of a passage's length: a shorter one is left out, unless it is the only one of its text.
SHORTEST_SHARE = 0.5
USUAL_TOKENS = 128
# Fewer than two cannot be judged; one text gives them all, several give about as many together.
PASSAGES_IN_ALL = 4


def read_text(path: Path) -> str:
    """The file's contents; they must be UTF-8."""
    require_size(path, LARGEST)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RequestError(
            required=f"text in UTF-8 in {path.name}", got="other bytes", remedy="convert the file first"
        ) from None


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """`ids` (b, n); `real` is what is not padding, `special` what the tokenizer added; `names` are for people.

    `calling` says how a module that is none of the library's takes them; `remedy` how the same texts give enough
    passages to judge, or that they cannot, where they were texts.
    """

    ids: Int[Tensor, "b n"]
    real: Bool[Tensor, "b n"]
    special: Bool[Tensor, "b n"]
    names: tuple[list[str], ...] = field(repr=False)
    calling: Calling | None = None
    remedy: str | None = None

    @property
    def texts(self) -> int:
        """How many texts."""
        return self.ids.shape[0]

    @property
    def lengths(self) -> list[int]:
        """Real tokens of each text."""
        return [int(count) for count in self.real.sum(dim=-1)]

    def kept(self) -> list[Tensor | None]:
        """For each text which positions of its call are real; None where all are."""
        if self.calling is not None and self.calling.mask is None:
            return [None] * self.texts
        return [None if bool(row.all()) else row for row in self.real]

    def calls(self, network: Any) -> list[dict[str, Any]]:
        """What the network is called with to read all texts: once, or in several calls."""
        return [self.inputs(network)] if self.calling is None else self.calling.calls(self.ids, self.real)

    def inputs(self, network: Any) -> dict[str, Any]:
        """What a network of the library is called with."""
        device = input_device(network)
        given: dict[str, Any] = {"input_ids": self.ids.to(device), "attention_mask": self.real.long().to(device)}
        config = getattr(network, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            given["decoder_input_ids"] = given["input_ids"]
        if getattr(config, "use_cache", None) is not None:
            given["use_cache"] = False
        return given


def encode(tokenizer: Any, texts: Sequence[str], *, tokens: int, passages: int = 1) -> Batch:
    """The first `tokens` tokens of each text, those that the tokenizer adds among them; or several passages in a row.

    A second and later passage starts where the one before it ended. A passage shorter than SHORTEST_SHARE of
    the others is left out unless it is the only one.
    """
    require_count("tokens", tokens, least=2)
    require_count("passages", passages)
    rows: list[list[int]] = []
    longest = around = 0
    for number, text in enumerate(texts):
        ids = _ids(tokenizer, text, add_special_tokens=False, verbose=False)
        require(
            len(ids) > 0, required=f"text {number + 1} to hold some words", got="none", remedy="give another file"
        )
        around = len(framed(tokenizer, []))
        require(tokens > around, required=f"more than {around} tokens", got=tokens, remedy="the tokenizer adds those")
        size, longest = tokens - around, max(longest, len(ids))
        pieces = [ids[start : start + size] for start in range(0, len(ids), size)][:passages]
        long_enough = [piece for piece in pieces[1:] if len(piece) >= SHORTEST_SHARE * size]
        rows += [framed(tokenizer, piece) for piece in (pieces[0], *long_enough)]
    return replace(from_ids(rows, tokenizer), remedy=enough_passages(longest, around, tokens, passages))


def enough_passages(longest: int, around: int, tokens: int, passages: int) -> str:
    """Options under which a text of `longest` tokens gives passages that can be judged, several rather than long
    ones; the tokenizer adds `around` to each."""
    least, fewest = THRESHOLDS.fewest_tokens, THRESHOLDS.fewest_passages
    most = tokens if tokens >= least else USUAL_TOKENS
    for count in range(PASSAGES_IN_ALL, fewest - 1, -1):
        length = min(most, longest // count + around)
        if length >= least:
            asked = [f"--tokens {length}"] * (length != tokens) + [f"--passages {count}"] * (passages < count)
            return f"read this text in more passages: `{' '.join(asked)}`" if asked else "give a longer `--text`"
    needed = fewest * (least - around)
    return f"give a longer `--text`: the longest has {longest} tokens, and {needed} are needed"


def from_ids(rows: Sequence[Sequence[int]], tokenizer: Any | None = None) -> Batch:
    """A batch from token ids as they are, padded on the right."""
    longest = max(len(row) for row in rows)
    pad = getattr(tokenizer, "pad_token_id", None)
    added = set(getattr(tokenizer, "all_special_ids", None) or ())
    ids = torch.full((len(rows), longest), 0 if pad is None else int(pad), dtype=torch.long)
    real = torch.zeros((len(rows), longest), dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(list(row))
        real[index, : len(row)] = True
    special = torch.tensor([[int(one) in added for one in row] for row in ids]).reshape(ids.shape)
    return Batch(ids, real, special & real, tuple(_names(tokenizer, list(row)) for row in rows))


def shuffled_rows(
    ids: Int[Tensor, "b n"], free: Bool[Tensor, "b n"], generator: torch.Generator
) -> Int[Tensor, "b n"]:
    """The ids of each row in random order; those that are not free stay in place."""
    made = ids.clone()
    for row, kept in zip(made, free, strict=True):
        places = kept.nonzero()[:, 0]
        row[places] = row[places[torch.randperm(len(places), generator=generator)]]
    return made


def drawn_rows(
    ids: Int[Tensor, "b n"], free: Bool[Tensor, "b n"], size: int, generator: torch.Generator
) -> Int[Tensor, "b n"]:
    """Every id that is free replaced by one drawn uniformly from a table of this size."""
    return torch.where(free, torch.randint(size, ids.shape, generator=generator), ids)


def shuffled(batch: Batch, seed: int = 0) -> Batch:
    """The same tokens of each text in random order; what the tokenizer added stays in place."""
    generator = torch.Generator().manual_seed(seed)
    return replace(batch, ids=shuffled_rows(batch.ids, batch.real & ~batch.special, generator))


def _ids(tokenizer: Any, text: str, **options: Any) -> list[int]:
    """The tokenizer is a model's own: whatever goes wrong in it is a refusal of that model."""
    try:
        return [int(one) for one in tokenizer(text, **options)["input_ids"]]
    except (MemoryError, RequestError):
        raise
    except Exception as error:
        raise RequestError(
            required="a tokenizer that reads the text",
            got=f"{type(error).__name__} inside it: {error}",
            remedy="download the model again, or give token ids from Python",
        ) from error


def framed(tokenizer: Any, ids: list[int]) -> list[int]:
    """The passage with whatever the tokenizer puts around a text."""
    marker = "a"
    inner, outer = _ids(tokenizer, marker, add_special_tokens=False), _ids(tokenizer, marker)
    before = next((at for at in range(len(outer)) if outer[at : at + len(inner)] == inner), None)
    if before is None:
        return ids
    return [*outer[:before], *ids, *outer[before + len(inner) :]]


def _names(tokenizer: Any | None, ids: list[int]) -> list[str]:
    if tokenizer is None:
        return [f"#{one}" for one in ids]
    return [str(tokenizer.decode([one])) for one in ids]
