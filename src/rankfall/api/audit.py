"""What a real model does to its tokens, what holds their rank up, and how its heads use theirs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import require
from rankfall.models.result import AuditFindings
from rankfall.progress import Progress, silent

LAYER_DIGITS = 4
"""No model has more layers than so many digits count."""
LAYER = re.compile(rf"[0-9]{{1,{LAYER_DIGITS}}}")

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from rankfall.models.heads.key_values import KeyValueRecord
    from rankfall.models.heads.record import HeadRecord
    from rankfall.models.load.folder import LoadedModel
    from rankfall.report.document import Document

# What of the reasons stands in a result's short form.
IN_BRIEF = ("attention sinks", "heads that do nothing", "head need", "head cut")

DEFAULT_MODEL = NAMED_MODELS.names[0]


@final
@dataclass(frozen=True, repr=False, eq=False)
class AuditResult(Result, AuditFindings):
    """Everything that one audit found; `missing` says, by part of the audit, why it is not there."""

    verb: ClassVar[str] = "audit"

    def tables(self) -> dict[str, pd.DataFrame]:
        """`depth`: every measure at every layer; `pooled`: all texts together; `heads`, `attention`, `key_values`,
        `ablation`, `controls`, `masks`, `sinks` (massive tokens), `per_text`; where asked for, `head_needs`,
        `head_cut`, `head_overlaps`, `head_spectra`. Other stacks of blocks that ran, such as a decoder, are in
        `other_stacks` (depth), `other_stacks_controls`, `other_stacks_questions` and `other_stacks_ablation`."""
        return AuditFindings.tables(self)

    def failures(self, condition: str) -> list[dict[str, Any]]:
        """Where a condition such as `effective_rank < 4 at last` or `distinctions lost` holds: layers and values.

        One that this audit cannot decide, such as `distinctions reduced` without controls, is refused.
        """
        from rankfall.models.condition import decided

        return decided(condition, AuditFindings.record(self))

    def save_spectra(self, path: str | Path) -> Path:
        """Write the singular values of every head's query/key form as .npz, .csv or .json; needs `head_needs`."""
        from rankfall.models.heads.spectra import write_spectra

        require(
            len(self.head_spectra) > 0,
            required="an audit whose heads were probed with head_needs",
            got="no spectra",
            remedy="audit with head_needs=True",
        )
        return write_spectra(self.head_spectra, path)

    def _record(self) -> dict[str, Any]:
        return AuditFindings.record(self)

    def _lines(self) -> list[str]:
        from rankfall.models.verdict.findings import QUESTIONS
        from rankfall.models.verdict.verdict import NO_CHANGE

        verdict = self.verdict
        return [
            f"{self.model.name}, {self.layers_told}, width {self.model.width}",
            verdict.headline,
            *(
                f"{QUESTIONS[finding.question]} {self._in_each_stack(number)}"
                for number, finding in enumerate(verdict.findings)
            ),
            *(f"{reason.topic}: {reason.text}" for reason in verdict.reasons if reason.topic in IN_BRIEF),
            f"what to change: {self.advised or NO_CHANGE}",
            *(one.told() for one in self.pooled),
            loss_line(self.text.loss, self.text.loss_reason),
            *(f"note: {note}" for note in self.model.notes),
            *(f"missing, {part}: {why}" for part, why in self.missing.items()),
        ]

    def _in_each_stack(self, number: int) -> str:
        """The status of one question; with several stacks of blocks, that of each."""
        status = self.verdict.findings[number].status
        if not self.other_stacks:
            return status
        others = (f"{one.label}: {one.verdict.findings[number].status}" for one in self.other_stacks)
        return ", ".join([f"{self.stack_label}: {status}", *others])

    def _figure(self) -> Figure:
        from rankfall.drawing.audit import draw_token_depth

        return draw_token_depth(self.boundaries, self.control_boundaries(), f"Token rank by depth, {self.model.name}")

    def _document(self, command: str) -> Document:
        from rankfall.report.audit import audit_document

        return audit_document(self, command)


