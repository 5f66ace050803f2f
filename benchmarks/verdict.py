"""Does a verdict survive another text? Statuses over resampled passages of three texts and four lengths.

    python -m benchmarks verdict                 MiniLM and SmolLM2, on two cores
    python -m benchmarks.verdict --model minilm  one of them
    python -m benchmarks.verdict --out FILE      the table and every count as JSON too

Each text gives WINDOWS passages of each length, evenly spaced (in short texts they overlap). Each is measured once:
in the model, with its tokens shuffled, and in random twins. Then SETS sets of PASSAGES passages are drawn for each
text and length, and each set is judged as an audit would judge it, controls included. A row counts, over all of
them, how often each status came out. `same` is the share of the commonest decided status among all cases, `open`
that of sets whose verdict itself says that it depends on the text, `contrary` that of other decided statuses: the
bar is that same and open together make 95 %.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import nn

from benchmarks._harness import report
from rankfall.models.controls.controls import Control
from rankfall.models.controls.twin import separate_twin
from rankfall.models.depth.capture import capture
from rankfall.models.depth.measure import DepthMeasurement
from rankfall.models.depth.rows import DepthRow, Measured
from rankfall.models.inputs.texts import Batch, framed, from_ids, shipped_text, shuffled
from rankfall.models.load.open import open_model
from rankfall.models.verdict.asked import Asked
from rankfall.models.verdict.questions import answers
from rankfall.provenance import provenance

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("minilm", "smollm2")
LENGTHS = (64, 128, 256, 512)
WINDOWS, SETS, PASSAGES, TWINS = 8, 20, 4, 2
# Layers that are measured, both ends among them; every layer of a deep model would take three times as long.
LAYERS_AT_MOST = 11


def texts() -> dict[str, str]:
    """A story, a licence and source code: all three come with the project."""
    return {
        "story": shipped_text(),
        "licence": (ROOT / "LICENSE").read_text(encoding="utf-8"),
        "code": "\n".join(
            path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/rankfall/equilibria").glob("*.py"))
        ),
    }


@final
@dataclass(frozen=True)
class Measurements:
    """Every passage of one text and length, by run: the model, then each control and draw."""

    model: str
    text: str
    tokens: int
    runs: dict[str, list[list[Measured]]]

    def statuses(self, chosen: Sequence[int]) -> Iterator[tuple[str, str, str]]:
        """Question, place and status of a verdict on some of the passages."""
        controls = [
            Control(name, "", tuple(_rows(draw, chosen)))
            for name, draws in self.runs.items()
            if name != "model"
            for draw in draws
        ]
        asked = Asked(_rows(self.runs["model"][0], chosen), controls)
        for finding in answers(asked):
            for place in finding.places:
                yield finding.question, place.place, place.status


def _rows(measured: Sequence[Measured], chosen: Sequence[int]) -> list[DepthRow]:
    places = sorted({one.place for one in measured}, key=lambda place: (place.layer, place.part == "boundary"))
    rows = []
    for place in places:
        group = tuple(one for one in measured if one.place == place and one.text in chosen)
        rows.append(
            DepthRow(place.layer, place.part, group[0].values, len(group), per_text=group, module=place.module)
        )
    return rows


def measured(name: str) -> Iterator[Measurements]:
    """All texts and lengths of one model."""
    opened = open_model(name)
    network = opened.network.eval()
    twins = [separate_twin(network, seed) for seed in range(TWINS)]
    for text, words in texts().items():
        ids = [int(one) for one in opened.tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]]
        for tokens in LENGTHS:
            batch = _windows(opened.tokenizer, ids, tokens)
            runs = {
                "model": [_measured(network, batch)],
                "random_weights": [_measured(twin, batch) for twin in twins],
                "shuffled_tokens": [_measured(network, shuffled(batch))],
            }
            yield Measurements(name, text, tokens, runs)


def _windows(tokenizer: Any, ids: list[int], tokens: int) -> Batch:
    size = tokens - len(framed(tokenizer, []))
    starts = np.linspace(0, len(ids) - size, WINDOWS).round().astype(int)
    return from_ids([framed(tokenizer, ids[start : start + size]) for start in starts], tokenizer)


def _measured(network: nn.Module, batch: Batch) -> list[Measured]:
    """One passage at a time, so that memory stays flat."""
    inputs = batch.inputs(network)
    last = len(_layers(network))
    wanted = {round(one) for one in np.linspace(0, last, min(last + 1, LAYERS_AT_MOST))}
    found: list[Measured] = []
    for text in range(batch.texts):
        taken = DepthMeasurement([None], batch.names[text : text + 1], wanted, without_sinks=False)
        one = {name: value[text : text + 1] if hasattr(value, "shape") else value for name, value in inputs.items()}
        capture(network, one, taken.take)
        found += [replace(row, text=text) for row in taken.measured()]
    return found


def _layers(network: nn.Module) -> Sequence[nn.Module]:
    from rankfall.models.recording.blocks import choose_stack

    return choose_stack(network).blocks


def judged(found: Sequence[Measurements], seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One row per model, question and place over all sets; and the counts by text and length."""
    totals: dict[tuple[str, str, str], Counter[str]] = {}
    cells: list[dict[str, Any]] = []
    for one in found:
        rng = np.random.default_rng(seed)
        counts: dict[tuple[str, str], Counter[str]] = {}
        for _ in range(SETS):
            chosen = sorted(rng.choice(WINDOWS, PASSAGES, replace=False).tolist())
            for question, place, status in one.statuses(chosen):
                counts.setdefault((question, place), Counter())[status] += 1
        for (question, place), counter in counts.items():
            totals.setdefault((one.model, question, place), Counter()).update(counter)
            cells.append(
                {
                    "model": one.model,
                    "text": one.text,
                    "tokens": one.tokens,
                    "question": question,
                    "place": place,
                    "statuses": dict(counter),
                }
            )
    rows = []
    for (model, question, place), counter in totals.items():
        cases = counter.total()
        decided = Counter({status: count for status, count in counter.items() if status != "depends"})
        status, most = decided.most_common(1)[0] if decided else ("depends", 0)
        rows.append(
            {
                "model": model,
                "question": question,
                "place": place,
                "status": status,
                "cases": cases,
                "same": most / cases,
                "open": counter["depends"] / cases,
                "contrary": (decided.total() - most) / cases,
            }
        )
    return rows, cells


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(list(arguments))
    found = []
    start = time.perf_counter()
    for name in options.model or MODELS:
        for one in measured(name):
            found.append(one)
            print(f"{name} {one.text} {one.tokens}: {time.perf_counter() - start:.0f} s", flush=True)
    rows, cells = judged(found)
    report("verdict", rows)
    if options.out is not None:
        sums = {name: hashlib.sha256(words.encode()).hexdigest() for name, words in texts().items()}
        record = {"rows": rows, "cells": cells, "texts": sums, "provenance": provenance()}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
