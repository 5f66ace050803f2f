"""The Ray engine: the same plan as Ray tasks, on a laptop, a node of GPUs or a cluster, over one shared store.

Cells travel as JSON and results through the store. Ray starts a killed worker's task again; it works under the same
name, so that it takes over its own claims and goes on from the stack's checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rankfall.errors import RequestError
from rankfall.store.checkpoints import Checkpoints
from rankfall.store.claims import Claims
from rankfall.store.files import storage_errors
from rankfall.store.identity import identity, settings
from rankfall.store.store import Store
from rankfall.training.engines.base import Engine
from rankfall.training.engines.jobs import BUSY, Job, JobWatch
from rankfall.training.kinds import cell_from
from rankfall.training.options import Options
from rankfall.training.plan import Group, Plan, halves, memory_budget, stack_name, tidy
from rankfall.training.work import Ending, Watch, work_on

RETRIES = 10
"""Times that Ray starts the task of a killed worker again."""

JOB_RETRIES = 2
"""The same for jobs, which have no checkpoint to go on from: one that needs too much memory needs it each time."""

POLL = 0.5
"""Seconds between two looks at the tasks."""

PATIENCE = 120.0
"""Seconds that workers get to finish their chunk and save after Ctrl-C."""


class RayEngine(Engine):
    """Trains on a Ray cluster: the one at `options.address`, or one started here for the purpose."""

    name: ClassVar[str] = "ray"
    requires: ClassVar[str | None] = "ray"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._ray, self._started = _connected(options.address)
        self._resources: dict[str, float] = self._ray.cluster_resources()

    def device(self) -> str:
        if self.options.device != "auto":
            return self.options.device.partition(":")[0]
        return "cuda" if self._resources.get("GPU", 0) >= 1 else "cpu"

    def workers(self) -> int:
        if self.device() == "cuda":
            return max(1, int(self._resources.get("GPU", 0)))
        return max(1, int(self._resources.get("CPU", 1) // self._threads()))

    def memory(self) -> int:
        """What a worker finds free, shared among the workers of a machine where memory is the processor's."""
        if self.options.memory is not None:
            return self.options.memory
        probe = self._ray.remote(memory_budget).options(**self._demand())
        budget: int = self._ray.get(probe.remote(self.device()))
        return budget if self.device() == "cuda" else budget // self.workers()

    def run(self, plan: Plan, store: Store, watch: Watch) -> bool:
        sweep = secrets.token_hex(4)
        stop_file = store.claims_folder / f".stop-{sweep}"
        with storage_errors(stop_file):
            stop_file.parent.mkdir(exist_ok=True)
        shared = str(store.path.resolve())
        options = dataclasses.replace(self.options, device=self.device(), threads=self._threads())
        task = self._ray.remote(train_task).options(max_retries=RETRIES, **self._demand())

        def submit(group: Group) -> Any:
            token = f"ray-{sweep}-{stack_name(group)}"
            order = {"cells": [settings(cell) for cell in group], "options": dataclasses.asdict(options)}
            return task.remote(shared, json.dumps(order), token, str(stop_file))

        looking = Claims(store.claims_folder, note=watch.note)
        pending = {submit(group): group for group in plan.stacks}
        later: list[tuple[float, Group]] = []
        try:
            while pending or later:
                if watch.stop():
                    # running tasks save and end; those that wait for a worker start only to find this file
                    stop_file.touch()
                    self._ray.wait(list(pending), num_returns=len(pending), timeout=PATIENCE)
                    return False
                due = [group for at, group in later if at <= time.monotonic()]
                later = [(at, group) for at, group in later if at > time.monotonic()]
                pending |= {submit(group): group for group in due}
                if not pending:
                    time.sleep(POLL)
                    continue
                ended, _ = self._ray.wait(list(pending), timeout=POLL)
                for reference in ended:
                    group = pending.pop(reference)
                    ending = _result(self._ray, reference, watch)
                    if ending is Ending.BUSY:
                        looking.tell_holders(map(identity, group))
                        later.append((time.monotonic() + POLL, group))
                    if ending is Ending.FINISHED:
                        watch.chunk(group, group[0].chunks, [])
                    if ending is Ending.OUT_OF_MEMORY:
                        watch.note(f"out of memory with {len(group)} cells in one stack; halving it")
                        pending |= {submit(half): half for half in halves(group)}
                _look(store, list(pending.values()), watch)
        except KeyboardInterrupt:
            for reference in pending:
                self._ray.cancel(reference, force=True)
            raise
        finally:
            stop_file.unlink(missing_ok=True)
        with Claims(store.claims_folder, note=watch.note) as claims:
            tidy(store, claims)
        return True

    def work_through(self, jobs: Sequence[Job], watch: JobWatch) -> bool:
        task = self._ray.remote(job_task).options(max_retries=JOB_RETRIES, **self._demand())
        pending = {task.remote(job.name, job.place, job.order): job for job in jobs}
        later: list[tuple[float, Job]] = []
        try:
            while pending or later:
                if watch.stop():
                    return False
                due = [job for at, job in later if at <= time.monotonic()]
                later = [(at, job) for at, job in later if job not in due]
                pending |= {task.remote(job.name, job.place, job.order): job for job in due}
                if not pending:
                    time.sleep(POLL)
                    continue
                ended, _ = self._ray.wait(list(pending), timeout=POLL)
                for reference in ended:
                    job, answer = pending.pop(reference), self._answer(reference)
                    if answer["ending"] == BUSY:
                        watch.busy(job, answer)
                        later.append((time.monotonic() + POLL, job))
                    else:
                        watch.done(job, answer)
        finally:
            # a job leaves nothing half done, so that those at hand need not be waited for
            for reference in pending:
                self._ray.cancel(reference, force=True)
        return True

    def _answer(self, reference: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self._ray.get(reference))
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            died = f"its worker died {JOB_RETRIES + 1} times: {' '.join(str(error).split())[:200]}"
            return {"ending": "failed", "reason": died}
        return answer

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()

    def _threads(self) -> int:
        return self.options.threads or 1

    def _demand(self) -> dict[str, float]:
        return {"num_cpus": self._threads(), "num_gpus": 1 if self.device() == "cuda" else 0}


