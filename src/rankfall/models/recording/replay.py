"""One forward pass taken apart, attention call by attention call, and its modules run again alone, in float64."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.recording.blocks import is_tokens
from rankfall.models.recording.events import Call, Coverage, Ran
from rankfall.models.recording.interface import Eager, Route, routed
from rankfall.models.recording.placement import alone, input_device
from rankfall.models.recording.recorder import CONTEXT_NAMES, recorded
from rankfall.models.recording.torch_calls import KeepFloat64


@final
@dataclass(frozen=True, eq=False)
class Site:
    """One attention call in a traced pass.

    `arguments` are what the module was called with, by parameter name; `tokens_name` is the one that holds the
    tokens of the queries, `context_name` the one that holds those of the keys, in cross-attention; `copies` are those
    that held the same tensor as another. `projection` is the first linear map after the call, W_O, which may lie
    inside the module or, as in BERT, after it. Where the module is a whole block, `entry` is the norm inside it that
    gives attention its tokens. `sequence_first`: the module takes (n, b, d); all else here is (b, n, d).
    """

    call: Call
    arguments: Mapping[str, Any]
    tokens_name: str | None
    context_name: str | None
    before: tuple[Ran, ...]
    projection: Ran | None
    projection_inside: bool
    after: tuple[Ran, ...]
    copies: Mapping[str, str] = field(default_factory=dict)
    entry: Ran | None = None
    sequence_first: bool = False

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
        """The tokens that attention was given."""
        assert self.tokens_name is not None
        if self.entry is not None:
            return self.entry.output
        return self.upright(self.arguments[self.tokens_name])

    def upright(self, tokens: Tensor) -> Tensor:
        """Tokens as the module takes them in the form (b, n, d), and back."""
        return tokens.transpose(0, 1) if self.sequence_first else tokens

    @property
    def norms_queries_and_keys(self) -> bool:
        """Whether something normalises inside the module on the way to queries and keys."""
        inside = (one for one in self.before if one.kind == "norm" and self.call.module in one.within)
        return any(self.entry is None or one.module is not self.entry.module for one in inside)


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
        context = next((name for name in CONTEXT_NAMES if name in tokens), None) or self._context(arguments, tokens)
        main = next((name for name in tokens if name != context), None)
        turned = isinstance(self.call.module, nn.MultiheadAttention) and not self.call.module.batch_first
        before, after, projection = self.before, tuple(self.after), self.projection
        if turned and main is not None:
            shape = arguments[main].shape
            before, after = (tuple(_turned(ran, shape) for ran in some) for some in (before, after))
            projection = None if projection is None else _turned(projection, shape)
        copies = {
            name: like
            for like in (context, main)
            if like is not None
            for name in tokens
            if name not in (main, context) and _same(arguments[name], arguments[like])
        }
        return Site(
            call=self.call,
            arguments=arguments,
            tokens_name=main,
            context_name=context,
            before=before,
            projection=projection,
            projection_inside=projection is not None and self.call.module in projection.within,
            after=after,
            copies=copies,
            entry=None if main is None else self._entry(arguments[main]),
            sequence_first=turned,
        )

    def _context(self, arguments: Mapping[str, Any], tokens: Sequence[str]) -> str | None:
        """Of torch's multi-head attention the keys, where they are other tokens; of other modules what went into a
        linear map besides the first tokens and is as long as the keys."""
        if self.call.elsewhere and "key" in tokens:
            return "key"
        if self.call.source != "sdpa" or self.call.key is None:
            return None
        fed = [ran.input for ran in self.before if ran.kind != "other" and self.call.module in ran.within]
        for name in tokens[1:]:
            value = arguments[name]
            if value.shape[1] == self.call.key.shape[-2] and any(one is value for one in fed):
                return name
        return None

    def _entry(self, tokens: Tensor) -> Ran | None:
        """The norm inside the module that took its tokens, if no linear map there took them as they were."""
        inside = [ran for ran in self.before if self.call.module in ran.within and ran.input is tokens]
        if any(ran.kind == "linear" for ran in inside):
            return None
        return next((ran for ran in inside if ran.kind == "norm"), None)


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def _turned(ran: Ran, shape: torch.Size) -> Ran:
    """With (n, b, d) turned round; what already is (b, n, d) stays."""

    def upright(tensor: Tensor) -> Tensor:
        return tensor.transpose(0, 1) if tensor.ndim == 3 and tensor.shape[:2] == shape[:2] else tensor

    return replace(ran, input=upright(ran.input), output=upright(ran.output))


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
        # A model may add to what a linear map gave in place.
        ran = replace(ran, output=ran.output.clone()) if ran.kind == "linear" else ran
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
        self.arguments = self.brought(site)
        self._inside: nn.Module | None = None
        self._outside: nn.Module | None = None
        if site.projection is not None:
            if site.projection_inside:
                path = site.projection.name.removeprefix(f"{site.name}.") if site.name else site.projection.name
                self._inside = self.module.get_submodule(path)
            else:
                self._outside = copied(site.projection.module)

    def brought(self, site: Site) -> dict[str, Any]:
        """What the module was called with at a site of its own, where it is replayed and in that arithmetic."""
        device = input_device(self.module)

        def moved(tensor: Tensor) -> Tensor:
            wide = tensor.is_floating_point() and not self._own
            return tensor.to(device, torch.float64 if wide else tensor.dtype)

        given = {name: value for name, value in site.arguments.items() if name not in CACHE_NAMES}
        return {name: tensors_changed(value, moved) for name, value in given.items()}

    @property
    def projection(self) -> nn.Module | None:
        """W_O, as it is replayed."""
        return self._inside or self._outside

    @property
    def context(self) -> Tensor:
        """The tokens (b, m, d) that cross-attention looks at."""
        assert self.site.context_name is not None
        return self.site.upright(self.arguments[self.site.context_name])

    def run(
        self, tokens: Tensor, context: Tensor | None = None, route: Route | None = None, **changes: Any
    ) -> Passed:
        """The module on these tokens (b, n, d). `route` may change the attention call, `changes` other arguments."""
        seen = self._run(tokens, context, route, changes)
        if "query" not in seen:
            raise self._unreached()
        return Passed(seen["query"], seen["key"], seen["value"], seen["attended"], seen.get("projected"))

    def branch(self, tokens: Tensor, route: Route | None, *, must_reach: bool) -> Tensor:
        """W_O of attention on these tokens (b, n, d). A module that bypasses the interface runs as it is, unless
        `must_reach` says that what `route` changes must come about."""
        seen = self._run(tokens, None, route, {})
        if ("query" not in seen and must_reach) or "projected" not in seen:
            raise self._unreached()
        projected: Tensor = seen["projected"]
        return projected

    def _unreached(self) -> RequestError:
        return RequestError(
            required="an attention call when the module runs alone",
            got=f"none from {self.site.name}",
            remedy="this architecture cannot be replayed module by module",
        )

    def _run(
        self, tokens: Tensor, context: Tensor | None, route: Route | None, changes: Mapping[str, Any]
    ) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def through(eager: Eager, module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            seen["query"], seen["key"], seen["value"] = tensors[:3]
            result = (
                eager(module, *tensors, **options) if route is None else route(eager, module, *tensors, **options)
            )
            seen["attended"] = result[0]
            return result

        site = self.site
        arguments: dict[str, Any] = {**self.arguments, **changes}
        assert site.tokens_name is not None
        if site.entry is None:
            arguments[site.tokens_name] = site.upright(tokens)
        else:
            arguments[site.tokens_name] = self.arguments[site.tokens_name].expand(tokens.shape[0], -1, -1)
        if site.context_name is not None:
            given = self.context if context is None else context
            arguments[site.context_name] = site.upright(given.expand(tokens.shape[0], -1, -1))
        arguments |= {name: arguments[like] for name, like in site.copies.items()}
        kept = contextlib.nullcontext() if self._own else KeepFloat64()
        with torch.no_grad(), kept, routed(self.module, through), self._watched(seen, tokens):
            result = self.module(**arguments)
            if self._outside is not None:
                seen["projected"] = site.upright(self._outside(result[0] if isinstance(result, tuple) else result))
        return seen

    @contextlib.contextmanager
    def _watched(self, seen: dict[str, Any], tokens: Tensor) -> Iterator[None]:
        upright = self.site.upright
        with contextlib.ExitStack() as hooks:
            if self._inside is not None:
                handle = self._inside.register_forward_hook(
                    lambda module, args, out: seen.update(projected=upright(out))
                )
                hooks.callback(handle.remove)
            if self.site.entry is not None:
                # The block's own norm is passed by: attention gets these tokens.
                inner = self.site.entry.name.removeprefix(f"{self.site.name}.")
                handle = self.module.get_submodule(inner).register_forward_hook(lambda module, args, out: tokens)
                hooks.callback(handle.remove)
            yield


def float64_copy(module: nn.Module) -> nn.Module:
    """The module in float64, for running alone; the model itself is not touched."""
    return alone(module, torch.float64)
