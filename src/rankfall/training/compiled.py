"""How a step runs: as it is, through PyTorch's compiler, and on a GPU as one captured graph.

A captured step costs one launch, whatever the number of kernels; nothing in it looks at a value, so that the
processor only replays it and reads losses once a chunk.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

WARM_UP = 3
"""Steps before capture, in which libraries choose kernels and allocate what they keep."""


class Stepping(Protocol):
    """What a program runs: a step in place, its loss and its optimizer, and a way to undo steps."""

    @property
    def device(self) -> torch.device: ...
    @property
    def loss(self) -> Any: ...
    @property
    def adam(self) -> Any: ...
    @property
    def compiler_options(self) -> dict[str, Any]: ...
    def step_(self, position: Tensor, loss_function: Any, adam: Any) -> None: ...
    def snapshot(self) -> dict[str, Tensor]: ...
    def rewind(self, snapshot: Mapping[str, Tensor]) -> None: ...
    def rounding(self) -> str: ...
    def give_up_kernels(self) -> bool: ...


class Program:
    """Runs steps of a stack."""

    def __init__(self, stack: Stepping, *, compile: bool, tf32: bool) -> None:
        self._stack = stack
        self._tf32 = tf32 and stack.device.type == "cuda"
        self._compile = compile
        self._prepare()
        self._position = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _prepare(self) -> None:
        self._loss: Any = self._stack.loss
        self._adam: Any = self._stack.adam
        if self._compile:
            # All stacks share one code object, and the compiler gives up on a code object after eight versions of it.
            torch.compiler.reset()
            self._loss = torch.compile(self._loss, dynamic=False, options=self._stack.compiler_options or None)
            self._adam = torch.compile(self._adam, dynamic=False)

    @property
    def products(self) -> str:
        """How the factors of float32 matrix products are rounded: not at all, or as the stack says."""
        return self._stack.rounding() if self._tf32 else "full"

    def run(self, steps: int) -> None:
        """Take steps on the batches 0 .. steps-1 of the current window."""
        with matmul_precision(self._tf32):
            if self._stack.device.type == "cuda" and self._graph is None:
                self._graph = self._captured()
            self._position.zero_()
            for _ in range(steps):
                if self._graph is None:
                    self.step()
                else:
                    self._graph.replay()

    def step(self) -> None:
        """One step as it is or compiled, never captured."""
        self._stack.step_(self._position, self._loss, self._adam)

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The step as a graph; where the fused kernels do not work on this machine, the step without them."""
        try:
            return self._capture()
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as problem:
            if not self._stack.give_up_kernels():
                raise
            cause = str(problem).strip().splitlines()[0][:200] if str(problem).strip() else type(problem).__name__
            warnings.warn(f"training without the fused kernels, which failed here: {cause}", stacklevel=2)
            self._prepare()
            return self._capture()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream and capture; then undo what the warm-up trained."""
        before = self._stack.snapshot()
        try:
            side = torch.cuda.Stream(self._stack.device)
            side.wait_stream(torch.cuda.current_stream(self._stack.device))
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self._position.zero_()
                    self.step()
            torch.cuda.current_stream(self._stack.device).wait_stream(side)
            self._position.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
        finally:
            self._stack.rewind(before)
        return graph


def without_mixed_reductions() -> dict[str, Any]:
    """Options of PyTorch's compiler that keep it from joining the two sums of a norm's backward pass in one kernel.

    From 2.10 on it does so on GPUs, and gives the gradient of a gain with leading axes of one a shape without them
    (PyTorch's issue 178080, met with 2.11) and in some graphs wrong values (193061). Versions that do not know the
    option need none.
    """
    from torch._inductor import config

    return {"triton.mix_order_reduction": False} if hasattr(config.triton, "mix_order_reduction") else {}


@contextlib.contextmanager
def matmul_precision(tf32: bool) -> Iterator[None]:
    """Matrix products in TF32 or in full float32 while inside; what was set before holds again afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
