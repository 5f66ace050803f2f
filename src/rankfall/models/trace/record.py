"""Trace one forward pass: every attention call, its module's arguments, and the linear maps and norms around it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.models.interface.call import Call
from rankfall.models.interface.coverage import Coverage
from rankfall.models.interface.recording import recorded
from rankfall.models.trace.modules import is_linear, is_norm
from rankfall.models.trace.site import Ran, Site

# Under these names modules take the tokens that cross-attention looks at.
CONTEXT_NAMES = ("key_value_states", "encoder_hidden_states")


@final
@dataclass(frozen=True, eq=False)
class Trace:
    """The sites of one pass in the order of their calls, what was seen of the model, and its output."""

    sites: tuple[Site, ...]
    coverage: Coverage
    output: Any


@dataclass
class _Started:
    """A call whose surroundings are still being seen."""

    call: Call
    arguments: Mapping[str, Any]
    before: tuple[Ran, ...]
    after: list[Ran] = field(default_factory=list)
    projection: Ran | None = None
    projection_inside: bool = False


class _Tracer:
    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._arguments: dict[int, Mapping[str, Any]] = {}
        self._running: list[nn.Module] = []
        self._since: list[Ran] = []
        self.started: list[_Started] = []

    def hooks(self, model: nn.Module, attention: list[nn.Module]) -> Iterator[Any]:
        for module in attention:
            yield module.register_forward_pre_hook(self._enter, with_kwargs=True)
            yield module.register_forward_hook(self._leave, always_call=True)
        for module in model.modules():
            if is_linear(module) or is_norm(module):
                yield module.register_forward_hook(self._ran, with_kwargs=True)

    def on_call(self, call: Call) -> None:
        arguments = self._arguments.get(id(call.module), {})
        self.started.append(_Started(call, arguments, tuple(self._since)))
        self._since = []

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments[id(module)] = bound_arguments(module, args, kwargs)
        self._running.append(module)

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._running and self._running[-1] is module:
            self._running.pop()

    def _ran(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(given, Tensor) or not isinstance(output, Tensor):
            return
        ran = Ran("linear" if is_linear(module) else "norm", self._names[id(module)], module, given, output)
        self._since.append(ran)
        if self.started:
            last = self.started[-1]
            if last.projection is None and ran.kind == "linear":
                last.projection = ran
                last.projection_inside = any(one is last.call.module for one in self._running)
            else:
                last.after.append(ran)


def traced(model: nn.Module, inputs: Mapping[str, Any]) -> Trace:
    """Run the model once and keep what surrounds each attention call. Memory grows with depth: use short inputs."""
    tracer = _Tracer(model)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        recording = stack.enter_context(recorded(model, tracer.on_call))
        for handle in tracer.hooks(model, list(recording.modules.values())):
            stack.callback(handle.remove)
        output = model(**inputs)
    return Trace(tuple(_site(one) for one in tracer.started), recording.coverage(), output)


def bound_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positional and keyword arguments by parameter name, so that any of them can be replaced."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    flat: dict[str, Any] = {}
    for name, value in bound.items():
        parameter = inspect.signature(module.forward).parameters[name]
        flat.update(value if parameter.kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return flat


def _site(started: _Started) -> Site:
    tokens = [name for name, value in started.arguments.items() if _is_token_tensor(value)]
    context = next((name for name in CONTEXT_NAMES if name in tokens), None)
    asking = next((name for name in tokens if name != context), None)
    return Site(
        call=started.call,
        arguments=started.arguments,
        tokens_name=asking,
        context_name=context,
        before=started.before,
        projection=started.projection,
        projection_inside=started.projection_inside,
        after=tuple(started.after),
    )


def _is_token_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()
