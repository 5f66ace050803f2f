"""The linear maps of one attention layer, found by running its module alone on chosen tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import require
from rankfall.models.heads.gates import output_gate
from rankfall.models.heads.latents import find_latents, linear_norms, spread
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.recording.interface import Eager, Route
from rankfall.models.recording.replay import Passed, Replay, Site

# Probes that run together: zero and the coordinates of a token of this width.
CHUNK = 2049
RANDOM_PROBES = 16
MOST_NUMBERS = 2**30

# Relative, against the traced float32 pass; the replay itself is float64.
ROTATED = 1e-6


@final
@dataclass(frozen=True, eq=False)
class _Answers:
    """One row per probe: query (p, h, r), key and value (p, g, r)."""

    query: Tensor
    key: Tensor
    value: Tensor


def probe_site(
    layer: int,
    site: Site,
    elsewhere: Site,
    at_offset: Site | None,
    offset: int,
    seen: Tensor | None = None,
    *,
    as_traced: bool = True,
) -> HeadMaps:
    """The maps of one site. `site` was traced at position 0, `elsewhere` at another one, where rotary maps differ (or
    is the same, where the module counts positions by itself);
    `at_offset` at the position of the query, when the offset is not 0. `seen` (N, d) are tokens that the module was
    given on real inputs, for what depends on the token: norms on latents and gates (default: those of the trace).
    `as_traced` says that the module has the weights with which it was traced, so that its replay can be held against
    the pass."""
    replay = Replay(site)
    width = site.tokens.shape[-1]
    checks = {"replay": _replay_error(replay)} if as_traced else {}
    real = site.tokens.reshape(-1, width).double() if seen is None else seen.to(site.tokens.device).double()
    latents = find_latents(replay, site, lambda rows: _queries_and_keys(replay, rows), real)
    with linear_norms(replay.module, latents.factors) as norms:
        here, packed = _maps(replay, width)
        queries = here
        if at_offset is not None:
            replay.arguments = replay.brought(at_offset)
            queries, _ = _maps(replay, width)
            replay.arguments = replay.brought(site)
        random = torch.randn(
            RANDOM_PROBES, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        ).to(site.tokens.device)
        answers = _answers(replay, random, packed)
        checks["linearity"] = _linearity_error(random, answers, here)
        if elsewhere is site:
            # Positions are the module's own business: its last token stands elsewhere.
            moved = _answers(replay, random, packed, at=-1)
        else:
            replay.arguments = replay.brought(elsewhere)
            moved = _answers(replay, random, packed)
        checks["same_position_scores"] = _relative(_own_scores(moved), _own_scores(answers))
        rotary = _relative(moved.query, answers.query) > ROTATED
        normed = _norms_before_attention(replay, norms)
    output, gate, note = _output_map(replay, site, here.value.shape[-1], here.query.shape[1], real)
    shared = _repeated(here.key, here.value)
    return HeadMaps(
        layer=layer,
        name=site.name,
        source="probe",
        query=queries.query[1:].movedim(1, 0) / _own_scale(site),
        key=here.key[1:, ::shared].movedim(1, 0),
        value=here.value[1:, ::shared].movedim(1, 0),
        output=output,
        offset=offset if rotary else 0,
        rotary=rotary,
        qk_norm=normed and site.norms_queries_and_keys,
        checks=checks,
        notes=tuple(one for one in (latents.note, note) if one),
        latents=latents,
        gate=gate,
        kind="self" if site.context_name is None else "cross",
    )


def _repeated(key: Tensor, value: Tensor) -> int:
    """How often a module itself repeats each head of its keys and values before attention gets them."""
    heads = key.shape[1]
    if value.shape[1] != heads:
        return 1
    for times in (times for times in range(heads, 1, -1) if heads % times == 0):
        grouped = [part.unflatten(1, (-1, times)) for part in (key, value)]
        if all(torch.equal(part, part[:, :, :1].expand_as(part)) for part in grouped):
            return times
    return 1


def _maps(replay: Replay, width: int) -> tuple[_Answers, bool]:
    """Row 0 holds the biases, rows 1 to d the maps. Several probes share a sequence when positions do not matter."""
    device = replay.site.tokens.device
    rows = _zero_and_each(width, device)
    length = replay.site.tokens.shape[1]
    packed = length > 1 and replay.site.context_name is None and _position_free(replay)
    require(
        packed or rows.numel() * length <= MOST_NUMBERS,
        required=f"tokens for at most {MOST_NUMBERS:,} numbers, where positions turn queries and keys",
        got=f"{length} tokens of width {width} in {replay.site.name}",
        remedy="give a shorter input",
    )
    size = CHUNK if packed else max(1, CHUNK // length)
    answers = [_answers(replay, chunk, packed) for chunk in rows.split(size)]
    query, key, value = (torch.cat([getattr(one, part) for one in answers]) for part in ("query", "key", "value"))
    return _Answers(*(torch.cat([part[:1], part[1:] - part[:1]]) for part in (query, key, value))), packed


def _zero_and_each(width: int, device: torch.device) -> Tensor:
    """Zero, then every coordinate vector, made where they are used: they are as large as a weight."""
    return torch.eye(width + 1, width, dtype=torch.float64, device=device).roll(1, dims=0)


def _norms_before_attention(replay: Replay, norms: list[str]) -> bool:
    """Whether a norm ran on the way to the queries and keys; one of the module's may also run after attention."""
    norms.clear()
    before: list[str] = []

    def route(eager: Eager, module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        before.extend(norms)
        return eager(module, *tensors, **options)

    replay.run(replay.site.tokens.double(), route=route)
    return bool(before)


def _own_scale(site: Site) -> float:
    """The number by which the module itself multiplies what the query map gave, before it calls attention."""
    query = site.call.query
    assert query is not None
    heads, rank = query.shape[1], query.shape[-1]
    for ran in reversed(site.before):
        if ran.kind != "linear" or ran.output.numel() != query.numel():
            continue
        mapped = ran.output.reshape(*query.shape[:1], -1, heads, rank).transpose(1, 2).double()
        scale = float((mapped * query.double()).sum() / mapped.square().sum().clamp_min(1e-300))
        if scale > 0 and _relative(scale * mapped, query.double()) < ROTATED:
            return scale
    return 1.0


def _position_free(replay: Replay) -> bool:
    """Whether one vector gives the same query and key wherever it stands in the sequence."""
    shape = replay.site.tokens.shape
    vector = torch.randn(shape[-1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    passed = replay.run(vector.to(replay.site.tokens.device).expand(1, *shape[1:]))
    pairs = ((part, part[:, :, :1].expand_as(part)) for part in (passed.query, passed.key))
    return all(_relative(one, first) < ROTATED for one, first in pairs)


def _answers(replay: Replay, rows: Tensor, packed: bool, at: int = 0) -> _Answers:
    """`at` is the position from which the answers are taken, where positions matter."""
    count, width = rows.shape
    length = replay.site.tokens.shape[1]
    if packed:
        padding = -count % length
        tokens = torch.cat([rows, rows.new_zeros(padding, width)]).reshape(-1, length, width)
        passed = replay.run(tokens)
        return _Answers(*(part.transpose(1, 2).flatten(0, 1)[:count] for part in _parts(passed)))
    tokens = rows[:, None].expand(count, length, width)
    context = None
    if replay.site.context_name is not None:
        # Both sides get the same vectors; one side wider than the other is not probed.
        context = rows[:, None].expand(count, replay.context.shape[1], width)
    return _Answers(*(part[:, :, at] for part in _parts(replay.run(tokens, context))))


def _queries_and_keys(replay: Replay, rows: Tensor) -> tuple[Tensor, Tensor]:
    chunks = rows.split(max(1, CHUNK // replay.site.tokens.shape[1]))
    found = [_answers(replay, chunk, packed=False) for chunk in chunks]
    return torch.cat([one.query for one in found]), torch.cat([one.key for one in found])


def _parts(passed: Passed) -> tuple[Tensor, Tensor, Tensor]:
    return passed.query, passed.key, passed.value


def _replay_error(replay: Replay) -> float:
    """How far the module, run alone on the tokens it was given, is from what it did inside the model."""
    passed = replay.run(replay.site.tokens.double())
    call = replay.site.call
    assert call.query is not None
    assert call.key is not None
    return max(_relative(passed.query, call.query), _relative(passed.key, call.key))


def _linearity_error(rows: Tensor, answers: _Answers, maps: _Answers) -> float:
    errors = []
    for part in ("query", "key", "value"):
        table, got = getattr(maps, part), getattr(answers, part)
        errors.append(_relative(table[0] + torch.einsum("pd,dhr->phr", rows, table[1:]), got))
    return max(errors)


def _own_scores(answers: _Answers) -> Tensor:
    """q_i . k_i: the score of a token for itself, which no rotation by its position may change."""
    groups = answers.query.shape[1] // answers.key.shape[1]
    return (answers.query * answers.key.repeat_interleave(groups, dim=1)).sum(dim=-1)


def fed_as_attended(site: Site) -> bool:
    """Whether the linear map after attention is fed what attention gave."""
    attended, projection = site.call.output, site.projection
    if attended is None or projection is None or attended.numel() != projection.input.numel():
        return False
    return torch.equal(attended.reshape(projection.input.shape), projection.input)


# Tokens of which gates are taken, in chunks as long as the probes'.
GATED_TOKENS = 512


def _output_map(
    replay: Replay, site: Site, value_rank: int, heads: int, tokens: Tensor
) -> tuple[Tensor | None, Tensor | None, str]:
    """W_O (h, v, o), the gate (h, v) before it in the median over tokens, and what must be said about them."""
    if site.projection is None or replay.projection is None:
        return None, None, "no linear map follows attention: value/output ranks are missing"
    width = heads * value_rank
    gate, note = None, ""
    if not fed_as_attended(site):
        some = spread(tokens, GATED_TOKENS)
        gates = output_gate(replay, lambda route: _run_rows(replay, some, route), width)
        if gates is None:
            told = "something stands between attention and the next linear map: value/output ranks are missing"
            return None, None, told
        gate = gates.median(dim=0).values.reshape(heads, value_rank)
        few = "one token" if some.shape[0] == 1 else f"{some.shape[0]} tokens"
        note = (
            f"a gate multiplies attention's output before W_O: it stands at its median over {few}, coordinate by"
            f" coordinate ({float(gate.min()):.2g} to {float(gate.max()):.2g}, median {float(gate.median()):.2g})"
        )
    rows = _zero_and_each(width, site.tokens.device)
    with torch.no_grad():
        answer = replay.projection(rows)
    output = (answer[1:] - answer[:1]).reshape(heads, value_rank, -1)
    return output if gate is None else gate[..., None] * output, gate, note


def _run_rows(replay: Replay, rows: Tensor, route: Route) -> None:
    """The module on these rows, each alone, as often as it takes: what depends on a token alone shows."""
    length = replay.site.tokens.shape[1]
    for chunk in rows.split(max(1, CHUNK // length)):
        context = None
        if replay.site.context_name is not None:
            context = chunk[:, None].expand(-1, replay.context.shape[1], -1)
        replay.run(chunk[:, None].expand(-1, length, -1), context, route=route)


def _relative(ours: Tensor, theirs: Tensor) -> float:
    theirs = theirs.to(ours.dtype)
    largest = float(theirs.abs().max())
    return float((ours - theirs).abs().max()) / (largest or 1.0)
