"""The English text that ships with the package, written for it."""

from __future__ import annotations

from importlib.resources import files


def shipped_text() -> str:
    """About seven hundred words in several paragraphs."""
    return (files("rankfall.audit.texts") / "harbour.txt").read_text(encoding="utf-8")
