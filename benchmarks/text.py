"""Language models: tokens per second and share of the machine's peak, beside a plain compiled PyTorch model in turns.

    python -m benchmarks.text                                         a tiny model on the processor
    python -m benchmarks.text --device cuda --shapes 10M 30M --out DIR

The plain model is the same decoder as an ordinary module (`TextModel`) under autocast, trained by PyTorch's fused
AdamW with its own clipping, compiled where there is a GPU. Both see the same batches. Checked, and refused otherwise:
after the timed steps the gradient of ours, as it is trained, is as close to one in float32 as the gradient of the
plain model is. The mean losses of both are printed; rounding makes them drift apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._harness import report
from rankfall.provenance import provenance
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import prepare_corpus
from rankfall.training.text.decoder import Decoder
from rankfall.training.text.module import text_model
from rankfall.training.text.optimizer import rate_factor
from rankfall.training.text.stack import TextStack

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 64, "layers": 2, "heads": 4, "rank": 16, "value_rank": 16, "key_heads": 4, "feed_forward": 192,
             "context": 64, "batch": 8},
    "10M": {"width": 384, "layers": 6, "heads": 6, "rank": 64, "value_rank": 64, "key_heads": 6, "feed_forward": 1024,
            "context": 512, "batch": 128},
    "30M": {"width": 512, "layers": 8, "heads": 8, "rank": 64, "value_rank": 64, "key_heads": 8, "feed_forward": 1536,
            "context": 512, "batch": 128},
    "30M-r16": {"width": 512, "layers": 8, "heads": 32, "rank": 16, "value_rank": 16, "key_heads": 32,
                "feed_forward": 1536, "context": 512, "batch": 128},
    "30M-r128": {"width": 512, "layers": 8, "heads": 4, "rank": 128, "value_rank": 128, "key_heads": 4,
                 "feed_forward": 1536, "context": 512, "batch": 128},
}  # fmt: skip
PEAK = 989e12
"""Dense bfloat16 operations per second of an H100 or H200 by its data sheet."""
STEPS, TURNS = 10, 5
ROUNDING = 1e-5
"""What the order of sums changes in a gradient in float32."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["tiny"])
    parser.add_argument("--vocabulary", default="bytes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(f"{n} sheep and {n * n % 97} goats on {n % 13} hills\n" * 40 for n in range(600)))
        corpus = prepare_corpus(text, options.vocabulary, Path(folder)).about
        rows = []
        for name in options.shapes:
            rows.append(_row(name, corpus.digest, corpus.vocabulary, Path(folder), options))
            print(rows[-1], flush=True)
    report("text", rows)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        kept = {"benchmark": "text", "rows": rows, "provenance": provenance()}
        (options.out / "text.json").write_text(json.dumps(kept, indent=1))


def _row(name: str, corpus: str, vocabulary: int, folder: Path, options: Any) -> dict[str, Any]:
    cuda = options.device.startswith("cuda")
    cell = TextCell(
        **SHAPES[name], corpus=corpus, vocabulary=vocabulary, tokenizer=options.vocabulary,
        dtype="bfloat16" if cuda else "float32", steps=1000,
    )  # fmt: skip
    stack = TextStack([cell], folder, options.device, compile=cuda)
    plain = Plain(cell, stack, compile=cuda)
    stack.prepare()
    plain.run(1)
    plain.reset()
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(TURNS):
        for label, run in (("ours", stack.run_steps), ("plain", plain.run)):
            _wait(cuda)
            start = time.perf_counter()
            run(STEPS)
            _wait(cuda)
            times[label].append((time.perf_counter() - start) / STEPS)
    losses = [float(stack._loss_sum[0]) / (STEPS * TURNS), plain.total / (STEPS * TURNS)]
    errors = _gradient_errors(stack, plain)
    if not errors["ours"] < 2 * errors["plain"] + ROUNDING:
        raise SystemExit(f"text: gradients are off: {errors}; mean losses {losses}")
    ours, other = (statistics.median(times[label]) for label in ("ours", "plain"))
    tokens = cell.batch * cell.context
    return {
        "shape": name,
        "parameters": stack.layout.parameters,
        "tokens_per_second": tokens / ours,
        "step_ms": 1e3 * ours,
        "plain_step_ms": 1e3 * other,
        "ratio": other / ours,
        "share_of_peak": tokens * cell.token_flops / ours / PEAK if cuda else None,
        "loss": losses[0],
        "plain_loss": losses[1],
        "gradient_error": errors["ours"],
        "plain_gradient_error": errors["plain"],
    }


def _gradient_errors(stack: TextStack, plain: Plain) -> dict[str, float]:
    """Relative distance of each gradient, at the weights that ours came to, to that of the same code in float32."""
    tokens = stack.batches.at(stack._tensors["step"])
    exact = Decoder(replace(stack.cells[0], dtype="float32"), stack.device)
    weights = list(stack._weights.values())
    ours = torch.autograd.grad(stack.program._loss(stack._weights, tokens).sum(), weights)
    reference = torch.autograd.grad(exact.nats(stack._weights, tokens).mean(), weights)
    plain.model.load_state_dict(text_model(plain.cell, stack.weights(0)).state_dict())
    parts = list(plain.model.parameters())
    theirs = torch.autograd.grad(plain.forward(tokens[0]), parts)
    logits = plain.model(tokens[0, :, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[0, :, 1:].flatten())
    return {
        "ours": _distance(ours, reference),
        "plain": _distance(theirs, torch.autograd.grad(loss, parts)),
    }


def _distance(parts: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    found, exact = (torch.cat([part.detach().flatten().double() for part in one]) for one in (parts, reference))
    return float((found - exact).norm() / exact.norm())


class Plain:
    """The same training as most people write it."""

    def __init__(self, cell: TextCell, stack: TextStack, compile: bool) -> None:
        self.cell, self.stack, self.cuda = cell, stack, compile
        self.start = stack.weights(0)
        self.model: nn.Module = text_model(cell, self.start).to(stack.device).train()
        self.forward = torch.compile(self._loss) if compile else self._loss
        self.reset()

    def reset(self) -> None:
        """Back to the start."""
        self.model.load_state_dict(text_model(self.cell, self.start).state_dict())
        matrices = [weight for name, weight in self.model.named_parameters() if "blocks" in name and weight.ndim == 2]
        chosen = {id(weight) for weight in matrices}
        rest = [weight for weight in self.model.parameters() if id(weight) not in chosen]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": self.cell.weight_decay}, {"params": rest, "weight_decay": 0.0}],
            lr=self.cell.learning_rate, betas=(0.9, 0.95), fused=self.cuda,
        )  # fmt: skip
        self.step, self.total = 0, 0.0

    def _loss(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self.cuda):
            logits = self.model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    def run(self, steps: int) -> None:
        """Take steps on the batches that the stack sees."""
        losses = []
        for _ in range(steps):
            tokens = self.stack.batches.at(torch.tensor(self.step, device=self.stack.device))[0]
            self.step += 1
            factor = float(rate_factor(torch.tensor(self.step), self.cell.steps, self.cell.warm_up))
            for group in self.optimizer.param_groups:
                group["lr"] = self.cell.learning_rate * factor
            loss = self.forward(tokens)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.cell.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        self.total += float(torch.stack(losses).sum())


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
