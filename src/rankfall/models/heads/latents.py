"""Vectors between a token and its heads: latents from which queries, or keys and values, are read, and their norms.

A norm is no linear map. On the whole of a head's query or key it only sets the size of scores, which no rank depends
on, and its gain alone is kept. On a latent or a part of a head it sets the size of what comes from it against what
does not, as the rotary part of DeepSeek's keys: there it is the linear map that it is at the median of its
factor over real tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import require
from rankfall.models.recording.blocks import is_norm
from rankfall.models.recording.events import Ran
from rankfall.models.recording.replay import Replay, Site

# Large against any epsilon inside the norm, small against overflow.
PATTERN_SIZE = 1e4
# Rows with which it is told what a map inside the module reaches, and tokens from which a median is taken at most.
TRIED_ROWS = 4
MOST_TOKENS = 512
# Relative: replays are float64.
SAME = 1e-6


@final
@dataclass(frozen=True)
class Latents:
    """The latents of one attention layer; 0 where there is none.

    `queries`, `keys`: sizes of the vectors from which queries and keys are read; `beside`: coordinates of a key that
    do not come from the latent. `factors`: of each norm on a latent, by name inside the module, the number by which
    it multiplies beside its gain, in the median over `tokens` tokens.
    """

    queries: int = 0
    keys: int = 0
    beside: int = 0
    factors: Mapping[str, float] = field(default_factory=dict)
    tokens: int = 0
    from_latent: tuple[bool, ...] = ()
    """Which coordinates of a key come from the latent."""

    @property
    def note(self) -> str:
        """What was assumed, in words; empty where nothing was."""
        if not self.factors:
            return ""
        listed = ", ".join(f"{name} {factor:.3g}" for name, factor in self.factors.items())
        few = "one token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"norms on latents stand at the median of their factor over {few} ({listed})"


@contextlib.contextmanager
def linear_norms(module: nn.Module, factors: Mapping[str, float] | None = None) -> Iterator[list[str]]:
    """Inside this context every norm within the module is linear: its gain times its factor, which is 1 unless it is
    given. Yields the names of those that ran."""
    ran: list[str] = []
    known = factors or {}

    def replace(norm: nn.Module, args: tuple[Any, ...], _: Any) -> Tensor:
        ran.append(names[norm])
        linear, bias = linear_part(norm, args[0])
        return known.get(names[norm], 1.0) * linear + bias

    names = {inner: name for name, inner in module.named_modules() if is_norm(inner)}
    with contextlib.ExitStack() as hooks:
        for norm in names:
            hooks.callback(norm.register_forward_hook(replace).remove)
        yield ran


def linear_part(norm: nn.Module, given: Tensor) -> tuple[Tensor, Tensor]:
    """gain * (x - mean x), or without the mean where the norm does not centre; and its bias.

    Measured, not read from parameters: f(p) for a pattern p of +-size with mean zero is gain * sign(p) + bias.
    """
    width = given.shape[-1]
    require(
        width % 2 == 0,
        required="a norm over an even number of coordinates",
        got=width,
        remedy="its gain cannot be measured with a pattern of mean zero",
    )
    sign = torch.ones_like(given[..., :1, :]).expand_as(given).clone()
    sign[..., 1::2] = -1
    up, down = norm.forward(PATTERN_SIZE * sign), norm.forward(-PATTERN_SIZE * sign)
    gain, bias = (up - down) / 2 * sign, (up + down) / 2
    shifted = norm.forward(PATTERN_SIZE * (sign + 1))
    centres = torch.allclose(shifted, up, rtol=1e-3, atol=float(1e-3 * gain.abs().max()))
    linear = given - given.mean(dim=-1, keepdim=True) if centres else given
    return gain * linear, bias


Answer = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Rows (p, d) of tokens to their queries (p, h, r) and keys (p, g, r), by the module alone."""


