"""What watching token rank, and attention, costs a training run at the default rate; target: under 2 %.

Processor time inside the monitor's own hooks, in steps with and without a sample, against that of a whole step: noise
from elsewhere cannot touch it. Beside it steps with a sample and steps without a monitor, in turn, by the clock, and
the median of their differences. On a GPU, where a sample makes the host wait, only the clock counts: a few steps of
which one is sampled, as many of which none is, and as many without the monitor, in turn; median differences say what
a sample costs and what its hooks cost where nothing is sampled.

    python -m benchmarks monitor
    python -m benchmarks.monitor --ways compiled
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._harness import report
from rankfall.models.monitor.alarms import Alarms
from rankfall.models.monitor.monitor import RankMonitor

# What is watched: tokens alone, attention too, and the weights of queries and keys.
WATCHED: dict[str, dict[str, bool]] = {
    "tokens": {},
    "attention": {"attention": True},
    "weights": {"attention": True, "weights": True},
}
# A monitor whose turn does not come, beside those that sample.
NEVER: dict[str, dict[str, Any]] = {"idle": {"every": 10**9, "step": lambda: 1}}
QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=float("inf"))
DEFAULT_EVERY = int(inspect.signature(RankMonitor).parameters["every"].default)
VOCABULARY = 50_257
ROUNDS_CPU, ROUNDS_GPU = 5, 21
# Steps of a round on a GPU: enough for the queue of launches to fill again after a sample, few against its drifts.
STEPS_GPU = 10

# depth, width, tokens, batch; 12 layers of width 768 with their vocabulary have 124 million parameters.
SIZES_CPU = ((4, 128, 128, 8), (12, 768, 128, 1))
SIZES_GPU = ((12, 768, 1024, 8),)


class LanguageModel(nn.Module):
    """GPT-2's shape: embeddings, causal blocks with the norm in front, a head tied to the embeddings."""

    def __init__(self, depth: int, width: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.ModuleList(block_of(width) for _ in range(depth))
        self.register_buffer("mask", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids) + self.positions
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask)
        logits = hidden @ self.embedding.weight.T
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def block_of(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


def step_of(model: nn.Module, ids: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            loss = model(ids)
        loss.backward()
        optimizer.step()

    return step


class Timed(RankMonitor):
    """Adds up the processor time that its own hooks take."""

    spent = 0.0

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.process_time()
        yield
        self.spent += time.process_time() - start

    def _start(self, *given: Any) -> None:
        with self._timed():
            super()._start(*given)

    def _sample(self, name: str, output: Any) -> None:
        if self._probing:
            # Inside of `_start`.
            super()._sample(name, output)
            return
        with self._timed():
            super()._sample(name, output)

    def _attend(self, name: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if self._probing:
            super()._attend(name, given, named)
            return
        with self._timed():
            super()._attend(name, given, named)

    def _finish(self, output: Any) -> None:
        with self._timed():
            super()._finish(output)


def spent_in(
    step: Callable[[], None], model: nn.Module, due: bool, steps: int, watched: str = "tokens"
) -> tuple[float, float]:
    """Processor time inside the monitor and in all, per step."""
    number = iter(range(10**9))
    options: dict[str, Any] = {"every": 1 if due else 10**9, "step": lambda: next(number) + 1, **WATCHED[watched]}
    with Timed(model, [], alarms=QUIET, **options) as monitor:
        start = time.process_time()
        for _ in range(steps):
            step()
        return monitor.spent / steps, (time.process_time() - start) / steps


def clocked(step: Callable[[], None], model: nn.Module, *, watched: str | None, every: int, steps: int) -> float:
    """Seconds by the clock; a GPU is waited for."""
    with contextlib.ExitStack() as stack:
        if watched is not None:
            options: dict[str, Any] = {"every": every, **WATCHED.get(watched, {}), **NEVER.get(watched, {})}
            stack.enter_context(RankMonitor(model, [], alarms=QUIET, **options))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start


def in_turn(
    step: Callable[[], None], model: nn.Module, names: Sequence[str], *, every: int, steps: int, rounds: int
) -> tuple[float, dict[str, float]]:
    """Median time of `steps` plain steps, and the median difference to as many that are watched, for each name."""
    found = []
    for number in range(rounds):
        # Plain steps come first in half of the rounds.
        order = (None, *names) if number % 2 else (*names, None)
        found.append({name: clocked(step, model, watched=name, every=every, steps=steps) for name in order})
    plain = statistics.median(times[None] for times in found)
    return plain, {name: statistics.median(times[name] - times[None] for times in found) for name in names}


def on_cpu(step: Callable[[], None], model: nn.Module) -> dict[str, float]:
    idle, whole = spent_in(step, model, due=False, steps=3)
    sample, _ = spent_in(step, model, due=True, steps=3)
    plain, differences = in_turn(step, model, ["tokens"], every=1, steps=1, rounds=ROUNDS_CPU)
    more = {name: spent_in(step, model, due=True, steps=3, watched=name)[0] for name in WATCHED if name != "tokens"}
    return {
        "step_ms": 1e3 * whole,
        "idle_ms": 1e3 * idle,
        "sample_ms": 1e3 * sample,
        "overhead_percent": 100 * (idle + sample / DEFAULT_EVERY) / whole,
        **{f"{name}_sample_ms": 1e3 * one for name, one in more.items()},
        **{f"{name}_overhead_percent": 100 * (idle + one / DEFAULT_EVERY) / whole for name, one in more.items()},
        "clock_step_ms": 1e3 * plain,
        "clock_sample_ms": 1e3 * differences["tokens"],
        "clock_overhead_percent": 100 * differences["tokens"] / DEFAULT_EVERY / plain,
    }


def on_gpu(step: Callable[[], None], model: nn.Module) -> dict[str, float]:
    """One sample a round of each of what can be watched; libraries have woken up before."""
    for name in WATCHED:
        clocked(step, model, watched=name, every=1, steps=2)
    names = [*WATCHED, *NEVER]
    plain, rounds = in_turn(step, model, names, every=STEPS_GPU, steps=STEPS_GPU, rounds=ROUNDS_GPU)
    one, idle = plain / STEPS_GPU, rounds.pop("idle") / STEPS_GPU
    samples = {name: difference - STEPS_GPU * idle for name, difference in rounds.items()}
    shares = {name: (idle + sample / DEFAULT_EVERY) / one for name, sample in samples.items()}
    return {
        "clock_step_ms": 1e3 * one,
        "idle_ms": 1e3 * idle,
        **{f"{name}_sample_ms": 1e3 * sample for name, sample in samples.items()},
        **{f"{name}_overhead_percent": 100 * share for name, share in shares.items()},
    }


def measured(depth: int, width: int, tokens: int, batch: int, device: str, compiled: bool) -> dict[str, object]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = LanguageModel(depth, width, tokens, VOCABULARY if width >= 768 else 1000).to(device)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    run = torch.compile(model, backend="inductor" if device == "cuda" else "eager") if compiled else model
    step = step_of(run, torch.randint(1000, (batch, tokens), device=device))
    step()
    times = on_gpu(step, run) if device == "cuda" else on_cpu(step, run)
    shape = {"depth": depth, "width": width, "millions": millions, "tokens": tokens, "batch": batch}
    return {**shape, "device": device, "compiled": compiled, "every": DEFAULT_EVERY, **times}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ways", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    ways = parser.parse_args(arguments).ways
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = SIZES_GPU if device == "cuda" else SIZES_CPU
    rows = []
    for size in sizes:
        for way in ways:
            rows.append(measured(*size, device, way == "compiled"))
            print(rows[-1], flush=True)
    report("monitor", rows)


if __name__ == "__main__":
    main()
