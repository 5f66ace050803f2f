"""Real models and the same models with random weights, with passages of the shipped text to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch

from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import RequestError
from rankfall.figures.base import Scale
from rankfall.models.controls.twin import separate_twin
from rankfall.models.inputs.texts import Batch, from_ids, shipped_text
from rankfall.models.load.open import open_model

# Passages and tokens of each. The text is short: passages of the paper's scale overlap.
PASSAGES: dict[Scale, int] = {"smoke": 3, "quick": 8, "paper": 32}
TOKENS: dict[Scale, int] = {"smoke": 12, "quick": 64, "paper": 128}


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """A network in evaluation mode, what it is called, and what it reads."""

    model: str
    weights: str
    network: Any
    batch: Batch

    @property
    def label(self) -> str:
        """For legends."""
        return f"{self.model}, {self.weights}"


def subjects(scale: Scale, notes: list[str]) -> Iterator[Subject]:
    """At smoke scale two tiny random models; else every named model that is installed, each with its random twin.

    Models that are not installed are said in `notes`; with none at all there is nothing to show.
    """
    if scale == "smoke":
        yield from _tiny(scale)
        return
    found = 0
    for one in (one for one in NAMED_MODELS if one.light):
        try:
            loaded = open_model(one.name)
        except RequestError as error:
            notes.append(f"{one.name} left out: {error}")
            continue
        found += 1
        batch = _passages(loaded.tokenizer, scale)
        yield Subject(one.name, "pretrained", loaded.network.eval(), batch)
        yield Subject(one.name, "random", separate_twin(loaded.network), batch)
    if not found:
        raise RequestError(
            required="at least one pretrained model", got="; ".join(notes), remedy="run `make models`, or use smoke"
        )


def _passages(tokenizer: Any, scale: Scale) -> Batch:
    ids = [int(one) for one in tokenizer(shipped_text(), add_special_tokens=False, verbose=False)["input_ids"]]
    count, size = PASSAGES[scale], TOKENS[scale]
    starts = torch.linspace(0, len(ids) - size, count).long().tolist()
    return from_ids([ids[start : start + size] for start in starts], tokenizer)


def _tiny(scale: Scale) -> Iterator[Subject]:
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"vocab_size": 60}
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack(
        [torch.randperm(57, generator=generator)[: TOKENS[scale]] + 3 for _ in range(PASSAGES[scale])]
    )
    batch = from_ids(drawn.tolist())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        networks = {"tiny BERT": BertModel(BertConfig(**sizes)), "tiny Llama": LlamaModel(LlamaConfig(**sizes))}
    for name, network in networks.items():
        yield Subject(name, "random", network.eval(), batch)
