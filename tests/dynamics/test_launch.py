"""Launches that are kept: which calls go through Triton, and what a direct one is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from rankfall.dynamics.launch import MOST_KEPT, Launch, launch

Call = tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any]]


@dataclass(eq=False)
class Kernel:
    """Notes how it is launched; gives back what was `compiled`, which notes the same, or nothing."""

    gives: bool = True
    refuses: bool = False
    arg_names: tuple[str, ...] = ("source", "target", "n", "d", "EXACT", "WIDTH")
    calls: list[Call] = field(default_factory=list)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def through_triton(*args: Any, **options: Any) -> Compiled | None:
            self.calls.append(("triton", grid, args, options))
            return Compiled(self) if self.gives else None

        return through_triton

    @property
    def ways(self) -> list[str]:
        return [way for way, *_ in self.calls]


@dataclass
class Compiled:
    kernel: Kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def direct(*args: Any) -> None:
            if self.kernel.refuses:
                raise TypeError("function takes exactly 12 arguments")
            self.kernel.calls.append(("direct", grid, args, {}))

        return direct


@dataclass(frozen=True)
class OnAGpu:
    """As much of a tensor as a launch asks for."""

    place: int = 0
    dtype: torch.dtype = torch.float64
    is_cuda: bool = True

    def data_ptr(self) -> int:
        return self.place


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The current device, in a list of one."""
    here = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: here[0])
    return here


def of(kernel: Kernel, grid: tuple[int, ...] = (7, 2)) -> Launch:
    return launch(kernel, grid, 5, 3, WIDTH=16, EXACT=True, num_warps=2)


def test_the_next_call_of_a_kind_is_direct() -> None:
    """With the same arguments in the order of the kernel, and without options, which are compiled in."""
    kernel = Kernel()
    for first in (32, 64):
        of(kernel)(OnAGpu(first), OnAGpu(16))
    numbers = (5, 3, True, 16)
    assert kernel.calls == [
        ("triton", (7, 2), (OnAGpu(32), OnAGpu(16), *numbers), {"num_warps": 2}),
        ("direct", (7, 2, 1), (OnAGpu(64), OnAGpu(16), *numbers), {}),
    ]


@pytest.mark.parametrize("other", [OnAGpu(24), OnAGpu(16, torch.int64)])
@pytest.mark.parametrize("which", [0, 1])
def test_tensors_of_another_kind_ask_triton_again(other: OnAGpu, which: int) -> None:
    """A form compiled for aligned pointers or another type must not be given others."""
    kernel = Kernel()
    tensors = [OnAGpu(16), OnAGpu(16)]
    of(kernel)(*tensors)
    tensors[which] = other
    of(kernel)(*tensors)
    of(kernel)(*tensors)
    of(kernel)(OnAGpu(48), OnAGpu(96))
    assert kernel.ways == ["triton", "triton", "direct", "direct"]


def test_another_device_asks_triton_again(on_device: list[int]) -> None:
    kernel = Kernel()
    for on_device[0] in (0, 1, 0, 1):
        of(kernel)(OnAGpu(), OnAGpu())
    assert kernel.ways == ["triton", "triton", "direct", "direct"]


def test_other_numbers_options_or_grids_are_other_launches() -> None:
    """Numbers of other types too: one is not true."""
    kernel = Kernel()
    found = [
        of(kernel),
        of(kernel, (7,)),
        of(Kernel()),
        launch(kernel, (7, 2), 5, 3, WIDTH=16, EXACT=True, num_warps=4),
        launch(kernel, (7, 2), 5, 3, WIDTH=16, EXACT=1, num_warps=2),
        launch(kernel, (7, 2), 5, 4, WIDTH=16, EXACT=True, num_warps=2),
    ]
    assert len(set(map(id, found))) == len(found)
    assert of(kernel) is found[0]
    for n in range(MOST_KEPT):
        launch(kernel, (1,), n)
    assert of(kernel) is not found[0], "not without end"


def test_where_nothing_comes_back_every_call_goes_through_triton() -> None:
    """As in its interpreter, with tensors that are on no GPU."""
    kernel = Kernel(gives=False)
    for _ in range(3):
        of(kernel)(torch.zeros(1), torch.zeros(1))
    assert kernel.ways == ["triton"] * 3


def test_where_a_direct_launch_is_refused_every_call_goes_through_triton() -> None:
    """Each launched once."""
    kernel = Kernel(refuses=True)
    for place in (0, 0, 8, 8, 0):
        of(kernel)(OnAGpu(place), OnAGpu())
    assert kernel.ways == ["triton"] * 5
    kernel.refuses = False
    of(kernel)(OnAGpu(), OnAGpu())
    assert kernel.ways == ["triton"] * 6
