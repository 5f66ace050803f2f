"""A slice of the fuzzer: the corpus of past failures, some random inputs of every kind, and its judge itself."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import rankfall
from rankfall.catalogue import VERBS

ROOT = Path(rankfall.__file__).parents[2]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are limited as Linux does it")


def test_the_corpus_and_a_slice_of_every_kind_are_sound() -> None:
    command = [sys.executable, "-m", "fuzz", "--count", "40", "--seed", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    kept = len((ROOT / "fuzz" / "corpus.jsonl").read_text().splitlines())
    assert told["inputs"] == {"corpus": kept, "commands": 24, "grids": 10, "stores": 4, "models": 2}
    assert told["failed"] == 0
    assert told["statuses"]["commands 0"] > 0
    assert told["statuses"]["commands 2"] > 0


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    from fuzz.case import Case
    from fuzz.judge import judge

    (tmp_path / "templates" / "bare").mkdir(parents=True)

    def of(*arguments: str) -> str | None:
        return judge(Case(arguments, "bare"), tmp_path / "templates", tmp_path / "inner" / "box").wrong

    return of


BOUNDS = ("bounds", "--width", "8", "--rank", "2", "--heads", "1", "--json")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise KeyError('inner')", "status 70: KeyError: 'inner'"),
        ("print('more')", "not one JSON object"),
        ("raise RequestError(required='a', got='\\x1b[31m', remedy='b')", None),
        ("import sys; sys.stderr.write('x' * 30_000)", "30000 characters on standard error"),
        ("import sys; sys.stderr.write('\\x1b[31m')", "an escape code was printed"),
        ("import sys; sys.exit(2)", "no refusal, but"),
        ("import sys; sys.exit(5)", "status 5"),
        ("raise BaseException('x')", "BaseException out of the command"),
    ],
)
def test_the_judge_sees_each_fault(judged, fault: str, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankfall.api import bounds
    from rankfall.errors import RequestError

    real = bounds.bounds

    def faulty(*arguments: object, **options: object) -> object:
        exec(fault, {"RequestError": RequestError})
        return real(*arguments, **options)  # type: ignore[arg-type]

    assert judged(*BOUNDS) is None
    monkeypatch.setattr(bounds, "bounds", faulty)
    found = judged(*BOUNDS)
    assert found is None if said is None else found is not None and said in found


def test_the_judge_stops_what_takes_too_long(judged, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuzz import judge

    from rankfall.api import bounds

    def endless(*arguments: object, **options: object) -> None:
        while True:
            pass

    monkeypatch.setattr(judge, "SECONDS", 0.05)
    monkeypatch.setattr(bounds, "bounds", endless)
    assert judged(*BOUNDS) == "over 0.05 s"


def test_every_option_of_every_verb_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from fuzz.commands import NEVER, SHARES, command, parameters

    assert set(SHARES) == set(VERBS.names)
    tried: dict[str, set[str]] = {verb: set() for verb in SHARES}
    for number in range(6000):
        verb, *rest = command(random.Random(f"all {number}")).arguments or ("",)
        if verb in tried:
            tried[verb] |= set(rest)
    for verb in ("simulate", "bounds", "equilibrium", "plan", "runs", "sweep"):
        wanted = {one.spellings[0] for one in parameters(verb) if not one.argument and (verb, one.name) not in NEVER}
        assert wanted <= tried[verb], (verb, wanted - tried[verb])
