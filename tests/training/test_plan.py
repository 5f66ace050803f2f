"""Plans: nothing twice, nothing forgotten, nothing that does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.conftest import tiny

from rankfall.errors import RequestError
from rankfall.store.checkpoints import Checkpoints
from rankfall.store.identity import settings as plain
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.kernels import layer
from rankfall.training.parameters import layout
from rankfall.training.plan import (
    group_cells,
    group_flops,
    halves,
    make_plan,
    memory_budget,
    stack_bytes,
    stack_name,
)
from rankfall.training.stack import stack_key

PLENTY = 2**34


@given(
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2, unique=True),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(1, 40),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_every_cell_is_in_exactly_one_stack_that_fits(
    ranks: list[int], multipliers: list[int], seeds: int, max_stack: int, room: int
) -> None:
    cells = [tiny(rank=r, multiplier=m, seed=s) for r in ranks for m in multipliers for s in range(seeds)]
    memory = max(stack_bytes([cell], "cpu") for cell in cells) + room * 1000
    groups = group_cells(cells, memory=memory, max_stack=max_stack)
    assert sorted(map(hash, (cell for group in groups for cell in group))) == sorted(map(hash, cells))
    for group in groups:
        assert len({stack_key(cell) for cell in group}) == 1
        assert len(group) <= max_stack
        assert stack_bytes(group, "cpu") <= memory
    assert group_cells(cells, memory=memory, max_stack=max_stack) == groups


def test_a_cell_too_large_for_memory_is_named(store: Store) -> None:
    cells = [tiny(), tiny(batch=4096, multiplier=64)]
    with pytest.raises(RequestError, match=r"GiB on cpu to train .*multiplier=64, batch=4096; got 0\.0"):
        make_plan(cells, store, memory=2**22)


def test_finished_cells_are_left_out_and_the_order_of_the_rest_is_fixed(store: Store) -> None:
    cells = [tiny(seed=seed) for seed in range(4)]
    store.write(cells[1], summary={"status": "done"}, environment={})
    plan = make_plan(cells, store, memory=PLENTY)
    assert plan.finished == (cells[1],)
    assert plan.stacks == ((cells[0], cells[2], cells[3]),)
    assert plan.flops == pytest.approx(3 * group_flops([cells[0]]))
    assert group_flops(plan.stacks[0], chunks_done=1) == pytest.approx(1.5 * group_flops([cells[0]]))


def test_a_stack_that_was_begun_keeps_its_members(store: Store) -> None:
    cells = [tiny(seed=seed) for seed in range(5)]
    begun = (cells[3], cells[1])
    Checkpoints(store.checkpoints_folder).begin(stack_name(begun), [plain(cell) for cell in begun])
    plan = make_plan(cells[:4], store, memory=PLENTY)
    assert plan.stacks == (begun, (cells[0], cells[2]))


def test_there_is_work_for_every_worker(store: Store) -> None:
    cells = [tiny(seed=seed) for seed in range(5)]
    sizes = [len(group) for group in make_plan(cells, store, memory=PLENTY, at_least=3).stacks]
    assert sorted(sizes) == [1, 2, 2]
    assert len(make_plan(cells, store, memory=PLENTY, at_least=9).stacks) == 5


def test_halves_lose_nothing() -> None:
    group = tuple(tiny(seed=seed) for seed in range(5))
    first, second = halves(group)
    assert first + second == group
    assert abs(len(first) - len(second)) <= 1


def test_bytes_of_a_stack_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Width 4, two heads of rank 2, five hidden units, two layers, batches of 2 sequences of 3 tokens, float32.

    A layer has 140 numbers, places rounded up to fours: 4 maps of 16 with biases of 4, 20 + 8 up, 20 + 4 down, two
    gains; six copies of each. A token keeps 8 (q, k), 8 (v, mixed), 10 (two hidden tensors) and 32 (eight of the
    width) per layer, and 12 of scores and weights where no kernel spares them; half as much again in passing.
    Batches: a hundred steps of 2 * 2 * 3 * 4 numbers per stream, and eight times one stream while drawing.
    """
    cell = tiny(feed_forward=5, batch=2, layers=2)
    batches = 100 * (192 + 8 * 192)
    assert stack_bytes([cell], "cpu") == 4 * (6 * 280 + 3 * 6 * (8 + 8 + 10 + 32 + 12)) + batches
    monkeypatch.setattr("rankfall.training.points.HAS_TRITON", True)
    assert stack_bytes([cell], "cuda") == 4 * (6 * 280 + 3 * 6 * (8 + 8 + 10 + 32)) + batches
    both = [cell, tiny(feed_forward=5, batch=2, layers=2, seed=1)]
    assert stack_bytes(both, "cpu") == 2 * 4 * (6 * 280 + 3 * 6 * 70) + 100 * (2 * 192 + 8 * 192)


def test_hidden_numbers_that_a_kernel_computes_again_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "HAS_TRITON", True)
    narrow, wide = (Cell(rank=8, feed_forward=hidden) for hidden in (64, 2048))
    weights = 4 * 6 * (layout(wide).size - layout(narrow).size)
    assert stack_bytes([wide], "cuda") - stack_bytes([narrow], "cuda") == weights
    hidden = 4 * 3 * 4096 * (2048 - 64)
    assert stack_bytes([wide], "cpu") - stack_bytes([narrow], "cpu") == weights + hidden
    monkeypatch.setattr(layer, "HAS_TRITON", False)
    assert stack_bytes([wide], "cuda") - stack_bytes([narrow], "cuda") == weights + hidden


def test_a_processor_trains_large_cells_one_at_a_time_and_small_ones_together() -> None:
    large = [Cell(rank=8, seed=seed) for seed in range(6)]
    small = [Cell(rank=8, seed=seed, feed_forward=64, batch=8) for seed in range(6)]
    assert [len(group) for group in group_cells(large, memory=2**40)] == [1] * 6
    assert [len(group) for group in group_cells(small, memory=2**40)] == [6]
    assert [len(group) for group in group_cells(large, memory=2**40, device="cuda")] == [6]
    assert [len(group) for group in group_cells(large, memory=2**40, max_stack=3)] == [3, 3]


def test_a_stack_may_take_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a processor's available memory and 85 % of a GPU's free memory, whatever it has in all."""
    monkeypatch.setattr("rankfall.training.plan.available_memory", lambda: 1000)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1000, 9000))
    assert memory_budget("cpu") == 500
    assert memory_budget("cuda:1") == 850
