"""Run one input in this process and judge what came: the rule that every input is held to."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fuzz.case import Case, apply
from fuzz.templates import place

SECONDS = 20.0
"""Processor time that an input may take."""
MOST_REFUSAL = 2_000
"""Characters of a refusal."""
MOST_NOTES = 20_000
"""Characters on standard error altogether."""


class TooLong(BaseException):
    """Raised inside an input that used its processor time; not an Exception, so that nothing swallows it."""


@dataclass(frozen=True)
class Verdict:
    """The exit status, and what is wrong with it all, with the place in the code; None for a sound answer."""

    status: int
    wrong: str | None = None
    where: str = ""


def judge(case: Case, templates: Path, sandbox: Path) -> Verdict:
    """Prepare the folder, run the command line, and hold the outcome to the rule."""
    from rankfall.cli.main import run

    place(templates / case.template, sandbox)
    os.chdir(sandbox)
    apply(case.edits)
    out, notes = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["rankfall", *case.arguments]
    old = signal.signal(signal.SIGPROF, _stop)
    try:
        # Again every second: what is thrown into a destructor or a callback is lost, and nothing would stop the rest.
        signal.setitimer(signal.ITIMER_PROF, SECONDS, 1.0)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(notes):
            run(list(case.arguments))
        return Verdict(0, "did not exit")
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else 1
        return Verdict(status, *_faults(case, status, out.getvalue(), notes.getvalue()))
    except TooLong as stopped:
        return Verdict(-1, f"over {SECONDS:g} s", _deepest(stopped))
    except BaseException as error:
        return Verdict(-1, f"{type(error).__name__} out of the command: {str(error)[:200]}", _deepest(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
        sys.argv = before


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _faults(case: Case, status: int, out: str, notes: str) -> tuple[str | None, str]:
    """What is wrong with an outcome, and where."""
    if "Traceback (most recent call last)" in notes or status not in (0, 1, 2, 3):
        last = [
            line for line in notes.splitlines() if re.match(r"\w[\w.]*(Error|Exception|Interrupt|Warning)\b", line)
        ]
        places = re.findall(r'File "[^"]*?/(rankfall/[^"]+)", line (\d+)', notes)
        where = ":".join(places[-1]) if places else ""
        return f"status {status}: {last[-1][:200] if last else notes[-200:]}", where
    if len(notes) > MOST_NOTES:
        return f"{len(notes)} characters on standard error", ""
    if status == 2:
        line = notes.rstrip("\n").rpartition("\n")[2]
        if not line.startswith("rankfall: "):
            return f"no refusal, but: {line[:200]!r}", ""
        if len(line) > MOST_REFUSAL:
            return f"a refusal of {len(line)} characters", ""
    if "\x1b" in out + notes:
        return "an escape code was printed", ""
    if "--json" in case.arguments and "--help" not in case.arguments and (out or status != 2):
        try:
            if not isinstance(json.loads(out), dict):
                return "JSON that is not an object", ""
        except ValueError:
            return f"not one JSON object: {out[:100]!r}", ""
    return None, ""


def _deepest(error: BaseException) -> str:
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "rankfall/" in one.filename]
    return f"{frames[-1].filename.rpartition('src/')[2]}:{frames[-1].lineno}" if frames else ""
