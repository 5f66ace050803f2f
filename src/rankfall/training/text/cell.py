"""One language model to train, as plain values: heads, query/key rank and value width are independent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rankfall.errors import require, require_count, require_number, require_one_of, require_seed
from rankfall.masks import parse_mask
from rankfall.norms import parse_norm
from rankfall.training.kinds import CHUNK, TrainingCell
from rankfall.training.text.tokens import check_encoding

MOST = {
    "width": 2**16,
    "layers": 1000,
    "heads": 2**14,
    "rank": 2**14,
    "key_heads": 2**14,
    "value_rank": 2**16,
    "feed_forward": 2**20,
    "context": 2**14,
    "batch": 2**16,
    "steps": 10**8,
    "vocabulary": 2**16,
}
CHOICES = {
    "positions": ("rotary", "learned", "none"),
    "activation": ("swiglu", "relu2"),
    "optimizer": ("adamw", "muon"),
    "dtype": ("float32", "bfloat16", "float64"),
}
EMBEDDING_MULTIPLE = 64
"""The embedding has a multiple of so many rows, which matrix units like; the rows beyond the vocabulary are never
read, and their logits are left out."""


@dataclass(frozen=True)
class TextCell(TrainingCell):
    """A decoder: norm before each branch and at the end, no biases.

    H = heads, r = rank (query and key of a head), u = value_rank (value and output of a head), d = width. The usual
    model has H r = H u = d; here each may be anything.
    """

    kind: ClassVar[str] = "text"
    task: str = "text"
    corpus: str = ""
    """The name of a corpus, a hash of its content; `sweep --text` fills it in."""
    tokenizer: str = "bytes"
    """bytes or bpe:SIZE, the latter trained on the corpus."""
    vocabulary: int = 257
    """Distinct tokens of the corpus, filled in with it."""
    width: int = 256
    layers: int = 4
    heads: int = 4
    rank: int = 64
    """Query/key rank of a head."""
    value_rank: int = 64
    """Width of a head's values."""
    key_heads: int = 4
    """Heads that have keys and values of their own; the others share them in equal groups."""
    feed_forward: int = 768
    activation: str = "swiglu"
    """swiglu (three matrices) or relu2 (two)."""
    positions: str = "rotary"
    rotary_base: float = 10_000.0
    norm: str = "rms:1e-6"
    mask: str = "causal"
    """causal, or causal-window:WIDTH."""
    tied: bool = True
    """Whether the embedding is also the output map."""
    context: int = 256
    """Tokens of a sequence."""
    batch: int = 64
    """Sequences of a step."""
    steps: int = 1000
    optimizer: str = "adamw"
    learning_rate: float = 0.003
    """Of AdamW; Muon moves matrices at the same rate, scaled to steps as long as AdamW's."""
    weight_decay: float = 0.1
    clip: float = 1.0
    """Longest gradient of a model."""
    warm_up: float = 0.05
    """Share of the run over which the rate rises linearly; then it falls as a cosine to a tenth."""
    seed: int = 0
    dtype: str = "float32"
    """Of the arithmetic; weights and moments are float32 under bfloat16."""
    budget: str = "none"
    """What was kept equal and what was solved for, such as `parameters=10000000 by feed_forward`; a note, since the
    solved field holds its value."""

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            require_count(name, getattr(self, name), most=most)
        require_seed(self.seed, "seed")
        for name, choices in CHOICES.items():
            require_one_of(name, getattr(self, name), choices)
        require(self.task == "text", required="the task text", got=self.task, remedy="leave it out")
        check_encoding(self.tokenizer)
        parse_norm(self.norm)
        require_number("learning_rate", self.learning_rate, above=0)
        require_number("weight_decay", self.weight_decay, least=0)
        require_number("clip", self.clip, above=0)
        require_number("warm_up", self.warm_up, least=0, most=1)
        require_number("rotary_base", self.rotary_base, above=1)
        require(
            self.heads % self.key_heads == 0,
            required="heads in equal groups over key_heads",
            got=f"heads={self.heads}, key_heads={self.key_heads}",
            remedy=f"set key_heads to {self.heads} or to a divisor of it",
        )
        require(
            self.positions != "rotary" or self.rank % 2 == 0,
            required="an even rank for rotary positions, which turn pairs of coordinates",
            got=f"rank={self.rank}",
            remedy=f"rank={self.rank + 1}, or positions=learned",
        )
        require(
            self.mask == "causal" or self.mask.startswith("causal-window:"),
            required="a mask that hides later tokens: causal or causal-window:WIDTH",
            got=self.mask,
            remedy="set mask=causal",
        )
        parse_mask(self.mask)
        require(
            self.steps % CHUNK == 0,
            required=f"steps in multiples of {CHUNK}, after which metrics are taken",
            got=f"steps={self.steps}",
            remedy=f"for example {max(1, round(self.steps / CHUNK)) * CHUNK}",
        )

    @property
    def label(self) -> str:
        """Depth, width, heads, rank and seed."""
        return f"L{self.layers}-d{self.width}-H{self.heads}-r{self.rank}-s{self.seed}"

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding."""
        return math.ceil(self.vocabulary / EMBEDDING_MULTIPLE) * EMBEDDING_MULTIPLE

    @property
    def matrices(self) -> int:
        """Matrices of the feed-forward."""
        return 3 if self.activation == "swiglu" else 2

    @property
    def block_weights(self) -> int:
        """Numbers in the matrices of one block."""
        score = (self.heads + self.key_heads) * self.rank
        value = (self.heads + self.key_heads) * self.value_rank
        return self.width * (score + value + self.matrices * self.feed_forward)

    @property
    def seen(self) -> float:
        """Tokens that a token attends to, itself among them, on average over a sequence."""
        band = parse_mask(self.mask).band(self.context)
        most = self.context if band is None else band.width
        return most - most * (most - 1) / 2 / self.context

    @property
    def token_flops(self) -> float:
        """Operations per token of training: 6 for each weight of a matrix, and attention over what the mask allows.

        The output map counts, the embedding's look-up does not.
        """
        attention = 2 * self.seen * self.heads * (self.rank + self.value_rank)
        weights = self.layers * self.block_weights + self.width * self.embedding_rows
        return 6.0 * weights + 3.0 * self.layers * attention

    @property
    def tokens_trained(self) -> int:
        """Tokens of the whole run."""
        return self.steps * self.batch * self.context
