"""A model's random twin without a second model: each block has fresh weights while it runs, and its own afterwards.

Weights are initialised as the library would: by the model's own `_init_weights`, children before parents, on the
device on which they are used, one block at a time. What lies outside the blocks is replaced for the whole run.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.models.load.confinement import offline
from rankfall.models.recording.blocks import find_stacks, is_norm
from rankfall.models.recording.placement import fetched, hollow, input_device, offloading, run_device, substituted

# Apart from each other, and from the seeds that people choose.
DRAW_STRIDE = 1_000_003
# Seeds of a model's parts do not meet those of another seed below this number of parts.
PARTS_AT_MOST = 1 << 14


def draw_seed(seed: int, draw: int) -> int:
    """The seed of a further draw; that of draw 0 is the seed itself."""
    return (seed + draw * DRAW_STRIDE) % (1 << 63)


@contextlib.contextmanager
def random_weights(network: nn.Module, seed: int = 0) -> Iterator[None]:
    """Inside, the network runs with freshly initialised weights; afterwards its own are back, whatever happened.

    The same seed gives the same weights on the same kind of device. A parameter that the library's initialisation
    does not reach raises `RequestError`; of modules that are not the library's it is drawn with the size it has.
    """
    parts = _parts(network)
    source = _FreshWeights(network, seed)
    with contextlib.ExitStack() as whole:
        for number, part in enumerate(parts):
            if part.module is network:
                whole.enter_context(part.replaced(source.of(part, number)))
            else:
                _while_it_runs(part, lambda part=part, number=number: source.of(part, number), whole)
        yield


@final
class RandomBlocks(Mapping[str, Tensor]):
    """The weights of `random_weights` without a run, for whoever reads weights: by name, or in place of a block's.

    The newest block's are kept, no others.
    """

    def __init__(self, network: nn.Module, seed: int = 0) -> None:
        self._parts = _parts(network)
        self._source = _FreshWeights(network, seed)
        self._newest: tuple[int, dict[str, Tensor]] = (-1, {})
        named = {id(value): name for name, value in network.named_parameters()}
        # Tied weights have several names, and are drawn under the first.
        self._names = {name: named[id(value)] for name, value in network.named_parameters(remove_duplicate=False)}

    def around(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Inside, the block around the module of this name has these weights; afterwards its own again."""
        holding = [number for number, part in enumerate(self._parts) if f"{name}.".startswith(part.prefix)]
        number = max(holding, key=lambda number: len(self._parts[number].prefix))
        return self._parts[number].replaced(self._of(number))

    def _of(self, number: int) -> dict[str, Tensor]:
        if self._newest[0] != number:
            self._newest = (-1, {})
            self._newest = (number, self._source.of(self._parts[number], number))
        return self._newest[1]

    def __getitem__(self, name: str) -> Tensor:
        own = self._names[name]
        return self._of(next(number for number, part in enumerate(self._parts) if own in part.names))[own]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _while_it_runs(part: _Part, fresh: Callable[[], dict[str, Tensor]], whole: contextlib.ExitStack) -> None:
    running = contextlib.ExitStack()

    def enter(*_: Any) -> None:
        running.close()
        running.enter_context(part.replaced(fresh()))

    def leave(*_: Any) -> None:
        running.close()

    whole.callback(running.close)
    whole.callback(part.module.register_forward_pre_hook(enter, prepend=True).remove)
    whole.callback(part.module.register_forward_hook(leave, always_call=True).remove)


@final
@dataclass(frozen=True, eq=False)
class _Part:
    """A block, or what is left: the module, what its parameters' names start with, and their names."""

    module: nn.Module
    prefix: str
    names: tuple[str, ...]

    def replaced(self, weights: dict[str, Tensor]) -> contextlib.AbstractContextManager[None]:
        """Inside, the part has these weights, by their names in the network."""
        return substituted(self.module, {name[len(self.prefix) :]: value for name, value in weights.items()})


def _parts(network: nn.Module) -> list[_Part]:
    try:
        stacks = find_stacks(network)
    except RequestError:
        stacks = []
    parts: list[_Part] = []
    taken: set[int] = set()
    named = dict(network.named_parameters())
    for name, block in (
        (name, block) for stack in stacks for name, block in zip(stack.names, stack.blocks, strict=True)
    ):
        prefix = f"{name}."
        own = tuple(one for one, value in named.items() if one.startswith(prefix) and id(value) not in taken)
        taken |= {id(named[one]) for one in own}
        if own:
            parts.append(_Part(block, prefix, own))
    rest = tuple(one for one, value in named.items() if id(value) not in taken)
    return [_Part(network, "", rest), *parts]


