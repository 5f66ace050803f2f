"""Where a model's weights lie: on one device, split over several, or kept aside until their module runs.

Models that are larger than a device are split by the accelerate package: each module moves what it is given to its
own device, and weights that lie in host memory or on disk are on the meta device except while their module runs. What
this file knows about that package is the name of its hooks and of what they hold; it is not imported.
"""

from __future__ import annotations

import contextlib
import copy
from collections import ChainMap, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def input_device(network: nn.Module) -> torch.device:
    """The device that inputs go to: that of the first weights, or where their module will run."""
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.device.type != "meta":
                return parameter.device
            if (hook := offloading(module)) is not None:
                return run_device(hook)
    return torch.device("cpu")


def offloading(module: nn.Module) -> Any | None:
    """The hook that fetches this module's weights before it runs and drops them afterwards, if it has one."""
    hook = module.__dict__.get("_hf_hook")
    for one in getattr(hook, "hooks", (hook,)):
        if getattr(one, "offload", False) and getattr(one, "weights_map", None) is not None:
            return one
    return None


def run_device(hook: Any) -> torch.device:
    """Where the module of an offloading hook runs."""
    place = hook.execution_device
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def fetched(module: nn.Module) -> dict[int, Tensor]:
    """The weights inside the module that are kept aside, by the identity of what stands in for them; each is read
    onto the device that it is used on."""
    found: dict[int, Tensor] = {}
    for inner in module.modules():
        if (hook := offloading(inner)) is not None:
            for name, stand_in in _kept_aside(inner, hook):
                found[id(stand_in)] = hook.weights_map[name].to(run_device(hook), stand_in.dtype)
    return found


def _kept_aside(module: nn.Module, hook: Any) -> Iterator[tuple[str, Tensor]]:
    deep = bool(getattr(hook, "place_submodules", False))
    tensors = (*module.named_parameters(recurse=deep), *module.named_buffers(recurse=deep))
    yield from ((name, tensor) for name, tensor in tensors if tensor.device.type == "meta")


@contextlib.contextmanager
def substituted(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the module has these weights, by parameter name; afterwards it has its own, whatever happened.

    Nothing is copied: its own are kept aside, or, where they are kept aside already, left where they are.
    """
    with contextlib.ExitStack() as undo:
        for prefix, inner in module.named_modules():
            hook = offloading(inner)
            if hook is not None:
                overlay = {
                    name: weights[full]
                    for name, _ in _kept_aside(inner, hook)
                    if (full := f"{prefix}.{name}" if prefix else name) in weights
                }
                if overlay:
                    undo.callback(setattr, hook, "weights_map", hook.weights_map)
                    hook.weights_map = ChainMap(overlay, hook.weights_map)
        for name, parameter in module.named_parameters():
            if parameter.device.type != "meta" and name in weights:
                undo.callback(setattr, parameter, "data", parameter.data)
                parameter.data = weights[name]
        yield


def alone(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy of the module for running by itself, in evaluation mode; the model itself is not touched.

    Weights are fetched where they are kept aside, and are in `dtype`, if one is given. Our own hooks and those that
    move weights stay behind; hooks of others are what the model does, and go with it.
    """
    aside = fetched(module)
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        value = aside.get(id(tensor), tensor).detach()
        value = value.to(dtype) if dtype is not None and value.is_floating_point() else value
        value = value.clone() if value.data_ptr() == tensor.data_ptr() else value
        memo[id(tensor)] = nn.Parameter(value, requires_grad=False) if isinstance(tensor, nn.Parameter) else value
    return _copied(module, memo).eval()


def hollow(module: nn.Module) -> nn.Module:
    """A copy of the module without storage: its parameters are on the meta device."""
    memo: dict[int, Any] = {
        id(one): nn.Parameter(torch.empty_like(one, device="meta"), requires_grad=False)
        for one in module.parameters()
    }
    return _copied(module, memo)


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    for inner in module.modules():
        for name in HOOK_TABLES:
            table: Mapping[int, Any] = inner.__dict__[name]
            memo[id(table)] = OrderedDict((key, hook) for key, hook in table.items() if not _ours(hook))
        if (hook := inner.__dict__.get("_hf_hook")) is not None:
            # It leads to the weights of the whole model, which must not be copied.
            memo[id(hook)] = hook
        if hasattr(config := inner.__dict__.get("config"), "_attn_implementation_internal"):
            # Copying all of it takes longer than the rest of the module; its own fields alone are ever set.
            memo.setdefault(id(config), copy.copy(config))
    made = copy.deepcopy(module, memo)
    for inner in made.modules():
        if inner.__dict__.pop("_hf_hook", None) is not None:
            inner.forward = inner.__dict__.pop("_old_forward")
    return made


def _ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("rankfall.")
