"""What one layer's weights give once and for all: joined maps, and how strong scores can get."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention import Heads, value_forms
from rankfall.attention.attend import expand_groups, head_scale


@final
class Prepared:
    """One layer's weights with what is computed from them at most once; weights shared by layers pay only once."""

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self.biased = heads.value_bias is not None or heads.output_bias is not None

    @cached_property
    def query(self) -> Float[Tensor, "... h d r"]:
        """Query maps with the factor of the scores in them."""
        return self.heads.query * head_scale(self.heads.scale, self.heads.query)

    @cached_property
    def query_bias(self) -> Float[Tensor, "... h r"] | None:
        """Query biases with the factor of the scores in them."""
        if self.heads.query_bias is None:
            return None
        factor = head_scale(self.heads.scale, self.heads.query)
        return self.heads.query_bias * (factor[..., 0] if isinstance(factor, Tensor) and factor.ndim > 0 else factor)

    @cached_property
    def joined(self) -> Float[Tensor, "... h d f"]:
        """Query, key and value maps side by side: one product instead of three."""
        heads = self.heads
        parts = [self.query, expand_groups(heads.key, heads.heads), expand_groups(heads.value, heads.heads)]
        widest = max(parts, key=lambda part: part.ndim).shape[:-3]
        return torch.cat([part.expand(*widest, *part.shape[-3:]) for part in parts], dim=-1).contiguous()

    def project(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n f"]:
        """Scaled queries, keys and values side by side, without biases."""
        if tokens.shape[0] == self.heads.heads == 1:
            return (tokens[0] @ self.joined.reshape(self.joined.shape[-2:]))[None, None]
        return tokens[:, None] @ self.joined

    def parts(self, projected: Float[Tensor, "b h n f"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (b, h, n, r), keys (b, h, n, r) and values (b, h, n, v) of what `project` gave."""
        rank = self.heads.rank
        query, key, value = projected.split([rank, rank, self.heads.value_rank], dim=-1)
        return query, key, value

    @cached_property
    def value_sum(self) -> Float[Tensor, "*b d o"]:
        """Sum over heads of V_h O_h: the layer's map when all heads average alike."""
        return self.value_maps.sum(dim=-3)

    @cached_property
    def value_maps(self) -> Float[Tensor, "*b h d o"]:
        """V_h O_h of every head."""
        return _single(value_forms(self.heads)).contiguous()

    @cached_property
    def score_forms(self) -> Float[Tensor, "*b h d d"]:
        """scale * W_q W_k^T of every head."""
        return _single(self.query @ expand_groups(self.heads.key, self.heads.heads).mT)

    @cached_property
    def only_score_form(self) -> Float[Tensor, "*b d d"]:
        """The same of a layer with one head."""
        return self.score_forms[..., 0, :, :]

    @cached_property
    def log_strength(self) -> float:
        """log of s with |score - row constant| <= s e^(2K + l) (1 + e^l) in normal form, biases left out."""
        norms = [float(torch.linalg.matrix_norm(weight).max()) for weight in (self.query, self.heads.key)]
        return self._log(norms[0] * norms[1] * self.heads.width)

    @cached_property
    def log_bias_strength(self) -> float:
        """log of s with |score from the query bias| <= s e^(K + l)."""
        if self.query_bias is None:
            return -math.inf
        bias = float(torch.linalg.vector_norm(self.query_bias, dim=-1).max())
        key = float(torch.linalg.matrix_norm(self.heads.key).max())
        return self._log(bias * key * self.heads.width**0.5)

    @staticmethod
    def _log(value: float) -> float:
        return math.log(value) if value > 0 else -math.inf


def _single(maps: Float[Tensor, "... h d o"]) -> Float[Tensor, "*b h d o"]:
    """A batch of one without its axis: single matrices multiply several times faster than a batch of one."""
    return maps[0] if maps.ndim == 4 and maps.shape[0] == 1 else maps


def take_heads(heads: Heads, index: Tensor) -> Heads:
    """The weights of these samples; weights that all samples share stay shared."""
    own_axes = {"query": 3, "key": 3, "value": 3, "output": 3, "output_bias": 1, "scale": 1}
    picked = {}
    for field in fields(heads):
        given = getattr(heads, field.name)
        batched = isinstance(given, Tensor) and given.ndim > own_axes.get(field.name, 2)
        picked[field.name] = given[index] if batched and given.shape[0] > 1 else given
    return Heads(**picked)
