"""What a layer caches, as one map: into how small a latent could the keys and values of all its heads be put?

Keys and values of a token x are x J with J = [W_K, W_V], the maps of all key/value heads side by side. A latent of k
numbers replaces J by a map of rank k, and the best one keeps the k largest squared singular values: of J (by weights,
every direction of x alike) or of X J, with real tokens X as rows. Keys and values are scaled to the same energy
first: a model may move scale between W_Q and W_K, or W_V and W_O, and compute the same. Real tokens are taken about
their mean: a bias holds that, and it is no distinction between tokens. Keys are those before rotary positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import torch
from torch import Tensor

from rankfall.linalg.spectra import gram_eigenvalues, smaller_gram
from rankfall.measures.measures import entropy_rank
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.heads.seen import Seen

SHARES = {"90": 0.9, "99": 0.99, "999": 0.999}
# The weights of most models are kept in float32 at best: below this relative size a singular value is rounding.
EPSILON = torch.finfo(torch.float32).eps
# Directions of larger layers are kept in half precision until all layers are known: so many numbers stay where they
# were found, the rest goes to the host.
MOST_EXACT, MOST_IN_PLACE = 2**22, 2**29
# Rounding of a sum that should be one.
WHOLE = 1e-9


@final
@dataclass(frozen=True)
class KeyValueRecord:
    """The joint key/value map of one attention layer.

    `cached`: numbers that the layer caches for one token now; `kv_latent`, `rope_dims`: its own latent and what of
    the key stands beside it (0: none), which is left out of the map. `rank`, `effective_rank`, `energy_rank` are
    those of the map. `weights_90`, `_99`, `_999`: the smallest latent that keeps 90, 99, 99.9 % of the energy by
    weights; `tokens_...`: on the `tokens_read` tokens; `others_...`: with the latent chosen on half of the
    passages and the energy measured on the other half, None where none of theirs keeps so much, or with one passage.
    `others_most` is the most that they keep. `keys_99`, `values_99`: keys and values alone, on tokens.

    `energy`: the share kept by a latent of each size. `overlap`: for every layer, in order, how much of the energy of
    this layer's latent (the one that keeps 90 % by weights) lies in the space that the other layer's latent reads;
    `previous` is that of the layer before, `chance` what a random space of that size would keep.
    """

    layer: int
    module: str
    width: int
    kv_heads: int
    key_dim: int
    value_dim: int
    cached: int
    kv_latent: int
    rope_dims: int
    rank: int
    effective_rank: float
    energy_rank: float
    weights_90: int
    weights_99: int
    weights_999: int
    tokens_read: int
    tokens_effective_rank: float | None
    tokens_90: int | None
    tokens_99: int | None
    tokens_999: int | None
    others_90: int | None
    others_99: int | None
    others_999: int | None
    others_most: float | None
    keys_99: int | None
    values_99: int | None
    previous: float | None = None
    chance: float | None = None
    energy: tuple[dict[str, Any], ...] = ()
    overlap: tuple[float | None, ...] = ()
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """The layer as `--json` prints it."""
        table = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**table, "energy": list(self.energy), "overlap": list(self.overlap), "notes": list(self.notes)}

    def line(self) -> dict[str, Any]:
        """The layer as a line of a table."""
        table = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("energy", "overlap")}
        return {**table, "notes": "; ".join(self.notes)}

    def energy_lines(self) -> list[dict[str, Any]]:
        """One line for each size of latent."""
        return [{"layer": self.layer, "module": self.module, **one} for one in self.energy]


class KeyValues:
    """Collects the records of a model's layers as their maps are found; gives them when all are."""

    def __init__(self) -> None:
        self._records: list[KeyValueRecord] = []
        self._spaces: list[tuple[Tensor, Tensor]] = []
        self._in_place = 0

    def take(self, maps: HeadMaps, seen: Seen | None) -> None:
        """One layer: its maps and the tokens that it was given."""
        keys, values = joint_parts(maps)
        energies, directions = _read_directions(_balanced(keys, values))
        record = _measured(maps, keys, values, energies, seen)
        space = directions[:, : record.weights_90]
        self._in_place += space.numel()
        device = space.device if self._in_place <= MOST_IN_PLACE else "cpu"
        kept = space.to(device, torch.float32 if space.numel() <= MOST_EXACT else torch.float16)
        self._spaces.append((energies[: record.weights_90], kept))
        self._records.append(record)

    def records(self) -> tuple[KeyValueRecord, ...]:
        """One for each layer, in the order in which they run."""
        made = []
        table = _overlaps(self._spaces)
        for number, record in enumerate(self._records):
            shares = tuple(table[number])
            earlier = self._spaces[number - 1][1] if number else None
            alike = number > 0 and shares[number - 1] is not None
            made.append(
                replace(
                    record,
                    overlap=shares,
                    previous=shares[number - 1] if alike else None,
                    chance=earlier.shape[1] / earlier.shape[0] if alike and earlier is not None else None,
                )
            )
        return tuple(made)


