"""What watching token rank costs a training run at the default rate; target: under 2 %.

On a processor the time spent inside the monitor's own hooks is summed, which noise from elsewhere cannot touch; on a
GPU, where a sample makes the host wait, as many steps as lie between two samples are timed with and without it.
"""

from __future__ import annotations

import contextlib
import inspect
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._harness import report
from rankfall.models.monitor.monitor import Alarms, RankMonitor

QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=float("inf"))
DEFAULT_EVERY = int(inspect.signature(RankMonitor).parameters["every"].default)

# depth, width, tokens, batch
SIZES_CPU = ((4, 128, 128, 8), (6, 256, 128, 8))
SIZES_GPU = ((12, 768, 512, 16), (24, 1024, 1024, 8))


def model_of(depth: int, width: int) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, width // 32, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).train()


def step_of(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()

    return step


class Timed(RankMonitor):
    """Adds up the processor time that its own hooks take."""

    spent = 0.0

    def _start(self, model: nn.Module, *given: Any) -> None:
        start = time.process_time()
        super()._start(model, *given)
        self.spent += time.process_time() - start

    def _sampler(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        inner = super()._sampler(name)

        def hook(module: nn.Module, given: Any, output: Any) -> None:
            start = time.process_time()
            inner(module, given, output)
            self.spent += time.process_time() - start

        return hook

    def _finish(self, *given: Any) -> None:
        start = time.process_time()
        super()._finish(*given)
        self.spent += time.process_time() - start


def spent_in(step: Callable[[], None], model: nn.Module, every: int, steps: int) -> tuple[float, float]:
    """Processor time inside the monitor and in all, per step."""
    with Timed(model, [], every=every, step=None if every == 1 else lambda: 1, alarms=QUIET) as monitor:
        start = time.process_time()
        for _ in range(steps):
            step()
        return monitor.spent / steps, (time.process_time() - start) / steps


def on_cpu(step: Callable[[], None], model: nn.Module) -> dict[str, float]:
    idle, whole = spent_in(step, model, 10**9, 10)
    sample, _ = spent_in(step, model, 1, 5)
    return {"step_ms": 1e3 * whole, "idle_ms": 1e3 * idle, "sample_ms": 1e3 * sample}


def on_gpu(step: Callable[[], None], model: nn.Module) -> dict[str, float]:
    def clocked(watched: bool) -> float:
        with contextlib.ExitStack() as stack:
            if watched:
                stack.enter_context(RankMonitor(model, [], alarms=QUIET))
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(DEFAULT_EVERY):
                step()
            torch.cuda.synchronize()
            return time.perf_counter() - start

    clocked(True)
    pairs = [(clocked(False), clocked(True)) for _ in range(5)]
    plain, watched = (statistics.median(times) / DEFAULT_EVERY for times in zip(*pairs, strict=True))
    return {"step_ms": 1e3 * plain, "idle_ms": 0.0, "sample_ms": 1e3 * DEFAULT_EVERY * max(watched - plain, 0.0)}


def measured(depth: int, width: int, tokens: int, batch: int, device: str) -> dict[str, object]:
    model = model_of(depth, width).to(device)
    step = step_of(model, torch.randn(batch, tokens, width, device=device))
    step()
    times = on_gpu(step, model) if device == "cuda" else on_cpu(step, model)
    overhead = (times["idle_ms"] + times["sample_ms"] / DEFAULT_EVERY) / times["step_ms"]
    shape = {"depth": depth, "width": width, "tokens": tokens, "batch": batch, "device": device}
    return {**shape, **times, "every": DEFAULT_EVERY, "overhead_percent": 100 * overhead}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    sizes = SIZES_GPU if device == "cuda" else SIZES_CPU
    report("monitor", [measured(*size, device) for size in sizes])


if __name__ == "__main__":
    main()
