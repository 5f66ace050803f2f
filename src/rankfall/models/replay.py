"""One forward pass taken apart, attention call by attention call, and its modules run again alone, in float64."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankfall.errors import RequestError, require
from rankfall.models.blocks import is_tokens
from rankfall.models.interface import Eager, Route, routed
from rankfall.models.placement import alone, input_device
from rankfall.models.recorder import Call, Coverage, Ran, recorded

# Under these names modules take the tokens that cross-attention looks at.
CONTEXT_NAMES = ("key_value_states", "encoder_hidden_states")


@final
@dataclass(frozen=True, eq=False)
class Site:
    """One attention call in a traced pass.

    `arguments` are what the module was called with, by parameter name; `tokens_name` is the one that holds the
    tokens of the queries, `context_name` the one that holds those of the keys, in cross-attention. `projection` is
    the first linear map after the call, W_O, which may lie inside the module or, as in BERT, after it.
    """

    call: Call
    arguments: Mapping[str, Any]
    tokens_name: str | None
    context_name: str | None
    before: tuple[Ran, ...]
    projection: Ran | None
    projection_inside: bool
    after: tuple[Ran, ...]

    @property
    def name(self) -> str:
        """The module's qualified name."""
        return self.call.name

    @property
    def index(self) -> int:
        """Attention calls before this one."""
        return self.call.index

    @property
    def tokens(self) -> Tensor:
        """The tokens that the module was given."""
        assert self.tokens_name is not None
        found: Tensor = self.arguments[self.tokens_name]
        return found


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
    before: tuple[Ran, ...]
    after: list[Ran] = field(default_factory=list)
    projection: Ran | None = None

    def site(self) -> Site:
        arguments = bound_arguments(self.call.module, *self.call.given)
        tokens = [name for name, value in arguments.items() if is_tokens(value)]
        context = next((name for name in CONTEXT_NAMES if name in tokens), None)
        return Site(
            call=self.call,
            arguments=arguments,
            tokens_name=next((name for name in tokens if name != context), None),
            context_name=context,
            before=self.before,
            projection=self.projection,
            projection_inside=self.projection is not None and self.call.module in self.projection.within,
            after=tuple(self.after),
        )


class _Tracer:
    """Hands a site over as soon as the next one begins, or the pass ends; nothing is kept of it."""

    def __init__(self, on_site: OnSite) -> None:
        self._since: list[Ran] = []
        self._on_site = on_site
        self.started: list[_Started] = []

    def on_call(self, call: Call) -> None:
        self.finish()
        self.started.append(_Started(call, tuple(self._since)))
        self._since = []

    def finish(self) -> None:
        """What was seen of the last site is all there is."""
        while self.started:
            self._on_site(self.started.pop().site())

    def on_leaf(self, ran: Ran) -> None:
        self._since.append(ran)
        if self.started:
            last = self.started[-1]
            if last.projection is None and ran.kind == "linear":
                last.projection = ran
            else:
                last.after.append(ran)


OnSite = Callable[[Site], None]


def traced(model: nn.Module, inputs: Mapping[str, Any], on_site: OnSite | None = None) -> Trace:
    """Run the model once and keep what surrounds each attention call: memory then grows with depth. `on_site` gets
    the sites instead, one by one as the model runs, and the trace keeps none."""
    kept: list[Site] = []
    tracer = _Tracer(kept.append if on_site is None else on_site)
    with torch.no_grad(), recorded(model, tracer.on_call, on_leaf=tracer.on_leaf) as recorder:
        output = model(**inputs)
    tracer.finish()
    return Trace(tuple(kept), recorder.coverage(), output)


def bound_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positional and keyword arguments by parameter name, so that any of them can be replaced."""
    signature = inspect.signature(module.forward)
    flat: dict[str, Any] = {}
    for name, value in signature.bind_partial(*args, **kwargs).arguments.items():
        flat.update(value if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return flat


NARROWER = frozenset({torch.float32, torch.float16, torch.bfloat16})
NARROWING = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})


class KeepFloat64(TorchFunctionMode):
    """Every cast of a float64 tensor to a narrower type keeps float64; everything else is as it is.

    `.double()` alone is not enough: many softmaxes and norms of the library cast what they are given to float32 and
    back, which leaves a floor near 1e-7 under everything measured.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in (*args, *options.values())):
            if func in NARROWING:
                return args[0]
            args = tuple(_wide(value) for value in args)
            options = {name: _wide(value) for name, value in options.items()}
            if func is Tensor.to and len(args) > 1 and isinstance(args[1], Tensor):
                args = (args[0], args[1].device, *args[2:])
        return func(*args, **options)


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROWER else value


