"""Processor threads for a stack: as many as its steps pay for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from rankfall.training.kinds import step_flops
from rankfall.training.plan import Group

FLOPS_PER_THREAD = 2e9
"""Operations of a step below which a thread more does not pay: threads meet after every product, and where another
program has a core each meeting waits for it, by which steps of a few milliseconds take many times as long."""


def fitting_count(group: Group, allowed: int) -> int:
    """Of the allowed threads, those to train a stack with.

    By its size alone, never by a measurement: the number of threads decides on the order of sums, and a stack that
    is gone on with must come to the same bits.
    """
    return max(1, min(allowed, int(sum(map(step_flops, group)) // FLOPS_PER_THREAD)))


@contextlib.contextmanager
def stack_threads(group: Group, device: str, threads: int | None = None) -> Iterator[None]:
    """So many threads inside, or by default as many as fit the stack; on a GPU PyTorch's choice. Afterwards the
    setting is what it was."""
    before = torch.get_num_threads()
    if threads is not None or device == "cpu":
        torch.set_num_threads(threads or fitting_count(group, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
