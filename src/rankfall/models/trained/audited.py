"""Trained language models audited on held-out text of their own corpus.

The rank that heads use and need, the rank that tokens keep, what attention does; beside them the floor that theory
gives and what paper A's trained cells reach.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from rankfall.models.audit import audit
from rankfall.models.heads.needed import DIVERGENCE
from rankfall.models.result import AuditFindings
from rankfall.planning.evidence import FARTHEST
from rankfall.progress import Progress, silent
from rankfall.training.text.cell import TextCell
from rankfall.training.text.columns import LAYER_COLUMN
from rankfall.training.text.corpus import Corpus
from rankfall.training.text.module import text_model

PASSAGES, TOKENS = 4, 256
"""Held-out passages that a model reads, and the tokens of each, no more than its context: together more tokens than
the width of models that train in minutes."""


@final
@dataclass(frozen=True)
class TextAudit:
    """One trained model on held-out passages.

    `columns` are the numbers of a row, None where one could not be had; `layers` has one record for each layer,
    the embeddings first, `heads` one for each head; `missing` says by part why it is not there.
    """

    columns: Mapping[str, float | None]
    layers: Sequence[Mapping[str, Any]]
    heads: Sequence[Mapping[str, Any]]
    missing: Mapping[str, str]
    provenance: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def audit_columns(
    cell: TextCell, weights: Mapping[str, Tensor], corpus: Corpus, device: str = "cpu"
) -> dict[str, float | None]:
    """The columns of a trained model; weights as `TextStack.weights` gives them, the corpus it was trained on."""
    return dict(audit_text(cell, weights, corpus, device).columns)


def audit_text(
    cell: TextCell,
    weights: Mapping[str, Tensor],
    corpus: Corpus,
    device: str = "cpu",
    progress: Progress = silent,
) -> TextAudit:
    """Audit a trained model on held-out passages; without controls and ablations, which a sweep has no use for."""
    begun = time.perf_counter()
    model = text_model(cell, weights).to(device)
    read = held_out_passages(corpus, min(cell.context, TOKENS)).to(device)
    found = audit(model, inputs=read, head_needs=True, controls=False, ablation=False, progress=progress)
    heads = _heads(found)
    layers = _layers(found, heads)
    synthetic = FARTHEST.estimate(cell.heads, cell.rank, cell.width)
    pooled = [one.rankme for one in found.pooled if one.vectors == "tokens" and one.part == "boundary"]
    ranks = {f"{LAYER_COLUMN}{row['layer']}": row["token_rank"] for row in layers}
    columns = {
        **ranks,
        "token_rank_last": layers[-1]["token_rank"],
        "token_rank_pooled_last": pooled[-1] if pooled else None,
        "head_rank_used": _median(heads, "rank_used"),
        "head_rank_needed": _median(heads, "rank_needed"),
        "heads_at_limit": _mean(heads, "at_limit"),
        "value_rank_used": _median(heads, "value_rank_used"),
        "attention_entropy": _mean(heads, "relative_entropy"),
        "first_token_mass": _mean(heads, "first_token_mass"),
        "sink_heads": _mean(heads, "is_sink"),
        "idle_heads": _mean(heads, "is_idle"),
        "mse_lower_bound": found.heads[0].mse_lower_bound if found.heads else None,
        "synthetic_error": None if synthetic is None else synthetic.value,
        "audit_tokens": float(read.numel()),
        "audit_seconds": time.perf_counter() - begun,
    }
    return TextAudit(columns, layers, heads, dict(found.missing), dict(found.provenance))


def held_out_passages(corpus: Corpus, tokens: int) -> Tensor:
    """(passages, tokens) ids at even distances over held-out text, as many as do not overlap, PASSAGES at most."""
    count = max(1, min(PASSAGES, len(corpus.held_out) // tokens))
    starts = np.linspace(0, len(corpus.held_out) - tokens, count).astype(int)
    return torch.from_numpy(np.stack([corpus.held_out[at : at + tokens] for at in starts]).astype("int64"))


def audit_settings() -> dict[str, Any]:
    """What decides the numbers besides the model and its corpus."""
    return {"passages": PASSAGES, "tokens": TOKENS, "divergence": DIVERGENCE}


def _layers(found: AuditFindings, heads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for row in found.boundaries:
        of = row.values["unit"]
        own = [head for head in heads if head["layer"] == row.layer]
        rows.append(
            {
                "layer": row.layer,
                "token_rank": of["effective_rank"],
                "energy_rank": of["energy_rank"],
                "relative_mu": of["relative_mu"],
                "mean_abs_cosine": of["mean_abs_cosine"],
                "head_rank_used": _median(own, "rank_used"),
                "head_rank_needed": _median(own, "rank_needed"),
                "attention_entropy": _mean(own, "relative_entropy"),
                "first_token_mass": _mean(own, "first_token_mass"),
            }
        )
    return rows


def _heads(found: AuditFindings) -> list[dict[str, Any]]:
    """What is known of each head, by layer and number."""
    known: dict[tuple[int, int], dict[str, Any]] = {}
    for one in found.heads:
        known.setdefault((one.layer, one.head), {}).update(
            rank_used=one.qk_effective_rank, value_rank_used=one.ov_effective_rank
        )
    for need in found.head_needs:
        known.setdefault((need.layer, need.head), {}).update(rank_needed=need.needed_rank, at_limit=need.at_limit)
    for seen in found.attention:
        if {
            "relative_entropy",
            "first_token_mass",
        } <= seen.values.keys():  # in a text of one token there is no choice
            known.setdefault((seen.layer, seen.head), {}).update(
                relative_entropy=seen.values["relative_entropy"],
                first_token_mass=seen.values["first_token_mass"],
                is_sink=seen.is_sink,
                is_idle=seen.does_nothing is not None,
            )
    return [{"layer": layer, "head": head, **facts} for (layer, head), facts in sorted(known.items())]


def _median(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [record[name] for record in records if record.get(name) is not None]
    return float(statistics.median(values)) if values else None


def _mean(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [record[name] for record in records if record.get(name) is not None]
    return statistics.fmean(values) if values else None