def train_task(store_path: str, order: str, token: str, stop_file: str) -> str:
    """What a worker does: claim the stack under the given name, train it, and say in JSON how it ended."""
    content = json.loads(order)
    try:
        group = tuple(cell_from(cell) for cell in content["cells"])
        options = Options(**content["options"])
        store = Store(store_path, create=False)
        notes: list[str] = []
        watch = Watch(stop=Path(stop_file).exists, note=notes.append)
        ending = Ending.STOPPED
        if not watch.stop():
            folder, take_over = store.claims_folder, options.take_over
            with Claims(folder, token=token, take_over=take_over, note=notes.append) as claims:
                ending = work_on(group, store, claims, options, watch)
        return json.dumps({"ending": ending} | ({"notes": notes} if notes else {}))
    except RequestError as error:
        return json.dumps({"required": error.required, "got": str(error.got), "remedy": error.remedy})


def job_task(name: str, place: str, order: str) -> str:
    """What a worker does with a job."""
    return Job(name, place, order).run()


def _look(store: Store, groups: list[Group], watch: Watch) -> None:
    """Progress of tasks, as far as their checkpoints tell."""
    checkpoints = Checkpoints(store.checkpoints_folder)
    for group in groups:
        found = checkpoints.find(stack_name(group))
        if found is not None:
            watch.chunk(group, found.chunk, [])


def _result(ray: Any, reference: Any, watch: Watch) -> Ending:
    try:
        answer = json.loads(ray.get(reference))
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise RequestError(
            required=f"a worker that survives a stack (Ray tried {RETRIES + 1} times)",
            got=" ".join(str(error).split())[:300],
            remedy="look at the workers' logs; run the same command again to go on from the last checkpoint",
        ) from None
    if "ending" not in answer:
        raise RequestError(**answer)
    for note in answer.get("notes", ()):
        watch.note(note)
    return Ending(answer["ending"])


def _connected(address: str | None) -> tuple[Any, bool]:
    """Ray, connected, and whether that was our doing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise RequestError(
            required="Ray for --engine ray",
            got="no such package",
            remedy="pip install 'rankfall[cluster]', or use --engine local",
        ) from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None and "RAY_ADDRESS" not in os.environ:
            ray.init(include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RequestError(
            required=f"a Ray cluster at {address or os.environ.get('RAY_ADDRESS') or 'this machine'}",
            got=" ".join(str(error).split())[:200],
            remedy="`ray start --head` starts one and prints its address",
        ) from None
    return ray, True
