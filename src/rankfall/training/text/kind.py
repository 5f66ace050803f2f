"""Language models as a kind of cell: their keys, memory and operations, and what a grid may say of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from rankfall.errors import require
from rankfall.training.kinds import CellKind, Surroundings
from rankfall.training.text.budget import Cost, parameters, solved, training_flops
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import encoded_corpus, open_corpus
from rankfall.training.text.decoder import text_layout
from rankfall.training.text.documents import read_split
from rankfall.training.text.stack import TextStack, text_stack_key
from rankfall.training.text.timing import step_seconds
from rankfall.training.text.tokens import check_encoding

BUDGETS: dict[str, Cost] = {"parameters": parameters, "flops": training_flops}
EXTRA = {
    "text": "str | None",
    "validation": "str | None",
    "heads_times_rank": "int | None",
    "parameters": "float | None",
    "flops": "float | None",
    "step_seconds": "float | None",
    "solve": "str",
}
"""What a grid may say besides the fields of a cell."""

MEASURED_CLOSE = 0.01
"""Share of a time per step by which a measurement may miss it."""

SMALL = 1 << 27
"""Multiply-adds of a model's weights with the tokens of a step, below which a GPU is not filled by one model."""


@final
class TextKind(CellKind):
    """Decoders on text: seeds and learning rates of one shape may train together."""

    cell = TextCell
    errors = ("nats_per_byte", "nats_per_byte_error")

    def stack_key(self, cell: TextCell) -> tuple[Any, ...]:
        return text_stack_key(cell)

    def order(self, cell: TextCell) -> tuple[int]:
        return (cell.seed,)

    def widest(self, cells: Sequence[TextCell], device: str) -> int:
        """One at a time, but on a GPU that one model of a few layers cannot fill."""
        first = cells[0]
        work = first.block_weights * first.batch * first.context
        return len(cells) if device.startswith("cuda") and work < 1000 * SMALL else 1

    def stack_bytes(self, cells: Sequence[TextCell], device: str) -> int:
        """Weights, gradients and moments, activations kept for the gradient, and the logits. The corpus, of which
        all stacks of a device have one, is not counted: four bytes a token.

        Activations per layer and token: q, k, v and the mixed values, hidden tensors of the feed-forward, about
        eight of the width; logits three times over, in float32.
        """
        cell = cells[0]
        item = {"float64": 8, "float32": 4, "bfloat16": 2}[cell.dtype]
        heads = (cell.heads + cell.key_heads) * (cell.rank + cell.value_rank)
        kept = cell.layers * (heads + (cell.matrices + 1) * cell.feed_forward + 8 * cell.width)
        logits = 3 * max(item, 4) * cell.vocabulary
        return len(cells) * (
            6 * max(item, 4) * text_layout(cell).size + cell.batch * cell.context * (item * kept * 3 // 2 + logits)
        )

    def step_flops(self, cell: TextCell) -> float:
        return cell.batch * cell.context * cell.token_flops

    def costs(self, cells: Sequence[TextCell], folder: Path | None = None) -> dict[str, Any]:
        """Shape, and parameters, tokens and passes over the text of each model; operations of all of them."""
        first = cells[0]
        shape = {name: getattr(first, name) for name in ("key_heads", "value_rank", "feed_forward")}
        return {
            **shape,
            "parameters": text_layout(first).parameters,
            "tokens": first.tokens_trained,
            "passes": first.tokens_trained / open_corpus(first.corpus, folder).about.training_tokens
            if folder
            else None,
            **super().costs(cells, folder),
        }

    def size(self, cell: TextCell) -> str:
        return f"layers={cell.layers}, width={cell.width}, feed_forward={cell.feed_forward}, batch={cell.batch}"

    def build(
        self, cells: Sequence[TextCell], device: str, compile: bool, tf32: bool, folder: Path | None = None
    ) -> TextStack:
        require(folder is not None, required="a store that holds the corpus", got="none", remedy="train in a sweep")
        assert folder is not None
        return TextStack(cells, folder, device, compile, tf32)

    @property
    def grid_keys(self) -> dict[str, str]:
        return {**super().grid_keys, **EXTRA}

    def from_grid(self, settings: dict[str, Any], around: Surroundings) -> TextCell:
        """Fill in what follows from the rest, name the corpus, and solve for the budget.

        `heads_times_rank` gives the number of heads; without `rank` and `value_rank` heads share the width, without
        `key_heads` all have keys, without `feed_forward` it has the usual width.
        """
        extra = {key: settings.pop(key, None) for key in EXTRA}
        text, validation = (extra[name] or getattr(around, name) for name in ("text", "validation"))
        made = {**settings, **_corpus(text, validation, settings, around), **_shape(settings, extra)}
        budgets = {name: extra[name] for name in (*BUDGETS, "step_seconds") if extra[name] is not None}
        cell = TextCell(**made)
        require(
            len(budgets) < 2,
            required="one budget for a cell: parameters, flops or step_seconds",
            got=" and ".join(budgets),
            remedy="give each a [[grid]] table of its own",
        )
        require(
            bool(budgets) or extra["solve"] is None,
            required="a budget to solve for: parameters, flops or step_seconds",
            got=f"solve={extra['solve']} alone",
            remedy="give one, or leave solve out",
        )
        for name, target in budgets.items():
            solve = extra["solve"] or "feed_forward"
            require(
                solve not in settings,
                required=f"{solve} to be left open, since it is solved for",
                got=f"{solve}={settings.get(solve)}",
                remedy=f"take {solve} out, or set solve to the other of feed_forward and layers",
            )
            cell = within_budget(cell, name, target, solve, around)
        return cell


def within_budget(cell: TextCell, name: str, target: float, solve: str, around: Surroundings) -> TextCell:
    """The cell whose cost of that name comes closest to the target; each guess is told as progress before it is made,
    since a time is measured, which takes a while."""
    cost = BUDGETS.get(name) or partial(step_seconds, folder=around.folder, device=around.device)

    def told(guess: TextCell) -> float:
        around.progress(f"solving for {name}: rank {guess.rank}, {solve} {getattr(guess, solve):,}", 0.0)
        return cost(guess)

    return solved(cell, name, told, target, solve, 0.0 if name in BUDGETS else MEASURED_CLOSE)


def _corpus(
    text: str | None, validation: str | None, settings: dict[str, Any], around: Surroundings
) -> dict[str, Any]:
    require(
        validation is None or text is not None,
        required="a text to train on beside the one to measure on",
        got=f"validation={validation} alone",
        remedy="give --text FILE_OR_FOLDER",
    )
    if text is None and settings.get("corpus"):
        return {}
    require(
        text is not None and around.store is not None,
        required="a text to train on",
        got="none",
        remedy="give --text FILE_OR_FOLDER",
    )
    assert text is not None
    tokenizer = settings.get("tokenizer", TextCell.tokenizer)
    check_encoding(tokenizer)
    if (text, validation) not in around.made:
        measured = None if validation is None else Path(validation)
        around.made[text, validation] = read_split(Path(text), around.note, measured, around.progress)
    if (text, validation, tokenizer) not in around.made:
        folder = around.folder
        assert folder is not None
        about = encoded_corpus(around.made[text, validation], tokenizer, folder, around.progress).about
        around.made[text, validation, tokenizer] = about
        around.note(about.sentence(text))
    about = around.made[text, validation, tokenizer]
    return {"corpus": about.digest, "vocabulary": about.vocabulary}


def _shape(settings: dict[str, Any], extra: dict[str, Any]) -> dict[str, int]:
    width = settings.get("width", TextCell.width)
    heads = settings.get("heads", TextCell.heads)
    total = extra["heads_times_rank"]
    if total is not None:
        rank = settings.get("rank", TextCell.rank)
        require(
            "heads" not in settings and isinstance(rank, int) and rank > 0 and total % rank == 0,
            required="heads_times_rank to be a multiple of the rank, in place of heads",
            got=f"heads_times_rank={total}, rank={rank}" + (", heads" if "heads" in settings else ""),
            remedy="leave heads out, and choose ranks that divide it",
        )
        heads = total // rank
    if heads < 1 or width % heads:
        # what is shared evenly must divide; the cell's own check speaks of the rest
        shares = [name for name in ("rank", "value_rank") if name not in settings and heads > 0]
        require(
            not shares,
            required=f"a width that {heads} heads share evenly, or {' and '.join(shares)} of their own",
            got=f"width={width}",
            remedy="give rank and value_rank, or another number of heads",
        )
    share = max(1, width // max(1, heads))
    gated = settings.get("activation", TextCell.activation) == "swiglu"
    usual = -(-8 * width // 3 // 64) * 64 if gated else 4 * width
    return {
        "heads": heads,
        "rank": settings.get("rank", share),
        "value_rank": settings.get("value_rank", share),
        "key_heads": settings.get("key_heads", heads),
        "feed_forward": settings.get("feed_forward", usual),
    }


TEXT = TextKind()
