"""Sections of the navigation that follow from the code: a guide per verb, the pages of the reference."""

from __future__ import annotations

from typing import Any


def on_config(config: Any, **_: Any) -> Any:
    """Called by mkdocs with its settings; fills the two sections that are empty there."""
    config["nav"] = completed(config["nav"])
    return config


def completed(nav: list[Any]) -> list[Any]:
    """The navigation of mkdocs.yml with its empty sections filled."""
    made = {"Commands": command_pages(), "Reference": reference_pages()}
    return [
        {title: made.get(title, pages) for title, pages in entry.items()} if isinstance(entry, dict) else entry
        for entry in nav
    ]


def command_pages() -> list[dict[str, str]]:
    from rankfall.catalogue import VERBS

    return [{verb: f"guide/{verb}.md"} for verb in VERBS.names]


def reference_pages() -> list[Any]:
    return [
        "reference/index.md",
        {"Masks": "reference/masks.md"},
        {"Norms": "reference/norms.md"},
        {"Options of every command": "reference/cli.md"},
    ]
