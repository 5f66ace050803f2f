"""A computation of many small launches, recorded once and then started with one call.

Launching costs the processor some ten microseconds each time; a recorded sequence (a CUDA graph) costs that once for
all its launches. What is recorded reads and writes the same memory every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

WARM_UP = 2
"""Runs before recording: kernels are compiled and libraries set up in the first."""


@final
class Recording:
    """`compute` of fixed inputs: write into those, call `run`, read `output`. Off GPUs, `run` just computes."""

    def __init__(self, compute: Callable[[], Tensor], device: torch.device) -> None:
        self._compute = compute
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            self.output = compute()
            return
        with torch.cuda.device(device):
            apart = torch.cuda.Stream()
            apart.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(apart):
                for _ in range(WARM_UP):
                    compute()
            torch.cuda.current_stream().wait_stream(apart)
            self._graph = torch.cuda.CUDAGraph()
            # Other threads may copy tokens meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self.output = compute()

    def run(self) -> Tensor:
        """The output for what the inputs hold now; on a GPU it is there when the current stream has got there."""
        if self._graph is None:
            self.output = self._compute()
        else:
            self._graph.replay()
        return self.output