def audit(
    model: str | Path | LoadedModel | nn.Module = DEFAULT_MODEL,
    text: str | Path | Sequence[str | Path] | None = None,
    *,
    tokens: int = 128,
    passages: int | None = None,
    tokenizer: Any | None = None,
    inputs: Mapping[str, Any] | Tensor | Sequence[Any] | None = None,
    layers: str | Collection[int] | None = None,
    stack: str | None = None,
    inside: bool = False,
    heads: bool = True,
    attention: bool = True,
    head_needs: bool = False,
    head_cut: bool = False,
    head_divergence: float = 0.01,
    controls: bool = True,
    draws: int = 3,
    ablate: bool = True,
    offset: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    allow_download: bool = False,
    load_seconds: float = 600.0,
    revision: str | None = None,
    adapter: str | Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
    command: str | None = None,
) -> AuditResult:
    """Measure token rank and head rank of a real model, and say what it means.

    `model` is a short name, a folder, a GGUF file, a hub id, or any module in memory, which needs a `tokenizer`, or
    `inputs`: token ids (n,) or (b, n), vectors (b, n, d), a list of texts of unequal length, or the keyword
    arguments of its forward pass. `text`: one text or several; a Path is read as a file; without it a text that
    ships with the package is read. `layers` limits what is measured to some layers and both ends, such as `[6, 12]`
    or `"1-5"`. `head_needs` asks how many directions each head needs to reproduce its attention within
    `head_divergence` nats a row, and how far heads' spaces overlap; `head_cut` also what the model loses with heads
    cut to 1, 2, 4, ... directions, which takes many passes. `draws` is how often each control is drawn. `device` is
    `cpu`, `cuda`, or `auto`: all GPUs, then the host's memory, then the disk. `revision` is that of a hub id,
    `adapter` a folder of low-rank updates to merge first. What cannot be done for this model is named in `missing`.
    """
    from rankfall.models.audit import audit as run

    found = run(
        model,
        texts_of(text),
        tokens=tokens,
        passages=passages,
        tokenizer=tokenizer,
        inputs=inputs,
        layers=layer_numbers(layers) if isinstance(layers, str) else layers,
        stack=stack,
        inside=inside,
        heads=heads,
        attention=attention,
        head_needs=head_needs,
        head_cut=head_cut,
        head_divergence=head_divergence,
        controls=controls,
        draws=draws,
        ablation=ablate,
        offset=offset,
        dtype=dtype,
        device=device,
        allow_download=allow_download,
        load_seconds=load_seconds,
        revision=revision,
        adapter=adapter,
        seed=seed,
        progress=progress,
        command=command,
    )
    return AuditResult(**vars(found))


def loss_line(loss: float | None, reason: str | None) -> str:
    """What the model's loss on the text was, in words."""
    return f"loss on the text: none, {reason}" if loss is None else f"loss on the text: {loss:.2f} nats per token"


def texts_of(text: str | Path | Sequence[str | Path] | None) -> list[str] | None:
    """Texts as they are given to `audit`: a Path is read as a file."""
    from rankfall.models.inputs.texts import read_text

    if text is None:
        return None
    several = [text] if isinstance(text, (str, Path)) else list(text)
    return [read_text(one) if isinstance(one, Path) else one for one in several] or None


def layer_numbers(text: str, name: str = "layers") -> set[int]:
    """The layers that `6,12` or `1-5` names, both ends of a range included."""
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [end for end in ((first, last) if dash else (first,)) if LAYER.fullmatch(end)]
        require(
            len(ends) == 1 + bool(dash) and int(ends[0]) <= int(ends[-1]),
            required=f"{name} such as 0,6,12 or 0-5, none above {10**LAYER_DIGITS - 1:,}",
            got=text,
            remedy="layers count from 0, the embeddings",
        )
        chosen |= set(range(int(ends[0]), int(ends[-1]) + 1))
    return chosen


@final
@dataclass(frozen=True, repr=False, eq=False)
class HeadsResult(Result):
    """Head ranks from the weights alone; the model was not run."""

    verb: ClassVar[str] = "audit"
    model: str
    heads: tuple[HeadRecord, ...]
    headline: str
    key_values: tuple[KeyValueRecord, ...] = ()

    def tables(self) -> dict[str, pd.DataFrame]:
        """`heads`: one row each; `key_values`: one row a layer, and `key_value_energy` for every size of latent."""
        made = {
            "heads": [head.line() for head in self.heads],
            "key_values": [one.line() for one in self.key_values],
            "key_value_energy": [line for one in self.key_values for line in one.energy_lines()],
        }
        return {name: frame(rows) for name, rows in made.items() if rows}

    def _record(self) -> dict[str, Any]:
        return {
            "model": {"name": self.model},
            "heads": [head.record() for head in self.heads],
            "key_values": [one.record() for one in self.key_values],
            "verdict": {"headline": self.headline},
        }

    def _lines(self) -> list[str]:
        return [f"{self.model}: {len(self.heads)} heads, from the weights alone", self.headline]

    def _figure(self) -> Figure:
        from rankfall.drawing.audit import draw_head_ranks

        return draw_head_ranks(self.tables()["heads"], f"Head rank, {self.model}")


def heads_from_weights(model: str) -> HeadsResult:
    """The ranks of all heads, read from a safetensors file."""
    from rankfall.models.heads.key_values import KeyValues
    from rankfall.models.heads.ranks import head_ranks_from_file
    from rankfall.models.recording.layers import as_in_tokens
    from rankfall.models.verdict.head_reasons import bound_reason, heads_reason
    from rankfall.models.verdict.key_value_reason import key_value_reason

    joint = KeyValues()
    heads = as_in_tokens(head_ranks_from_file(model, joint.take))
    key_values = as_in_tokens(joint.records())
    reasons = (heads_reason(heads), bound_reason(heads), key_value_reason(key_values))
    said = [one.text for one in reasons if one is not None]
    return HeadsResult(model, heads, "; ".join(said) or "no head was found", key_values)
