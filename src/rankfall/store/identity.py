"""A configuration is its own name: frozen dataclass -> canonical JSON -> hash. A file is known by its checksum."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankfall.errors import require

SCHEMA = 1
"""Raised only when the meaning of a configuration changes, so that old results are not taken for new ones."""

DIGITS = 16


def identity(config: Any) -> str:
    """The first 16 hex digits of the SHA-256 of the configuration's canonical JSON."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:DIGITS]


def canonical(config: Any) -> str:
    """One text per configuration: keys sorted, no spaces, numbers as Python writes them, the schema inside."""
    document = {"schema": SCHEMA, "config": settings(config)}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def settings(config: Any) -> dict[str, Any]:
    """The configuration as a plain mapping.

    A field declared with `metadata={"later": True}` was added after results had been published: at its default it
    is left out, so that every older identity stays what it was.
    """
    if isinstance(config, Mapping):
        found = dict(config)
    else:
        require(
            dataclasses.is_dataclass(config) and not isinstance(config, type),
            required="a dataclass or a mapping as configuration",
            got=type(config).__name__,
            remedy="make it a frozen dataclass of plain values",
        )
        found = {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if not (field.metadata.get("later") and getattr(config, field.name) == field.default)
        }
    for key, value in found.items():
        require(
            value is None or isinstance(value, (str, int, float, bool)),
            required=f"{key} to be text, a number, true, false or nothing",
            got=type(value).__name__,
            remedy="a configuration holds plain values only, so that its JSON is its identity",
        )
    return found


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
