"""Whole audits by model size: seconds by part and memory above the model, everything on, with the results checked.

    python -m benchmarks.whole_audits                                              tiny shapes, on the processor
    python -m benchmarks.whole_audits --device cuda --shapes 135M 1B 8B --tokens 2048 --out DIR
    python -m benchmarks.whole_audits --device cuda --shapes 70B-2-blocks --tokens 2048 --out DIR
    python -m benchmarks.whole_audits --device cuda --shapes 1B --texts 1 --limit 60 --profile

Random weights of the shapes of SmolLM2-135M, Llama 3.2 1B, Llama 3 8B and two blocks of Llama 3 70B, made on the
device in bfloat16; random token ids; loading is not part of it. It needs PyTorch, transformers and what an audit
needs: no tokenizer, no files, no network. The first audit of a process is a small one and is not counted. Each part's
seconds are printed as it ends; a shape that takes longer than `--limit` ends with the stack of what ran, and the next
one begins.

Checked, and refused otherwise: nothing is missing from the audit, every weight is bit for bit what it was, replayed
blocks agree with the traced pass, energy ranks at both ends agree with an SVD, draws of a control differ.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import faulthandler
import json
import pstats
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._harness import report, wait
from rankfall.models.audit import audit
from rankfall.models.depth.capture import Place, capture
from rankfall.models.result import AuditFindings
from rankfall.provenance import provenance

# width, feed-forward width, layers, heads, key heads, vocabulary
SHAPES = {
    "tiny": (64, 128, 4, 4, 2, 512),
    "135M": (576, 1536, 30, 9, 3, 49152),
    "1B": (2048, 8192, 16, 32, 8, 128256),
    "8B": (4096, 14336, 32, 32, 8, 128256),
    "70B-2-blocks": (8192, 28672, 2, 64, 8, 128256),
}
GIB = 1 << 30
# Energy ranks of the audit, which come from Gram matrices, against an SVD of the same tokens.
AGREES = 1e-5


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    rows: list[dict[str, Any]] = []
    _audited(_model("tiny", options.device), options.device, tokens=32, texts=2, seed=0, parts={})
    for shape in options.shapes:
        network = _model(shape, options.device)
        parts: dict[str, float] = {}
        try:
            with _at_most(options.limit), _profiled(options.profile):
                rows.append(_timed(shape, network, options, parts))
        except OutOfTimeError:
            print(f"{shape}: not done after {options.limit:g} s; parts that ended: {parts}", flush=True)
        del network
    if rows:
        report("whole_audits", rows)
    if rows and options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        kept = {"benchmark": "whole_audits", "rows": rows, "provenance": provenance()}
        (options.out / "whole_audits.json").write_text(json.dumps(kept, indent=1))


def _options(arguments: list[str] | None) -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["tiny"])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--limit", type=float, default=0, help="seconds for a shape; 0: as long as it takes")
    parser.add_argument("--profile", action="store_true", help="print the functions that took longest")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


class OutOfTimeError(BaseException):
    """Not an `Exception`: parts of an audit that fail are noted as missing, and this must end it."""


@contextlib.contextmanager
def _at_most(limit: float) -> Iterator[None]:
    """Inside, after so many seconds, where the program stands is printed and the work ends; a call into a library
    ends first. 0 is no limit."""

    def ring(*_: object) -> None:
        faulthandler.dump_traceback(all_threads=False)
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _profiled(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        for order in ("tottime", "cumulative"):
            pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats(order).print_stats(45)


def _model(shape: str, device: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    width, inner, layers, heads, key_heads, vocabulary = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    with torch.device(device):
        made = LlamaModel._from_config(config, dtype=torch.bfloat16)
    model: nn.Module = made.eval()
    return model


def _timed(shape: str, network: nn.Module, options: Any, parts: dict[str, float]) -> dict[str, Any]:
    before, size = _fingerprint(network), sum(one.numel() * one.element_size() for one in network.parameters())
    _reset_peak(options.device)
    start = time.perf_counter()
    found, ids = _audited(network, options.device, options.tokens, options.texts, seed=1, parts=parts)
    seconds = time.perf_counter() - start
    print(f"{shape}: {seconds:.2f} s in all", flush=True)
    above = (_peak(options.device) - size) / GIB
    _require(found.missing == {}, f"something is missing: {found.missing}")
    _require(_fingerprint(network) == before, "the weights are not what they were")
    error = _rank_error(network, ids, found)
    _require(error < AGREES, f"energy ranks are off by {error:.2g}")
    ends = {(one.name, one.draw): one.rows[-1].values["unit"]["energy_rank"] for one in found.controls}
    _require(len(set(ends.values())) == len(ends), f"draws of a control agree: {ends}")
    check = found.ablation_check
    _require(check is not None, "no block was replayed")
    assert check is not None
    return {
        "shape": shape,
        "parameters": sum(one.numel() for one in network.parameters()),
        "tokens": options.tokens,
        "texts": options.texts,
        "device": options.device,
        "dtype": "bfloat16",
        "seconds": seconds,
        "model_gib": size / GIB,
        "gib_above_model": above,
        "worst_rank_error": error,
        "replay_error": check.error,
        "replay_own_error": check.own_error,
        **{f"s_{name.replace(' ', '_')}": value for name, value in parts.items()},
    }


def _audited(
    network: nn.Module, device: str, tokens: int, texts: int, seed: int, parts: dict[str, float]
) -> tuple[AuditFindings, Tensor]:
    """The audit and the token ids; `parts` gets the seconds of each part as it ends, which are printed too."""
    config: Any = network.config
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (texts, tokens), generator=generator)
    newest: list[tuple[str, float]] = []

    def ends() -> None:
        if newest:
            name, began = newest.pop()
            wait(device)
            parts[name] = time.perf_counter() - began
            print(f"  {tokens} tokens x {texts}, {name}: {parts[name]:.2f} s", flush=True)

    def progress(what: str, share: float) -> None:
        name = what.partition(",")[0]
        if not newest or (newest[-1][0] != name and not name.startswith(("taking apart", "text"))):
            ends()
            newest.append((name, time.perf_counter()))

    found = audit(network, inputs=ids, progress=progress)
    ends()
    return found, ids


def _fingerprint(network: nn.Module) -> list[int]:
    """A number for each parameter that one changed bit changes."""
    return [int(one.detach().flatten().view(torch.int16).long().sum()) for one in network.parameters()]


def _rank_error(network: nn.Module, ids: Tensor, found: AuditFindings) -> float:
    """How far energy ranks of the raw tokens of the first text are from a float64 SVD, at both ends, at worst."""
    last = found.model.layers
    kept: dict[int, Tensor] = {}

    def keep(place: Place, tokens: Tensor) -> None:
        if place.part == "boundary" and place.layer in (0, last):
            kept[place.layer] = tokens[0].double()

    device = next(network.parameters()).device
    capture(network, {"input_ids": ids.to(device), "use_cache": False}, keep)
    worst = 0.0
    for row in found.boundaries:
        if row.layer in kept:
            squares = torch.linalg.svdvals(kept[row.layer]).square()
            rank = float(torch.special.entr(squares / squares.sum()).sum().exp())
            worst = max(worst, abs(row.per_text[0].values["raw"]["energy_rank"] / rank - 1))
    return worst


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(f"whole_audits: {otherwise}")


def _reset_peak(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _peak(device: str) -> int:
    """Bytes: of the device, or of the process with everything in it."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


if __name__ == "__main__":
    main()
