"""One of two processes that train together under a monitor; what each saw is written down for the tests.

python monitor_ranks.py RANK PORT FILE
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from rankfall.models.monitor.alarms import Alarms, RankWarning
from rankfall.models.monitor.monitor import RankMonitor

QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=1e9)


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)))


def batch(rank: int, number: int, tokens: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + number)
    return torch.randn(2, tokens, 8, generator=generator)


def train(model: nn.Module, rank: int, steps: int, *, passes: int = 1, short: int | None = None) -> list[float]:
    """Steps of `passes` batches each, other ones on each rank; in step `short` rank 1 has one token."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for index in range(passes):
            last = index == passes - 1
            waiting = model.no_sync() if hasattr(model, "no_sync") and not last else contextlib.nullcontext()
            with waiting:
                tokens = 1 if step == short and rank == 1 else 12
                loss = model(batch(rank, step * passes + index, tokens)).square().mean()
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def together(model: nn.Module, rank: int, watched: nn.Module | None = None, **training: Any) -> dict[str, Any]:
    """With the monitor that joins all processes, and inside it one of this process alone."""
    watched = model if watched is None else watched
    joint: list[Any] = []
    own: list[Any] = []
    with (
        RankMonitor(watched, joint, every=2, alarms=QUIET),
        RankMonitor(watched, own, every=2, alarms=QUIET, reduce=False),
    ):
        losses = train(model, rank, 5, **training)
    return {"joint": joint, "own": own, "losses": losses}


def replicated(rank: int) -> dict[str, Any]:
    return together(DistributedDataParallel(stack()), rank, passes=2)


def a_short_batch(rank: int) -> dict[str, Any]:
    model = stack()
    return together(DistributedDataParallel(model), rank, watched=model, short=2)


def replicated_and_compiled(rank: int) -> dict[str, Any]:
    return together(torch.compile(DistributedDataParallel(stack()), backend="eager"), rank)


def unwatched(rank: int) -> dict[str, Any]:
    return {"losses": train(DistributedDataParallel(stack()), rank, 5, short=2)}


def on_one_rank(rank: int, which: int) -> dict[str, Any]:
    model = DistributedDataParallel(stack())
    logged: list[Any] = []
    # A prefix of its own: monitors of one prefix meet by their order, which is another on each rank here.
    watching = RankMonitor(model, logged, every=1, alarms=QUIET, prefix=f"rank{which}") if rank == which else None
    with watching or contextlib.nullcontext():
        train(model, rank, 4)
    return {"joint": logged}


def sharded(rank: int) -> dict[str, Any]:
    return together(shard(stack()), rank)


def sharded_and_compiled(rank: int) -> dict[str, Any]:
    model = shard(stack())
    for block in model:
        block.compile(backend="eager")
    return together(model, rank)


def sharded_and_compiled_as_a_whole(rank: int) -> dict[str, Any]:
    return together(torch.compile(shard(stack()), backend="eager"), rank)


def shard(model: nn.Sequential) -> nn.Sequential:
    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


SCENES: dict[str, Callable[[int], dict[str, Any]]] = {
    "replicated": replicated,
    "replicated and compiled": replicated_and_compiled,
    "a short batch": a_short_batch,
    "unwatched": unwatched,
    "on rank 0": lambda rank: on_one_rank(rank, 0),
    "on rank 1": lambda rank: on_one_rank(rank, 1),
    "sharded": sharded,
    "sharded and compiled": sharded_and_compiled,
    "sharded and compiled as a whole": sharded_and_compiled_as_a_whole,
}


def main(rank: int, port: int, file: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    seen = {}
    for name, scene in SCENES.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen[name] = scene(rank)
        seen[name]["warnings"] = [str(one.message) for one in caught if one.category is RankWarning]
        dist.barrier()
    file.write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