def joint_parts(maps: HeadMaps) -> tuple[Tensor, Tensor]:
    """Keys (c, g r) and values (c, g v) of all heads as maps of a token; without what stands beside a latent."""
    key = maps.key
    if maps.latents.from_latent:
        key = key[..., torch.tensor(maps.latents.from_latent, device=key.device)]
    return key.movedim(0, 1).flatten(1), maps.value.movedim(0, 1).flatten(1)


def _measured(maps: HeadMaps, keys: Tensor, values: Tensor, energies: Tensor, seen: Seen | None) -> KeyValueRecord:
    width = keys.shape[0]
    groups, latents = maps.key.shape[0], maps.latents
    singular = energies.sqrt()
    by_weights = _kept(energies)
    largest = min(width, keys.shape[1] + values.shape[1], latents.keys or width)
    sizes = latent_sizes(largest)
    columns: dict[str, Tensor | None] = {"by_weights": by_weights, "on_tokens": None, "on_others": None}
    found: dict[str, Any] = dict.fromkeys(("tokens_effective_rank", "others_most", "keys_99", "values_99"))
    found["tokens_read"] = 0
    if seen is not None and seen.keys.shape[0] > 1 and seen.keys.shape[1] == width:
        tokens = seen.keys.to(keys.device).double()
        centred = tokens - tokens.mean(dim=0)
        parts = centred @ keys, centred @ values
        spectrum = _energies(_balanced(*parts))
        alone = [_needed(_kept(_energies(part)), SHARES["99"]) for part in parts]
        columns["on_tokens"] = _kept(spectrum)
        columns["on_others"] = _on_others(parts, seen.passages.to(keys.device))
        found |= {
            "tokens_read": tokens.shape[0],
            "tokens_effective_rank": float(entropy_rank(spectrum.sqrt()[None])[0]),
            "keys_99": alone[0],
            "values_99": alone[1],
            "others_most": None if columns["on_others"] is None else float(columns["on_others"][-1]),
        }
    for name, column in (("weights", "by_weights"), ("tokens", "on_tokens"), ("others", "on_others")):
        kept = columns[column]
        found |= {f"{name}_{key}": None if kept is None else _needed(kept, share) for key, share in SHARES.items()}
    return KeyValueRecord(
        layer=maps.layer,
        module=maps.name,
        width=width,
        kv_heads=groups,
        key_dim=maps.key.shape[-1],
        value_dim=maps.value.shape[-1],
        cached=latents.keys + latents.beside
        if latents.keys
        else groups * (maps.key.shape[-1] + maps.value.shape[-1]),
        kv_latent=latents.keys,
        rope_dims=latents.beside,
        rank=int((singular > width * EPSILON * singular[0]).sum()),
        effective_rank=float(entropy_rank(singular[None])[0]),
        energy_rank=float(entropy_rank(energies[None])[0]),
        energy=tuple(
            {"latent": size, **{name: _share(kept, size) for name, kept in columns.items()}} for size in sizes
        ),
        notes=_notes(maps),
        **found,
    )


def _notes(maps: HeadMaps) -> tuple[str, ...]:
    said = ["keys are those before rotary positions"] if maps.rotary else []
    if maps.qk_norm and not maps.latents.keys:
        said.append("keys are those before their norm, times its gain")
    return (*said, *(one for one in (maps.latents.note,) if one))


