"""Record every attention call of a model while it runs, streamed to a callback; nothing is kept."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from rankfall.models.interface.bypass import BypassWatch
from rankfall.models.interface.call import Call
from rankfall.models.interface.coverage import Coverage, Missed
from rankfall.models.interface.modules import attention_modules, speaks_interface
from rankfall.models.interface.route import Eager, routed

OnCall = Callable[[Call], None]


class Recording:
    """Counts runs and calls while the model runs; `coverage()` compares them."""

    def __init__(self, model: nn.Module, on_call: OnCall) -> None:
        self.modules = attention_modules(model)
        self._on_call = on_call
        self._names = {id(module): name for name, module in self.modules.items()}
        self._all_names = {id(module): name for name, module in model.named_modules()}
        self._running: list[nn.Module] = []
        self._runs: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()

    @property
    def bypassing(self) -> bool:
        """Whether some attention module does not speak to the interface."""
        return any(not speaks_interface(module) for module in self.modules.values())

    def coverage(self) -> Coverage:
        """What was seen so far of what ran so far."""
        missed = tuple(
            Missed(name, type(self.modules[name]).__name__, runs, self._calls[name])
            for name, runs in self._runs.items()
            if self._calls[name] < runs
        )
        not_run = tuple(name for name in self.modules if name not in self._runs)
        return Coverage(len(self.modules), len(self._runs), dict(self._sources), missed, not_run)

    def route(
        self, eager: Eager, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Run the module's own eager attention and report it."""
        output, weights = eager(module, query, key, value, mask, **options)
        scaling = options.get("scaling")
        self._report(
            self._owner(module),
            source="interface",
            query=query,
            key=key,
            value=value,
            mask=mask,
            # Eager functions that are given no scaling use 1/sqrt(r).
            scaling=float(query.shape[-1]) ** -0.5 if scaling is None else scaling,
            weights=weights,
            output=output,
            options=options,
        )
        return output, weights

    def watching(self) -> bool:
        """Whether the module now running must be watched from outside."""
        return bool(self._running) and not speaks_interface(self._running[-1])

    def seen(self, **parts: Any) -> None:
        """A bypassing module's attention, as far as it was seen."""
        self._report(self._running[-1], **parts)

    def hooks(self) -> Iterator[Any]:
        """Count the runs of every attention module, and know which one is running."""
        for module in self.modules.values():
            yield module.register_forward_pre_hook(self._enter)
            yield module.register_forward_hook(self._leave, always_call=True)

    def _owner(self, module: nn.Module) -> nn.Module:
        if id(module) in self._names or not self._running:
            return module
        return self._running[-1]

    def _report(self, module: nn.Module, *, source: Any, **parts: Any) -> None:
        name = self._all_names.get(id(module), "?")
        index = sum(self._sources.values())
        self._calls[name] += 1
        self._sources[source] += 1
        self._on_call(Call(index=index, name=name, module=module, source=source, **parts))

    def _enter(self, module: nn.Module, *_: Any) -> None:
        self._runs[self._names[id(module)]] += 1
        self._running.append(module)

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._running and self._running[-1] is module:
            self._running.pop()


@contextlib.contextmanager
def recorded(model: nn.Module, on_call: OnCall) -> Iterator[Recording]:
    """Run the model inside this context and `on_call` gets each attention call as it happens.

    The model computes exactly what it computes with eager attention, bit for bit. On the way out the model and the
    library are as they were. Afterwards `coverage()` of what this yields says whether anything was missed.
    """
    recording = Recording(model, on_call)
    with contextlib.ExitStack() as stack:
        for handle in recording.hooks():
            stack.callback(handle.remove)
        stack.enter_context(routed(model, recording.route))
        if recording.bypassing:
            stack.enter_context(BypassWatch(recording.watching, recording.seen))
        yield recording
