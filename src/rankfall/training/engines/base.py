"""What an engine is: something that works through a plan, or through jobs, until all of it is in the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from rankfall.store.store import Store
from rankfall.training.engines.jobs import Job, JobWatch, one_after_another
from rankfall.training.options import Options
from rankfall.training.plan import Plan
from rankfall.training.work import Watch


class Engine(ABC):
    """Subclasses are final. Results reach the caller through the store, and through nothing else."""

    name: ClassVar[str]
    requires: ClassVar[str | None] = None
    """An optional package without which the engine refuses to start."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def memory(self) -> int:
        """Bytes that one stack may take where it will be trained."""

    @abstractmethod
    def device(self) -> str:
        """`cpu` or `cuda`: where stacks will be trained."""

    @abstractmethod
    def workers(self) -> int:
        """Stacks that train at the same time."""

    @abstractmethod
    def run(self, plan: Plan, store: Store, watch: Watch) -> bool:
        """Train every stack of the plan; False when `watch.stop` ended it early, with everything saved."""

    def work_through(self, jobs: Sequence[Job], watch: JobWatch) -> bool:
        """Do jobs that are no training; False when `watch.stop` ended it early. One after another by default."""
        return one_after_another(jobs, watch)

    def close(self) -> None:
        """Let go of what the engine started; nothing by default."""
        return