def latent_sizes(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: two to an octave, and the largest."""
    doubled = [2**power for power in range(largest.bit_length())]
    return sorted({one for base in doubled for one in (base, base * 3 // 2) if 0 < one <= largest} | {largest})


def _balanced(keys: Tensor, values: Tensor) -> Tensor:
    """Side by side, each with energy one half; a part without any energy stays."""
    scaled = [part / (2**0.5 * torch.linalg.matrix_norm(part).clamp_min(1e-300)) for part in (keys, values)]
    return torch.cat(scaled, dim=1)


def _energies(matrix: Tensor) -> Tensor:
    """Squared singular values, largest first."""
    return gram_eigenvalues(smaller_gram(matrix)).flip(-1)


def _kept(energies: Tensor) -> Tensor:
    """The share of the energy in the first k directions, for k = 1, 2, ..."""
    return energies.cumsum(dim=0) / energies.sum().clamp_min(1e-300)


def _needed(kept: Tensor, share: float) -> int | None:
    """The smallest latent that keeps the share."""
    if float(kept[-1]) < share - WHOLE:
        return None
    return int((kept < share - WHOLE).sum()) + 1


def _share(kept: Tensor | None, size: int) -> float | None:
    return None if kept is None else float(kept[min(size, kept.shape[0]) - 1])


def _on_others(parts: Sequence[Tensor], passages: Tensor) -> Tensor | None:
    """The share of one half of the passages' energy that latents chosen on the other half keep; mean of both ways.

    `parts` are keys and values of the tokens, each up to one vector. Mean, scales and directions are those of the
    half on which the latent was chosen.
    """
    first = passages % 2 == 0
    halves = [(first, ~first), (~first, first)]
    if min(int(half.sum()) for half in (first, ~first)) < 2:
        return None
    curves = []
    for chosen, measured in halves:
        middles = [part[chosen].mean(dim=0) for part in parts]
        own, other = ([p[rows] - m for p, m in zip(parts, middles, strict=True)] for rows in (chosen, measured))
        scales = [2**0.5 * torch.linalg.matrix_norm(part).clamp_min(1e-300) for part in own]
        fitted, held = (torch.cat([p / s for p, s in zip(side, scales, strict=True)], dim=1) for side in (own, other))
        along = _along(held, fitted)
        curves.append((along.square().sum(dim=0).cumsum(dim=0) / held.square().sum().clamp_min(1e-300)).clamp_max(1))
    shortest = min(one.shape[0] for one in curves)
    return (curves[0][:shortest] + curves[1][:shortest]) / 2


def _along(held: Tensor, fitted: Tensor) -> Tensor:
    """Coordinates of the held-out rows along the right singular vectors of the fitted ones, by the smaller side;
    zero along those of no energy, which nothing was fitted to."""
    wide = fitted.shape[0] < fitted.shape[1]
    energies, vectors = torch.linalg.eigh(fitted @ fitted.mT if wide else fitted.mT @ fitted)
    order = energies.flip(0).clamp_min(0)
    known = order > 1e-12 * order[0]
    if not wide:
        return (held @ vectors.flip(1)) * known
    return (held @ fitted.mT @ vectors.flip(1)) * torch.where(known, order.clamp_min(1e-300).rsqrt(), 0.0)


def _read_directions(joint: Tensor) -> tuple[Tensor, Tensor]:
    """Squared singular values of the map, largest first, and the directions of a token (d, k) that it reads."""
    d, columns = joint.shape
    energies, vectors = torch.linalg.eigh(joint @ joint.mT if d <= columns else joint.mT @ joint)
    vectors = vectors.flip(1)
    return energies.flip(0).clamp_min(0), vectors if d <= columns else torch.linalg.qr(joint @ vectors).Q


def _overlaps(spaces: Sequence[tuple[Tensor, Tensor]]) -> list[list[float | None]]:
    """For each space (its energies, its directions) the share of its energy that lies in each of the others; None
    where they are spaces of different vectors. One product tells of a pair both ways."""
    found: list[list[Tensor | None]] = [[None] * len(spaces) for _ in spaces]
    for i, (energies, space) in enumerate(spaces):
        mine = space.to(energies.device, torch.float32)
        for j, (others, other) in enumerate(spaces[: i + 1]):
            if other.shape[0] != space.shape[0]:
                continue
            inside = (other.to(energies.device, torch.float32).mT @ mine).square_()
            for row, column, part, along in ((i, j, energies, 0), (j, i, others, 1)):
                held = (inside.sum(dim=along).double() * part.to(inside.device)).sum()
                found[row][column] = held.to(part.device) / part.sum().clamp_min(1e-300)
    return [[None if one is None else float(one) for one in row] for row in found]


def by_number(records: Sequence[KeyValueRecord], name: str) -> list[int]:
    """One number of each layer that has it."""
    return [value for one in records if (value := getattr(one, name)) is not None]
