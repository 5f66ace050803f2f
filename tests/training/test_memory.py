"""Out of memory: the stack is halved and the sweep goes on; a cell that fits nowhere is a clear error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.conftest import QUICK, tiny

from rankfall.errors import RequestError
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.engines.local import LocalEngine
from rankfall.training.stack import Stack
from rankfall.training.sweep import sweep
from rankfall.training.work import is_out_of_memory

CELLS = [tiny(seed=seed) for seed in range(4)]
PAIRS = replace(QUICK, max_stack=2)


def device_for(most: int, error: Exception, built: list[int]) -> Any:
    """A device on which a stack of more than `most` models runs out of memory in its second chunk."""

    class Small(Stack):
        def advance(self) -> list[dict[str, Any]]:
            if self.chunks_done == 1 and len(self.cells) > most:
                raise error
            return super().advance()

    def build(cells: Sequence[Cell], device: str, compile: bool, tf32: bool) -> Stack:
        built.append(len(cells))
        return Small(cells, device, compile, tf32)

    return build


def test_the_stack_is_halved_until_it_fits(store: Store, tmp_path: Path) -> None:
    built: list[int] = []
    notes: list[str] = []
    device = device_for(1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), built)
    outcome = sweep(CELLS, store, engine=LocalEngine(PAIRS, device), note=notes.append)
    assert outcome.complete
    assert built == [2, 1, 1, 1, 1], "the second stack is cut before it fails"
    assert notes == ["out of memory with 2 cells in one stack; going on with 1"]
    assert list(store.checkpoints_folder.iterdir()) == []
    plenty = sweep(CELLS, tmp_path / "plenty", options=QUICK)
    for row, expected in zip(outcome.rows, plenty.rows, strict=True):
        assert row["mse_best"] == pytest.approx(expected["mse_best"], rel=1e-4), "float32 over 200 steps"


def test_one_cell_that_does_not_fit_is_a_clear_error(store: Store) -> None:
    build = device_for(0, torch.OutOfMemoryError("CUDA out of memory"), [])
    with pytest.raises(RequestError, match=r"GiB on cpu to train the cell with layers=1, rank=2, .*; got less"):
        sweep([tiny()], store, engine=LocalEngine(QUICK, build))


def test_every_way_of_running_out_is_recognised() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**46)
    assert is_out_of_memory(refused.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_other_errors_are_not_swallowed(store: Store) -> None:
    with pytest.raises(RuntimeError, match="broken kernel"):
        sweep(CELLS, store, engine=LocalEngine(QUICK, device_for(0, RuntimeError("broken kernel"), [])))