class _FreshWeights:
    """Initialises a part at a time inside an empty copy of the network; parents' rules reach into children there."""

    def __init__(self, network: nn.Module, seed: int) -> None:
        self._network, self._seed = network, seed
        self._empty = hollow(network)
        self._devices = _devices(network)
        self._owners: dict[str, list[tuple[nn.Module, str]]] = {}
        names = {id(value): name for name, value in self._empty.named_parameters()}
        for module in self._empty.modules():
            for name, value in module._parameters.items():
                if value is not None:
                    self._owners.setdefault(names[id(value)], []).append((module, name))

    def of(self, part: _Part, number: int) -> dict[str, Tensor]:
        """Fresh weights of the part by name, each on the device on which it is used."""
        places = {self._devices[name] for name in part.names}
        cards = sorted({place.index or 0 for place in places if place.type == "cuda"})
        with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=cards):
            _seed((self._seed * PARTS_AT_MOST + number) % (1 << 63), places)
            fresh = {name: self._unset(name) for name in part.names}
            empty = self._placed(fresh)
            try:
                self._initialise(part)
                return {name: self._reached(name, value.data) for name, value in self._placed(empty).items()}
            finally:
                self._placed(empty)

    def _unset(self, name: str) -> nn.Parameter:
        like = self._empty.get_parameter(name)
        return nn.Parameter(torch.full_like(like, torch.nan, device=self._devices[name]), requires_grad=False)

    def _placed(self, values: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Put parameters into the empty copy; what was there before."""
        before: dict[str, nn.Parameter] = {}
        for name, value in values.items():
            for module, own in self._owners[name]:
                there = module._parameters[own]
                assert there is not None
                before[name] = there
                module._parameters[own] = value
        return before

    def _initialise(self, part: _Part) -> None:
        path = part.prefix.rstrip(".")
        within = self._empty.get_submodule(path) if path else self._empty
        for module, rule in _rules(self._empty, within, path):
            if _hollow(module):
                # Of another part: nothing would be kept, and initialising it takes longer than what has storage.
                continue
            if rule is not None:
                rule(module)
            left = any(_unwritten(one) for one in module.parameters(recurse=False) if one.device.type != "meta")
            if left and (reset := _own_reset(module)) is not None:
                reset()
                if rule is not None:
                    rule(module)

    def _reached(self, name: str, value: Tensor) -> Tensor:
        if not _unwritten(value):
            return value
        if getattr(self._empty, "config", None) is not None:
            raise RequestError(
                required="an initialisation for every parameter",
                got=f"none for {name} of {type(self._network).__name__}",
                remedy="build a second model",
            )
        module, own = self._owners[name][0]
        if value.ndim < 2:
            return value.fill_(1.0 if own == "weight" and is_norm(module) else 0.0)
        stand_in = self._network.get_parameter(name)
        real = fetched(self._network).get(id(stand_in), stand_in)
        return value.normal_(0.0, float(real.float().std()))


def _seed(seed: int, places: Collection[torch.device]) -> None:
    """As `torch.manual_seed`, which takes a millisecond to remember the seed for devices that are not there."""
    if {place.type for place in places} <= {"cpu", "cuda"}:
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
    else:
        torch.manual_seed(seed)


def _hollow(module: nn.Module) -> bool:
    """Whether the module has parameters but no parts, and none of them storage; rules of others may reach parts."""
    devices = {one.device.type for one in module.parameters(recurse=False)}
    return devices == {"meta"} and not any(True for _ in module.children())


def _unwritten(value: Tensor) -> bool:
    """Whether a number is left that nothing wrote: one of them makes the sum none."""
    return bool(value.sum().isnan())


Rule = Callable[[nn.Module], Any]


def _rules(root: nn.Module, within: nn.Module, path: str) -> Iterator[tuple[nn.Module, Rule | None]]:
    """Every module to initialise with the rule that it is initialised by: those inside, children first, then the
    modules around them, whose rules may reach inside."""
    around: list[tuple[nn.Module, Rule | None]] = []
    module, rule = root, getattr(root, "_init_weights", None)
    for step in path.split(".") if path else ():
        around.append((module, rule))
        module = module.get_submodule(step)
        rule = getattr(module, "_init_weights", rule)
    yield from _downwards(within, rule)
    yield from reversed(around)


def _downwards(module: nn.Module, rule: Rule | None) -> Iterator[tuple[nn.Module, Rule | None]]:
    for child in module.children():
        yield from _downwards(child, getattr(child, "_init_weights", rule))
    yield module, rule


def _own_reset(module: nn.Module) -> Callable[[], Any] | None:
    found = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return found if callable(found) else None


def _devices(network: nn.Module) -> dict[str, torch.device]:
    """Where each parameter is used, by name."""
    found = {name: value.device for name, value in network.named_parameters()}
    for prefix, module in network.named_modules():
        if (hook := offloading(module)) is not None:
            deep = bool(getattr(hook, "place_submodules", False))
            for name, value in module.named_parameters(recurse=deep):
                full = f"{prefix}.{name}" if prefix else name
                if value.device.type == "meta" and full in found:
                    found[full] = run_device(hook)
    return found


def separate_twin(network: nn.Module, seed: int = 0) -> nn.Module:
    """A second model of the same class and configuration with its library's own initialisation."""
    config: Any = network.config
    kind: Any = type(network)
    parameter = next(network.parameters())
    # A configuration may ask for the pretrained weights of a part, which random ones do not need.
    with torch.random.fork_rng(devices=[]), offline():
        torch.manual_seed(seed)
        twin = kind._from_config(copy.deepcopy(config), dtype=parameter.dtype)
    # Of a model that is spread over devices some parameters are nowhere: what is drawn anew fits where inputs go.
    return twin.to(input_device(network)).eval()
