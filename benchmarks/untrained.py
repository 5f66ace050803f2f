"""Is an untrained model called worse than untrained models? Verdicts on random weights beside other random weights.

    python -m benchmarks untrained               every kind of model below, on two cores
    python -m benchmarks.untrained --seeds 2     fewer draws of each
    python -m benchmarks.untrained --out FILE    every verdict as JSON too

Each model is small, has fresh random weights and is audited with the usual controls, three draws of random weights
among them. Its distinctions between tokens are then those of one more draw, so that "reduced" is a false alarm and
"depends" is no answer. Kinds differ in positions (rotary, learned, relative), masks and norms (before, after, around
the branch, parallel), passages in number, length and where their tokens come from. Of models with two halves both
verdicts count. `largest` is the largest ratio of 0.9 of the lowest draw to the model, in the median passage: above
the factor that is needed to decide (`paired_clear_factor`) a model would be called reduced.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._harness import report
from rankfall.models.architectures.small import VOCABULARY, small_models
from rankfall.models.audit import audit
from rankfall.models.inputs.texts import shipped_text
from rankfall.models.verdict.verdict import Verdict
from rankfall.provenance import provenance

KINDS = {
    "llama": "rotary, norm before",
    "qwen3": "rotary, norm of queries and keys",
    "gemma3_text": "rotary, norm on both sides, windows",
    "gpt_neox": "rotary, parallel",
    "gpt2": "learned positions, norm before",
    "opt": "learned positions, norm before",
    "bert": "encoder, norm after",
    "roberta": "encoder, norm after",
    "modernbert": "encoder, rotary, norm before",
    "t5": "two halves, relative positions",
    "bart": "two halves, norm after",
}
# Passages, tokens of each, and where they come from.
READINGS = ((4, 16, "drawn"), (2, 32, "text"), (4, 64, "text"), (4, 128, "drawn"))
FIRST_SEED, SEEDS = 100, 8
# Widths 32, 32 with as many keys as queries, and 128.
RECIPES = 3


def ids(passages: int, tokens: int, source: str, seed: int) -> Tensor:
    """Token ids drawn evenly, or the words of the text that ships with the package, numbered as they appear."""
    generator = torch.Generator().manual_seed(seed)
    if source == "drawn":
        return torch.randint(4, VOCABULARY, (passages, tokens), generator=generator)
    numbers: dict[str, int] = {}
    words = [numbers.setdefault(word, len(numbers)) % (VOCABULARY - 4) + 4 for word in shipped_text().split()]
    start = int(torch.randint(0, len(words) - passages * tokens, (1,), generator=generator))
    return torch.tensor(words[start : start + passages * tokens]).reshape(passages, tokens)


def verdicts(kind: str, seeds: int, first: int) -> Iterator[tuple[dict[str, Any], Verdict]]:
    """Every verdict on models of one kind, and what it is about."""
    for seed in range(first, first + seeds):
        torch.manual_seed(seed)
        for recipe, model in enumerate(small_models(kind)):
            if recipe == RECIPES:
                break
            passages, tokens, source = READINGS[(seed + recipe) % len(READINGS)]
            given = ids(passages, tokens, source, seed)
            found = audit(model, inputs=given, heads=False, attention=False, ablation=False, seed=seed)
            about = {"seed": seed, "recipe": recipe, "passages": passages, "tokens": tokens, "source": source}
            yield {**about, "stack": found.stack}, found.verdict
            yield from (({**about, "stack": other.name}, other.verdict) for other in found.other_stacks)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=tuple(KINDS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(list(arguments))
    rows, cases = [], []
    for kind in options.kind or KINDS:
        counted: Counter[str] = Counter()
        ratios = []
        for about, verdict in verdicts(kind, options.seeds, options.first_seed):
            (finding,) = (one for one in verdict.findings if one.question == "distinctions")
            for place in finding.places:
                counted[place.status] += 1
                ratio = place.decisions[-1].ratio
                ratios.append(ratio)
                cases.append({"kind": kind, **about, "place": place.place, "status": place.status, "ratio": ratio})
        names = ("kept", "depends", "reduced", "lost")
        largest = {"largest": max(ratios)}
        rows.append({"kind": kind, "cases": counted.total(), **{one: counted[one] for one in names}, **largest})
        print(rows[-1], flush=True)
    report("untrained", rows)
    if options.out is not None:
        record = {"rows": rows, "cases": cases, "kinds": KINDS, "provenance": provenance()}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
