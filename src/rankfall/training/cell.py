"""One training run as plain values: what is trained, on what, for how long. Its identity is these values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from rankfall.catalogue import RECIPES
from rankfall.errors import RequestError, require, require_count, require_one_of, require_seed
from rankfall.masks import parse_mask
from rankfall.norms import PLACEMENTS, parse_norm
from rankfall.tasks.base import Task, parse_task
from rankfall.training.kinds import CHUNK as CHUNK
from rankfall.training.kinds import TrainingCell

MOST = {
    "points": 2**20,
    "dim": 2**18,
    "layers": 10_000,
    "rank": 2**18,
    "multiplier": 2**18,
    "value_rank": 2**18,
    "position_width": 2**18,
    "feed_forward": 2**24,
    "batch": 2**24,
    "steps": 10**9,
}
"""The largest sizes that make sense; whether a machine has memory for them is asked when it is to train them."""
MOST_MASKED = 2**14
POSITIONS = ("none", "additive", "concatenated")
DATA: tuple[str, ...] = ("published", "fresh")
CHOICES: dict[str, tuple[str, ...]] = {
    "placement": PLACEMENTS,
    "positions": POSITIONS,
    "data": DATA,
    "dtype": ("float32", "float64"),
    "start": ("apart", "copies"),
    "warm_up_from": ("first", "zero"),
}


@dataclass(frozen=True)
class Cell(TrainingCell):
    """The model of paper A's experiments is the default; every field is one thing that users vary.

    The published protocol is `start="copies"` for several layers, and `warm_up_from="zero"`. The defaults of these
    two are those of the results that were there before the fields.

    Symbols of the paper: N = points, d = dim, L = layers, r = rank, H = heads, m = multiplier.
    """

    kind: ClassVar[str] = "points"
    task: str = "farthest"
    points: int = 16
    dim: int = 64
    layers: int = 1
    rank: int = 64
    """Query/key rank of a head; divides the width."""
    multiplier: int = 1
    """Copies of a standard attention of width/rank heads, averaged: 1, 8, 64 is d^2, d^2.5, d^3 at d = 64."""
    value_rank: int | None = None
    """Rank of a head's value and output maps; None for the same as `rank`."""
    norm: str = "unit"
    placement: str = "post"
    """Norm after each branch, before it or on both sides; the recipe `stable` puts it before in any case."""
    mask: str = "complete"
    positions: str = "none"
    position_width: int = 64
    """Learned coordinates that `concatenated` positions add to each token."""
    feed_forward: int = 2048
    batch: int = 256
    learning_rate: float = 0.01
    steps: int = 100_000
    data: str = "published"
    """`published`: the same 100 batches again and again; `fresh`: new ones every step."""
    recipe: str = "published"
    seed: int = 0
    dtype: str = "float32"
    start: str = field(default="apart", metadata={"later": True})
    """`apart`: each layer has initial weights of its own; `copies`: all start as the first, as in
    `nn.TransformerEncoder`, which copies the layer that it is given."""
    warm_up_from: str = field(default="first", metadata={"later": True})
    """`first`: the first chunk already moves, at the first step of the warm-up; `zero`: it trains at rate zero."""

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            if name != "value_rank" or self.value_rank is not None:
                require_count(name, getattr(self, name), most=most)
        require_seed(self.seed, "seed")
        parse_norm(self.norm)
        RECIPES.check(self.recipe)
        for name, choices in CHOICES.items():
            require_one_of(name, getattr(self, name), choices)
        require(
            self.start == "apart" or self.layers > 1,
            required="several layers for start=copies",
            got=f"layers={self.layers}",
            remedy="leave start out: one layer starts the same either way",
        )
        require(
            self.warm_up_from == "first" or self.chunks > 1,
            required=f"more than {CHUNK} steps for warm_up_from=zero, whose first {CHUNK} change nothing",
            got=f"steps={self.steps}",
            remedy="train longer, or leave warm_up_from out",
        )
        require(
            isinstance(self.learning_rate, (int, float))
            and math.isfinite(self.learning_rate)
            and self.learning_rate > 0,
            required="learning_rate to be a positive number",
            got=self.learning_rate,
            remedy="the published runs use 0.01",
        )
        if self.width % self.rank != 0:
            divisors = (r for r in range(1, self.width + 1) if self.width % r == 0)
            raise RequestError(
                required=f"a rank that divides the width {self.width}",
                got=f"rank={self.rank}",
                remedy=f"choose among {', '.join(map(str, divisors))}",
            )
        require(
            self.steps % CHUNK == 0,
            required=f"steps in multiples of {CHUNK}, after which metrics are taken and the schedule steps",
            got=f"steps={self.steps}",
            remedy=f"for example {max(1, round(self.steps / CHUNK)) * CHUNK}",
        )
        stands = RECIPES[self.recipe].placement
        require(
            stands is None or self.placement in (stands, type(self).placement),
            required=f"placement={stands}, which belongs to the recipe {self.recipe}",
            got=f"placement={self.placement}",
            remedy="leave placement out, or take recipe=published",
        )
        self.task_object.check(self.points, self.dim)
        self._check_mask()

    def _check_mask(self) -> None:
        require(
            not self.task_object.causal or self.mask.startswith("causal"),
            required=f"a causal mask for the task {self.task}, whose tokens hold later answers",
            got=f"mask={self.mask}",
            remedy="set mask=causal",
        )
        if self.mask != "complete":
            require_count("tokens under a mask, every pair of which is looked at", self.tokens, most=MOST_MASKED)
            allowed = parse_mask(self.mask).dense(self.tokens)[:, : self.task_object.context(self.points)]
            require(
                bool(allowed.any(dim=1).all()),
                required=f"a mask under which every token of the task {self.task} may attend to a point",
                got=f"mask={self.mask}",
                remedy="use complete, or a wider window",
            )

    @property
    def task_object(self) -> Task:
        """The task itself."""
        return parse_task(self.task)

    @property
    def tokens(self) -> int:
        """Tokens of one sequence."""
        return self.task_object.tokens(self.points)

    @property
    def width(self) -> int:
        """Width of the residual stream: d, and the coordinates of concatenated positions."""
        return self.dim + (self.position_width if self.positions == "concatenated" else 0)

    @property
    def norm_placement(self) -> str:
        """Where the norm really stands."""
        return RECIPES[self.recipe].placement or self.placement

    @property
    def heads(self) -> int:
        """H = m * width / r."""
        return self.multiplier * (self.width // self.rank)

    @property
    def value_width(self) -> int:
        """Value rank of one head."""
        return self.rank if self.value_rank is None else self.value_rank

    @property
    def label(self) -> str:
        """Depth, copies, rank and seed."""
        return f"L{self.layers}-m{self.multiplier}-r{self.rank}-s{self.seed}"