def find_latents(replay: Replay, site: Site, answer: Answer, tokens: Tensor) -> Latents:
    """The latents of a site's module. `tokens` (N, d) are real ones, for the factors of the norms on latents."""
    inner, norms = inner_maps(site), inner_norms(site)
    if not inner and not norms:
        return Latents()
    rows = torch.randn(
        TRIED_ROWS, tokens.shape[-1], generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ).to(tokens.device)
    rows = torch.cat([torch.zeros_like(rows[:1]), rows])
    queries: list[int] = []
    keys: list[int] = []
    kept: dict[str, None] = {}
    with linear_norms(replay.module):
        plain = [_slopes(part) for part in answer(rows)]
        reached = torch.zeros(plain[1].shape[-1], dtype=torch.bool, device=tokens.device)
        for ran in (*inner, *norms):
            with _doubled(replay.module.get_submodule(_path(site, ran)), output=ran.kind == "norm"):
                moved = [_slopes(part) for part in answer(rows)]
            of_queries, of_keys = (_doubles(one, two) for one, two in zip(plain, moved, strict=True))
            if ran.kind == "linear":
                queries += [ran.input.shape[-1]] * bool(of_queries.any())
                keys += [ran.input.shape[-1]] * bool(of_keys.any())
                reached |= of_keys
            elif any(_same(ran.output, one.input) for one in inner) or _in_part(plain, moved):
                kept |= {_path(site, ran): None}
    some = spread(tokens, MOST_TOKENS)
    return Latents(
        queries=min(queries, default=0),
        keys=min(keys, default=0),
        beside=int((~reached).sum()) if keys else 0,
        factors=norm_factors(replay, list(kept), lambda: answer(some)) if kept else {},
        tokens=some.shape[0] if kept else 0,
        from_latent=tuple(reached.tolist()) if keys else (),
    )


def norm_factors(replay: Replay, names: list[str], run: Callable[[], object]) -> dict[str, float]:
    """Of each of these norms, the median over the tokens of a run of the c in norm(x) = c * gain * x + bias."""
    seen: dict[str, list[Tensor]] = {name: [] for name in names}

    def watch(name: str) -> Callable[..., None]:
        def hook(norm: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
            linear, bias = linear_part(norm, args[0])
            energy = linear.square().sum(dim=-1)
            factor = ((out - bias) * linear).sum(dim=-1) / energy.clamp_min(1e-300)
            seen[name].append(factor[energy > 0].flatten())

        return hook

    with contextlib.ExitStack() as hooks:
        for name in names:
            hooks.callback(replay.module.get_submodule(name).register_forward_hook(watch(name)).remove)
        run()
    found = {name: torch.cat(parts) for name, parts in seen.items() if parts}
    return {name: float(factors.median()) for name, factors in found.items() if factors.numel()}


def inner_maps(site: Site) -> list[Ran]:
    """Linear maps of the module that ran before attention on something else than its tokens."""
    given = [site.tokens]
    if site.context_name is not None:
        given.append(site.upright(site.arguments[site.context_name]))
    inside = (ran for ran in site.before if ran.kind == "linear" and site.call.module in ran.within)
    return [ran for ran in inside if not any(_same(ran.input, one) for one in given)]


def inner_norms(site: Site) -> list[Ran]:
    """Norms of the module that ran before attention, without one at its entry."""
    inside = (ran for ran in site.before if ran.kind == "norm" and site.call.module in ran.within)
    return [ran for ran in inside if site.entry is None or ran.module is not site.entry.module]


def depends_on_tokens(site: Site) -> bool:
    """Whether the ranks of the heads may depend on which tokens the module is given: norms on latents and on parts
    of heads."""
    query = site.call.query
    size = 0 if query is None else query.shape[-1]
    return bool(inner_maps(site)) or any(ran.output.shape[-1] < size for ran in inner_norms(site))


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.numel() == other.numel() and torch.equal(one.flatten(), other.flatten()))


def _path(site: Site, ran: Ran) -> str:
    return ran.name.removeprefix(f"{site.name}.") if site.name else ran.name


@contextlib.contextmanager
def _doubled(module: nn.Module, *, output: bool) -> Iterator[None]:
    """Inside, what the module gives, or what it is given, is twice what it was."""
    if output:
        handle = module.register_forward_hook(lambda _, args, out: 2 * out)
    else:
        handle = module.register_forward_pre_hook(lambda _, args: (2 * args[0], *args[1:]))
    try:
        yield
    finally:
        handle.remove()


def _slopes(part: Tensor) -> Tensor:
    """Without what the zero row gives: biases do not double."""
    return part[1:] - part[:1]


def _doubles(plain: Tensor, moved: Tensor) -> Tensor:
    """Which coordinates (r) are doubled, in all heads and rows."""
    size = plain.abs().amax(dim=(0, 1))
    return ((moved - 2 * plain).abs().amax(dim=(0, 1)) <= SAME * size) & (size > 0)


def _in_part(plain: Sequence[Tensor], moved: Sequence[Tensor]) -> bool:
    """Whether queries or keys changed otherwise than by doubling as a whole."""
    changed = [not torch.allclose(one, two, rtol=SAME) for one, two in zip(plain, moved, strict=True)]
    whole = [bool(_doubles(one, two).all()) for one, two in zip(plain, moved, strict=True)]
    return any(some and not every for some, every in zip(changed, whole, strict=True))


def spread(rows: Tensor, most: int) -> Tensor:
    """At most so many of the rows, evenly spread."""
    if rows.shape[0] <= most:
        return rows
    return rows[torch.linspace(0, rows.shape[0] - 1, most, device=rows.device).round().long()]
