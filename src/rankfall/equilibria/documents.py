"""An equilibrium as JSON and back: tokens, value matrix, attention matrix and norm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankfall.equilibria.layer import NormalisedLayer
from rankfall.errors import RequestError, require
from rankfall.sources import read_json

MATRICES = ("tokens", "value", "attention")


def to_document(layer: NormalisedLayer, tokens: Tensor) -> dict[str, Any]:
    """Tokens, value matrix, attention matrix and norm."""
    return {
        "tokens": tokens.tolist(),
        "value": layer.value.tolist(),
        "attention": layer.attention(tokens).tolist(),
        "norm": layer.norm,
    }


def from_document(document: Mapping[str, Any]) -> tuple[NormalisedLayer, Tensor]:
    """The layer (attention as a constant matrix) and the tokens of a record."""
    tokens, value, attention = (_matrix(document, name) for name in MATRICES)
    require(
        value.shape[0] == value.shape[1] == tokens.shape[1] and attention.shape == (len(tokens), len(tokens)),
        required="tokens (n, d), a square value matrix (d, d) and attention (n, n)",
        got=f"tokens {tuple(tokens.shape)}, value {tuple(value.shape)}, attention {tuple(attention.shape)}",
        remedy="a file that `rankfall equilibrium --json` printed fits",
    )
    layer = NormalisedLayer.with_weights(attention, value, str(document.get("norm", "unit")))
    return layer, tokens


def read_document(path: Path) -> tuple[NormalisedLayer, Tensor]:
    """The same from a JSON file."""
    try:
        document = read_json(path)
    except OSError as error:
        raise RequestError(
            required="a readable JSON file", got=f"{path}: {error.strerror}", remedy="check the path"
        ) from error
    except ValueError as error:
        raise RequestError(
            required="a JSON file", got=f"{path}: {error}", remedy="write it with `rankfall equilibrium --json`"
        ) from error
    require(
        isinstance(document, dict),
        required="one JSON object with tokens, value and attention",
        got=type(document).__name__,
        remedy="write it with `rankfall equilibrium --json`",
    )
    return from_document(document)


def _matrix(document: Mapping[str, Any], name: str) -> Tensor:
    try:
        matrix = torch.tensor(document[name], dtype=torch.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            required=f"a matrix of numbers named {name}",
            got=f"{type(error).__name__}: {error}",
            remedy="write the file with `rankfall equilibrium --json`",
        ) from error
    require(
        matrix.ndim == 2 and matrix.numel() > 0 and bool(torch.isfinite(matrix).all()),
        required=f"{name} as a matrix of finite numbers",
        got=f"shape {tuple(matrix.shape)}",
        remedy="give one row per token or coordinate",
    )
    return matrix
