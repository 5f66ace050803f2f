"""Help, version and completion answer at once: they load no numerical, plotting or model library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from rankfall.catalogue import ENGINES, FAMILIES, FIGURES, MASKS, NAMED_MODELS, NORMS, TASKS, VERBS

HEAVY = (
    "torch",
    "numpy",
    "scipy",
    "pandas",
    "transformers",
    "matplotlib",
    "plotly",
    "duckdb",
    "pyarrow",
    "jaxtyping",
)
CALLS = """
import contextlib, io, json, sys
from rankfall.cli.main import run

printed = {}
for words in json.loads(sys.argv[1]):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            run(words)
        except SystemExit as ended:
            assert not ended.code, words
    printed[" ".join(words)] = text.getvalue()
    loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
    assert not loaded, (words, loaded)
print(json.dumps(printed))
"""


def called(calls: list[list[str]], **environment: str) -> dict[str, str]:
    """What each call printed, in a process of its own that loads nothing heavy."""
    done = subprocess.run(
        [sys.executable, "-c", CALLS, json.dumps(calls), json.dumps(HEAVY)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, str] = json.loads(done.stdout)
    return printed


@pytest.fixture(scope="module")
def helped() -> dict[str, str]:
    return called([["--version"], ["--help"], [], *([verb, "--help"] for verb in VERBS.names)])


def test_version_and_help_load_nothing_heavy(helped: dict[str, str]) -> None:
    assert helped["--version"].startswith("rankfall ")
    for verb in VERBS.names:
        first = str(VERBS[verb].__doc__).partition("\n")[0][:60]
        assert f" {verb} " in helped["--help"]
        assert first[:20] in helped["--help"]
        assert first[:20] in helped[f"{verb} --help"]


@pytest.mark.parametrize(
    ("verb", "registry"),
    [
        ("simulate", MASKS),
        ("simulate", NORMS),
        ("equilibrium", FAMILIES),
        ("plan", TASKS),
        ("sweep", ENGINES),
        ("reproduce", FIGURES),
        ("audit", NAMED_MODELS),
    ],
    ids=lambda one: getattr(one, "kind", one),
)
def test_help_offers_what_the_catalogue_lists(verb: str, registry: Any, helped: dict[str, str]) -> None:
    text = " ".join(helped[f"{verb} --help"].replace("│", " ").split())
    assert [name for name in registry.names if name not in text] == []


@pytest.mark.parametrize(
    ("line", "registry", "among"),
    [
        ("rankfall s", VERBS, {"simulate", "survey", "sweep"}),
        ("rankfall simulate --mask wi", MASKS, {"window"}),
        ("rankfall simulate --norm l", NORMS, {"layer"}),
        ("rankfall equilibrium --family st", FAMILIES, {"star"}),
        ("rankfall plan --task b", TASKS, {"biased"}),
        ("rankfall sweep --engine r", ENGINES, {"ray"}),
        ("rankfall reproduce wu/fig3", FIGURES, {"wu/fig3"}),
        ("rankfall audit sm", NAMED_MODELS, {"smollm2"}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_shell_completes_from_the_catalogue(line: str, registry: Any, among: set[str]) -> None:
    words = line.split()
    expected = [name for name in registry.names if name.startswith(words[-1])]
    assert among <= {*expected}
    asked = {"_RANKFALL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    assert called([[]], **asked)[""].split() == expected
