"""Callbacks around modules that stay outside of what torch.compile compiles.

A hook that is traced breaks the graph, or ends the run under `fullgraph=True`; one that is added after the first call
is not seen at all. A compiled module is therefore watched at its border, and what is inside a compiled graph is seen
in a pass of its own that is not compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from rankfall.errors import require

# What wrappers call the module inside: torch.compile, activation checkpointing, the first FSDP.
WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")

Before = Callable[[tuple[Any, ...], Mapping[str, Any]], None]
After = Callable[[Any], None]


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile returned this module or its `forward`, or its `compile()` was called."""
    return (
        "_orig_mod" in module._modules
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


def layers_of(model: nn.Module) -> Iterator[nn.Module]:
    """The model, and what the wrappers of torch.compile and of data parallelism hold, outermost first."""
    while True:
        yield model
        inner = model._modules.get("_orig_mod")
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return
        model = inner


def bare(model: nn.Module) -> nn.Module:
    """The model without its wrappers."""
    return list(layers_of(model))[-1]


def plain_name(path: str) -> str:
    """A module's name as it is without wrappers."""
    return ".".join(part for part in path.split(".") if part not in WRAPPED)


def compiled_around(model: nn.Module, path: str) -> nn.Module | None:
    """The outermost compiled module in whose graph the one of that name runs; None if none is."""
    for module in layers_of(model):
        if is_compiled(module):
            return model
    module = bare(model)
    for part in path.split(".")[:-1]:
        module = module.get_submodule(part)
        if is_compiled(module):
            return module
    return None


def around(
    module: nn.Module, traced: Callable[[], Any], before: Before | None = None, after: After | None = None
) -> Callable[[], None]:
    """Call `before` and `after` at each call of the module, outside of its compiled graph; returns what ends it.

    Where the module runs inside the graph of another, both are left out and `traced` is called while that graph is
    made; it must be marked as constant. A call that fails has no `after`.
    """
    if getattr(module, "_compiled_call_impl", None) is not None:
        return _around_compiled(module, before, after)

    def entering(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            traced()
        elif before is not None:
            before(args, kwargs)

    def leaving(_: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and after is not None:
            after(output)

    first = module.register_forward_pre_hook(entering, with_kwargs=True)
    last = module.register_forward_hook(leaving)

    def remove() -> None:
        first.remove()
        last.remove()

    return remove


def _around_compiled(module: Any, before: Before | None, after: After | None) -> Callable[[], None]:
    # Hooks of a module whose own `compile()` was called are part of its graph.
    inner = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(args, kwargs)
        output = inner(*args, **kwargs)
        if after is not None:
            after(output)
        return output

    module._compiled_call_impl = call

    def remove() -> None:
        if module._compiled_call_impl is call:
            module._compiled_call_impl = inner

    return remove


class Enough(BaseException):
    """Ends an eager pass early: everything that was wanted has been seen."""


def run_eagerly(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """One pass that is not compiled and leaves no trace in the run: gradients, torch's random numbers, buffers and
    autocast's copies of the weights stay as they are. `Enough` ends it."""
    module = bare(model)
    sharded = any(hasattr(parameter, "placements") for parameter in module.parameters())
    require(
        not sharded,
        required="blocks outside of the compiled graph where parameters are spread over processes",
        got=f"{type(module).__name__} compiled as a whole",
        remedy="compile its blocks one by one, `for block in blocks: block.compile()`",
    )
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.compiler.set_stance("force_eager"), left_as_it_was(module), contextlib.suppress(Enough):
        torch.func.functional_call(module, buffers, args, dict(kwargs))


@contextlib.contextmanager
def left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Inside, the module can run without a trace of it in gradients, random numbers or autocast's copies."""
    with torch.no_grad(), _same_random(module), _uncached():
        yield


def _same_random(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    devices = {parameter.device for parameter in module.parameters() if parameter.device.type != "cpu"}
    kind = next((device.type for device in devices), "cuda")
    return torch.random.fork_rng([device.index for device in devices if device.type == kind], device_type=kind)


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """A copy of a weight that autocast kept from a pass without gradients would cut the weight off from its own."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)