def tensors_changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with its tensors changed, inside tuples, lists and dictionaries too; anything else as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(tensors_changed(item, change) for item in value)
    if isinstance(value, list):
        return [tensors_changed(item, change) for item in value]
    if isinstance(value, dict):
        return {name: tensors_changed(item, change) for name, item in value.items()}
    return value


# Caches of earlier tokens are left out: the replayed tokens are all there is.
CACHE_NAMES = ("past_key_values", "past_key_value", "layer_past", "cache_position")


@final
@dataclass(frozen=True, eq=False)
class Passed:
    """What one replay gave, in its arithmetic: query (b, h, n, r), key and value (b, g, m, r), attention's own output
    (b, n, h, v), and W_O of it (b, n, o), which is None when no linear map followed."""

    query: Tensor
    key: Tensor
    value: Tensor
    attended: Tensor
    projected: Tensor | None


class Replay:
    """A copy of a site's module, and of W_O where that lies outside it, in float64; with `own` in the arithmetic of
    the model. The model itself is not touched."""

    def __init__(self, site: Site, *, own: bool = False) -> None:
        require(
            site.tokens_name is not None,
            required="an attention module that takes its tokens as one (b, n, d) tensor",
            got=f"{site.name} ({type(site.call.module).__name__})",
            remedy="this architecture cannot be replayed module by module",
        )
        self.site = site
        self._own = own
        copied = alone if own else float64_copy
        self.module = copied(site.call.module)
        device = input_device(self.module)

        def brought(tensor: Tensor) -> Tensor:
            return tensor.to(device, torch.float64 if tensor.is_floating_point() and not own else tensor.dtype)

        given = {name: value for name, value in site.arguments.items() if name not in CACHE_NAMES}
        self.arguments = {name: tensors_changed(value, brought) for name, value in given.items()}
        self._inside: nn.Module | None = None
        self._outside: nn.Module | None = None
        if site.projection is not None:
            if site.projection_inside:
                path = site.projection.name.removeprefix(f"{site.name}.") if site.name else site.projection.name
                self._inside = self.module.get_submodule(path)
            else:
                self._outside = copied(site.projection.module)

    @property
    def projection(self) -> nn.Module | None:
        """W_O, as it is replayed."""
        return self._inside or self._outside

    def run(
        self, tokens: Tensor, context: Tensor | None = None, route: Route | None = None, **changes: Any
    ) -> Passed:
        """The module on these tokens (b, n, d). `route` may change the attention call, `changes` other arguments."""
        seen: dict[str, Any] = {}

        def through(eager: Eager, module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            seen["query"], seen["key"], seen["value"] = tensors[:3]
            result = (
                eager(module, *tensors, **options) if route is None else route(eager, module, *tensors, **options)
            )
            seen["attended"] = result[0]
            return result

        arguments = {**self.arguments, **changes, self.site.tokens_name: tokens}
        if self.site.context_name is not None:
            given = self.arguments[self.site.context_name] if context is None else context
            arguments[self.site.context_name] = given.expand(tokens.shape[0], -1, -1)
        kept = contextlib.nullcontext() if self._own else KeepFloat64()
        with torch.no_grad(), kept, routed(self.module, through), self._watched(seen):
            result = self.module(**arguments)
            if self._outside is not None:
                seen["projected"] = self._outside(result[0] if isinstance(result, tuple) else result)
        if "query" not in seen:
            raise RequestError(
                required="an attention call when the module runs alone",
                got=f"none from {self.site.name}",
                remedy="this architecture cannot be replayed module by module",
            )
        return Passed(seen["query"], seen["key"], seen["value"], seen["attended"], seen.get("projected"))

    @contextlib.contextmanager
    def _watched(self, seen: dict[str, Any]) -> Iterator[None]:
        with contextlib.ExitStack() as hooks:
            if self._inside is not None:
                handle = self._inside.register_forward_hook(lambda module, args, out: seen.update(projected=out))
                hooks.callback(handle.remove)
            yield


def float64_copy(module: nn.Module) -> nn.Module:
    """The module in float64, for running alone; the model itself is not touched."""
    return alone(module, torch.float64)
