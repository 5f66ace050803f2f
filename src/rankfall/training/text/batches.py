"""Batches of text: windows at places that are a function of seed and step, and the held-out text from its start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rankfall.errors import require
from rankfall.tasks.base import TRAINING, philox
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import Corpus

_WORD = 0xFFFFFFFF


def unigram_nats_per_byte(corpus: Corpus) -> float:
    """What held-out text costs a model that knows how often each token occurs, and nothing else."""
    count = corpus.about.vocabulary
    seen = np.bincount(corpus.training, minlength=count) + 1.0
    nats = -np.log(seen / seen.sum())
    return float(nats[corpus.held_out].sum() / corpus.encoding.sizes()[corpus.held_out].sum())


class TextBatches:
    """Windows of a corpus for the models of a stack, all on one device."""

    def __init__(self, cells: Sequence[TextCell], corpus: Corpus, device: torch.device) -> None:
        self.context, self.batch = cells[0].context, cells[0].batch
        require(
            corpus.about.training_tokens > 2 * self.context and corpus.about.held_out_tokens > self.context,
            required=f"more than {2 * self.context} tokens to train on and {self.context} held out, for context="
            f"{self.context}",
            got=f"{corpus.about.training_tokens} and {corpus.about.held_out_tokens}",
            remedy="use a larger corpus or a shorter context",
        )
        self.training = torch.from_numpy(corpus.training.astype("int32")).to(device)
        self.held_out = torch.from_numpy(corpus.held_out.astype("int32")).to(device)
        self.sizes = torch.from_numpy(corpus.encoding.sizes()).to(device)
        self.seeds = torch.tensor([cell.seed for cell in cells], device=device)
        self.unigram = unigram_nats_per_byte(corpus)

    def at(self, step: Tensor) -> Tensor:
        """(M, B, T + 1) tokens of a step () int64; a tensor, so that a graph can hold it."""
        blocks = torch.arange(self.batch, device=step.device)
        where = torch.full_like(blocks, TRAINING)
        counter = (blocks, where, (step & _WORD).expand_as(blocks), (step >> 32).expand_as(blocks))
        seeds = self.seeds[:, None]
        low, high, *_ = philox(counter, (seeds & _WORD, (seeds >> 32) & _WORD))
        # 53 bits are far more than any corpus has places: the modulus leaves no visible bias
        places = (((high & 0x1FFFFF) << 32) | low) % (len(self.training) - self.context)
        offsets = torch.arange(self.context + 1, device=step.device)
        return self.training[places[..., None] + offsets].long()

    @property
    def windows(self) -> int:
        """Windows of the held-out text that do not overlap in what they predict."""
        return (len(self.held_out) - 1) // self.context

    def held_out_windows(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Tokens (count, T + 1) and the bytes that each predicted token stands for, (count, T)."""
        starts = torch.arange(first, first + count, device=self.held_out.device) * self.context
        tokens = self.held_out[starts[:, None] + torch.arange(self.context + 1, device=starts.device)].long()
        return tokens, self.sizes[tokens[:, 1:]]
