"""Run one traced attention module again, alone, in float64, on tokens of our choice."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.interface.route import Eager, Route, routed
from rankfall.models.trace.precision import KeepFloat64, widened
from rankfall.models.trace.site import Site

# Caches of earlier tokens are left out: the replayed tokens are all there is.
CACHE_NAMES = ("past_key_values", "past_key_value", "layer_past", "cache_position")


@final
@dataclass(frozen=True, eq=False)
class Passed:
    """What one replay gave, all in float64: query (b, h, n, r), key and value (b, g, m, r), attention's own output
    (b, n, h, v), and W_O of it (b, n, o), which is None when no linear map followed."""

    query: Tensor
    key: Tensor
    value: Tensor
    attended: Tensor
    projected: Tensor | None


class Replay:
    """A float64 copy of a site's module, and of W_O where that lies outside it. The model itself is not touched."""

    def __init__(self, site: Site) -> None:
        require(
            site.tokens_name is not None,
            required="an attention module that takes its tokens as one (b, n, d) tensor",
            got=f"{site.name} ({type(site.call.module).__name__})",
            remedy="this architecture cannot be replayed module by module",
        )
        self.site = site
        self.module = _float64_copy(site.call.module)
        self.arguments = {name: widened(value) for name, value in site.arguments.items() if name not in CACHE_NAMES}
        self._inside: nn.Module | None = None
        self._outside: nn.Module | None = None
        if site.projection is not None:
            if site.projection_inside:
                path = site.projection.name.removeprefix(f"{site.name}.") if site.name else site.projection.name
                self._inside = self.module.get_submodule(path)
            else:
                self._outside = _float64_copy(site.projection.module)

    @property
    def projection(self) -> nn.Module | None:
        """W_O, in float64."""
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
        with torch.no_grad(), KeepFloat64(), routed(self.module, through), self._watched(seen):
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
        if self._inside is None:
            yield
            return
        handle = self._inside.register_forward_hook(lambda module, args, out: seen.update(projected=out))
        try:
            yield
        finally:
            handle.remove()


def _float64_copy(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).double().eval()
