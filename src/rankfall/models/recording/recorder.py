"""One recorded run of a model, handed to subscribers as it happens; the recorder itself keeps nothing.

Four kinds of events: a block is entered, a block is left (with the tokens), an attention call (queries, keys, values,
mask, scaling, weights, output), a module ran (linear maps and norms, or all). Depth, masks, heads and ablation
subscribe to those that they need; recordings can be nested, and then share a pass. On the way out the model and the
library are as they were.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from rankfall.models.recording.blocks import first_tokens, is_linear, is_norm, stream_of
from rankfall.models.recording.events import Call, Coverage, Kind, Missed, Ran
from rankfall.models.recording.interface import ALONE, Eager, at_interface, attention_modules, uses_interface
from rankfall.models.recording.torch_attention import BypassWatch, WatchedSource, as_written

# Under these names modules take the tokens that cross-attention looks at.
CONTEXT_NAMES = ("key_value_states", "encoder_hidden_states")

OnCall = Callable[[Call], None]
OnRan = Callable[[Ran], None]
OnBlock = Callable[[nn.Module, Tensor | None], None]
"""Called with a block and its stream, as `blocks.stream_of` finds it; None where it takes or gives something else."""


@contextlib.contextmanager
def recorded(
    model: nn.Module,
    on_call: OnCall | None = None,
    *,
    own: bool = False,
    blocks: Sequence[nn.Module] = (),
    on_enter: OnBlock | None = None,
    on_leave: OnBlock | None = None,
    on_leaf: OnRan | None = None,
    on_module: OnRan | None = None,
) -> Iterator[Recorder]:
    """Run the model inside this context and the functions given get their events as they happen.

    `on_call`: attention calls. The model then computes what it computes with eager attention, bit for bit; with
    `own`, what it computes without us, where attention is torch's fused one (weights are not seen there).
    `on_enter`, `on_leave`: tokens before and after each of `blocks`. `on_leaf`: linear maps and norms of the model
    that ran; `on_module`: every module inside `blocks` that took and gave tokens.
    Afterwards `coverage()` of what this yields says whether any attention was missed.
    """
    inside = on_call is not None or on_leaf is not None or on_module is not None
    # Looking for attention takes longer than running some models: only where something inside the blocks is wanted.
    recorder = Recorder(model, attention_modules(model) if inside else {}, on_call, own)
    listed = tuple(dict.fromkeys(blocks))
    with contextlib.ExitStack() as stack:
        if inside:
            stack.enter_context(ALONE)
            stack.enter_context(as_written())
        for handle in itertools.chain(
            (block.register_forward_pre_hook(_entering(on_enter), with_kwargs=True) for block in listed if on_enter),
            recorder.hooks(),
            recorder.leaf_hooks(on_leaf) if on_leaf is not None else (),
            recorder.module_hooks(listed, on_module) if on_module is not None else (),
            # Last, so that a block is left after everything inside it was told.
            (block.register_forward_hook(_leaving(on_leave)) for block in listed if on_leave),
        ):
            stack.callback(handle.remove)
        if on_call is not None:
            stack.enter_context(at_interface(model, recorder.route, own=own))
            if recorder.bypassing:
                stack.enter_context(BypassWatch(recorder.seen, recorder.watching, recorder.running))
        yield recorder


class Recorder:
    """Knows which attention modules run, counts their runs and calls, and hands events over."""

    def __init__(self, model: nn.Module, modules: dict[str, nn.Module], on_call: OnCall | None, own: bool) -> None:
        self.modules = modules
        self._model = model
        self._on_call = on_call
        self._own = own
        self._names = {id(module): name for name, module in self.modules.items()}
        self._all_names = {id(module): name for name, module in model.named_modules()}
        # Of models that bypass the interface any module may hold attention.
        self._watched = list(model.modules()) if self.bypassing else list(modules.values())
        self._running: list[tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]] = []
        self._runs: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._passes = 0

    @property
    def bypassing(self) -> bool:
        """Whether some attention module bypasses the interface, or none is known."""
        return not self.modules or any(not uses_interface(module) for module in self.modules.values())

    def coverage(self) -> Coverage:
        """What was seen so far of what ran so far."""
        missed = tuple(
            Missed(name, type(self.modules[name]).__name__, runs, self._calls[name])
            for name, runs in self._runs.items()
            if self._calls[name] < runs
        )
        not_run = tuple(name for name in self.modules if name not in self._runs)
        return Coverage(len(self.modules), len(self._runs), dict(self._sources), missed, not_run)

    def hooks(self) -> Iterator[Any]:
        """Count the passes and the runs of every attention module, and know which one is running."""
        yield self._model.register_forward_pre_hook(self._start)
        for module in self._watched if self._on_call is not None or self.modules else ():
            yield module.register_forward_pre_hook(self._enter, with_kwargs=True)
            yield module.register_forward_hook(self._leave, always_call=True)

    def leaf_hooks(self, tell: OnRan) -> Iterator[Any]:
        """Tell of the model's linear maps and norms."""
        for module in self._model.modules():
            if (kind := _kind(module, self._names)) in ("linear", "norm"):
                yield module.register_forward_hook(self._ran(kind, tell), with_kwargs=True)

    def module_hooks(self, blocks: Sequence[nn.Module], tell: OnRan) -> Iterator[Any]:
        """Tell of all modules inside the blocks."""
        for module in dict.fromkeys(inner for block in blocks for inner in block.modules() if inner is not block):
            yield module.register_forward_hook(self._ran(_kind(module, self._names), tell), with_kwargs=True)

    def route(
        self, function: Eager, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Run the attention function and report it."""
        fused: list[dict[str, Any]] = []
        with BypassWatch(lambda **parts: fused.append(parts)) if self._own else contextlib.nullcontext():
            output, weights = function(module, query, key, value, mask, **options)
        eager: Eager | None = function
        if fused and fused[-1]["source"] == "sdpa":
            eager = None
            # What the fused function was told in the end: whether it is causal is decided on the way to it.
            mask = fused[-1]["mask"]
            options = {**options, "is_causal": fused[-1]["options"].get("is_causal", False)}
        scaling = options.get("scaling")
        self._report(
            self._owner(module),
            source="interface",
            query=query,
            key=key,
            value=value,
            mask=mask,
            # Functions that are given no scaling use 1/sqrt(r).
            scaling=float(query.shape[-1]) ** -0.5 if scaling is None else scaling,
            weights=weights,
            output=output,
            eager=eager,
            options=options,
        )
        return output, weights

    def watching(self, source: WatchedSource) -> bool:
        """Whether this kind of call, made now, is one that the interface does not show."""
        inmost = next((one[0] for one in reversed(self._running) if id(one[0]) in self._names), None)
        if inmost is None:
            # A softmax outside of what is named after attention may be anything, such as the choice of an expert.
            return bool(self._running) and source != "softmax"
        return not uses_interface(inmost)

    def running(self) -> nn.Module | None:
        """The innermost module that is running now."""
        return self._running[-1][0] if self._running else None

    def seen(self, *, source: WatchedSource, **parts: Any) -> None:
        """A bypassing module's attention, as far as it was seen."""
        owner = self._owner(self._running[-1][0]) if source == "softmax" else self._given_tokens()
        self._report(owner, source=source, **parts)

    def _given_tokens(self) -> nn.Module:
        """The innermost running module that was given tokens: one that is given queries and keys is a part of it."""
        found = (one[0] for one in reversed(self._running) if first_tokens(one[1], one[2]) is not None)
        return next(found, self._running[-1][0])

    def _owner(self, module: nn.Module) -> nn.Module:
        if id(module) in self._names or not self._running:
            return module
        return next((one[0] for one in reversed(self._running) if id(one[0]) in self._names), self._running[-1][0])

    def _report(self, module: nn.Module, *, source: Any, **parts: Any) -> None:
        name = self._all_names.get(id(module), "?")
        index = sum(self._sources.values())
        around = {self._names[id(one[0])] for one in self._running if id(one[0]) in self._names}
        if source != "interface" and not around and name not in self.modules:
            # Not named after attention: known from now on.
            self.modules[name] = module
            self._runs[name] += 1
        for one in around | {name}:
            self._calls[one] += 1
        self._sources[source] += 1
        given = next((tuple(one[1:]) for one in reversed(self._running) if one[0] is module), ((), {}))
        if self._on_call is not None:
            parts["elsewhere"] = parts.get("elsewhere", False) or _given_context(module, *given)
            run = max(self._passes - 1, 0)
            self._on_call(Call(index, name, module, source, given=given, run=run, **parts))

    def _ran(self, kind: Kind, tell: OnRan) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if kind in ("linear", "norm"):
                given = args[0] if args else next(iter(kwargs.values()), None)
            else:
                given, output = first_tokens(args, kwargs), first_tokens(output)
            if isinstance(given, Tensor) and isinstance(output, Tensor):
                within = tuple(one[0] for one in self._running)
                tell(Ran(kind, self._all_names[id(module)], module, given, output, within))

        return hook

    def _start(self, *_: Any) -> None:
        self._passes += 1

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if id(module) in self._names:
            self._runs[self._names[id(module)]] += 1
        self._running.append((module, args, kwargs))

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._running and self._running[-1][0] is module:
            self._running.pop()


def _given_context(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a module was given tokens to look at, other than its own."""
    named = {**dict(zip(inspect.signature(module.forward).parameters, args, strict=False)), **kwargs}
    context = next((named[name] for name in CONTEXT_NAMES if isinstance(named.get(name), Tensor)), None)
    rest = {name: value for name, value in named.items() if name not in CONTEXT_NAMES}
    return context is not None and context is not first_tokens((), rest)


def _kind(module: nn.Module, attention: Collection[int]) -> Kind:
    if is_linear(module):
        return "linear"
    return "norm" if is_norm(module) else "attention" if id(module) in attention else "other"


def _entering(tell: OnBlock) -> Callable[..., None]:
    return lambda block, args, kwargs: tell(block, stream_of(args, kwargs))


def _leaving(tell: OnBlock) -> Callable[..., None]:
    return lambda block, args, output: tell(block, stream_of(output))
