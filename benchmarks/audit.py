"""What exact token statistics add to a plain forward pass: time at 512 tokens, memory at 2048.

    python -m benchmarks audit                      two cores, SmolLM2
    python -m benchmarks.audit --device cuda        the same on a GPU, where transformers and the weights are
    python -m benchmarks.audit --random-weights     a random model of SmolLM2's shape, where the weights are not
    python -m benchmarks.audit --device cuda --random-weights --batch 1 8 32 --out DIR
                                                    several texts, together and one by one; the numbers checked,
                                                    and kept in a file

Plain and measured passes alternate within one run, so that their ratio survives a busy machine. `cpu` is processor
time of all threads together: on few cores the ratio of wall times cannot be better than that of processor times for
long. Measured at every block boundary: all measures of the raw, unit and centred view; the last column adds the
same again without the sinks, which SmolLM2 has in most of its layers and which an audit does by default. `at_once`
is how many of the texts run through the model together, plain or measured. On two cores `added` is to be at most 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._harness import report, wait
from rankfall.models.depth.capture import Place, capture
from rankfall.models.depth.measure import measure_depth
from rankfall.models.inputs.texts import Batch, encode, from_ids, shipped_text
from rankfall.provenance import provenance

SHAPE = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments or [])
    torch.set_num_threads(options.threads)
    network, tokenizer = _model(options.random_weights, options.device)
    rows = [
        _timed(network, _batch(tokenizer, tokens, texts), options, at_once)
        for tokens in options.tokens
        for texts in options.batch
        for at_once in ((texts, 1) if texts > 1 else (1,))
    ]
    if options.device == "cpu":
        rows.append(_peak(network, _batch(tokenizer, 2048)))
    else:
        rows[0] |= _checked(network, _batch(tokenizer, options.tokens[0]))
    table = [{key: row.get(key) for key in rows[0] | rows[-1]} for row in rows]
    report("audit", table)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        kept = {"benchmark": "audit", "rows": table, "provenance": provenance()}
        (options.out / "audit.json").write_text(json.dumps(kept, indent=1))


def _options(arguments: list[str]) -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


def _model(random_weights: bool, device: str) -> tuple[nn.Module, Any]:
    if not random_weights:
        from rankfall.models.load.open import open_model

        loaded = open_model("smollm2", device=device)
        return loaded.network, loaded.tokenizer
    from transformers import AutoModel, LlamaConfig

    torch.manual_seed(0)
    return AutoModel.from_config(LlamaConfig(**SHAPE)).to(device).eval(), None


def _batch(tokenizer: Any, tokens: int, texts: int = 1) -> Batch:
    if tokenizer is None:
        return from_ids(torch.randint(SHAPE["vocab_size"], (texts, tokens)).tolist())
    return encode(tokenizer, [shipped_text() * 4], tokens=tokens, passages=texts)


def _timed(network: nn.Module, batch: Batch, options: Any, at_once: int) -> dict[str, Any]:
    inputs, texts = batch.inputs(network), len(batch.names)
    passes = [
        (
            {name: value[some] if isinstance(value, torch.Tensor) else value for name, value in inputs.items()},
            {"real": batch.kept()[some], "names": batch.names[some]},
        )
        for some in (slice(first, first + at_once) for first in range(0, texts, at_once))
    ]

    def plain() -> None:
        with torch.inference_mode():
            for some, _ in passes:
                network(**some)

    def measured() -> None:
        for some, given in passes:
            measure_depth(network, some, **given, without_sinks=False)

    def repeated() -> None:
        for some, given in passes:
            measure_depth(network, some, **given)

    works = {"plain": plain, "measured": measured, "repeated": repeated}
    wall: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    for attempt in range(options.repeats + 1):
        for name, work in works.items():
            wait(options.device)
            start, start_cpu = time.perf_counter(), time.process_time()
            work()
            wait(options.device)
            if attempt > 0:
                wall[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - start_cpu)
    middle = {name: statistics.median(times) for name, times in wall.items()}
    middle_cpu = {name: statistics.median(times) for name, times in cpu.items()}
    return {
        "tokens": batch.ids.shape[1],
        "texts": texts,
        "at_once": at_once,
        "device": options.device,
        "threads": options.threads,
        "plain_seconds": middle["plain"],
        "measured_seconds": middle["measured"],
        "added": middle["measured"] / middle["plain"] - 1,
        "added_cpu": middle_cpu["measured"] / middle_cpu["plain"] - 1,
        "added_with_sinks_left_out_too": middle["repeated"] / middle["plain"] - 1,
        "added_each": [round(one / other - 1, 3) for one, other in zip(wall["measured"], wall["plain"], strict=True)],
    }


def _peak(network: nn.Module, batch: Batch) -> dict[str, Any]:
    """Most memory above the loaded model while measuring."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    measure_depth(network, batch.inputs(network), real=batch.kept(), names=batch.names)
    return {"tokens": batch.ids.shape[1], "device": "cpu", "peak_mb_above_model": (_status("VmHWM") - before) / 1024}


def _checked(network: nn.Module, batch: Batch) -> dict[str, Any]:
    """How far the ranks and the smallest singular value of raw tokens are from a float64 SVD, at worst."""
    states: dict[int, np.ndarray] = {}

    def keep(place: Place, tokens: Tensor) -> None:
        if place.part == "boundary":
            states[place.layer] = tokens[0].double().cpu().numpy()

    capture(network, batch.inputs(network), keep)
    rows = measure_depth(network, batch.inputs(network), real=batch.kept(), names=batch.names)
    worst = 0.0
    for row in rows:
        if row.part != "boundary":
            continue
        values = np.linalg.svd(states[row.layer], compute_uv=False)
        for name, power in (("effective_rank", 1), ("energy_rank", 2)):
            shares = values[values > 0] ** power / (values**power).sum()
            rank = float(np.exp(-(shares * np.log(shares)).sum()))
            worst = max(worst, abs(row.values["raw"][name] / rank - 1))
        # Repeated tokens make it zero, which rounding alone decides.
        if values[-1] > 1e-11 * values[0]:
            worst = max(worst, abs(row.values["raw"]["min_singular_value"] / float(values[-1]) - 1))
    return {"worst_relative_error": worst}


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise OSError(f"{key} is not in /proc/self/status")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
