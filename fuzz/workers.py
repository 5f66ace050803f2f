"""Inputs run in child processes with little memory, which may die or hang; their parent goes on."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzz.case import Case
from fuzz.judge import Verdict, judge

MORE_MEMORY = 4 << 30
"""Address space that a child may take beside what it was born with: PyTorch built for GPUs alone maps gigabytes."""
ROOM = 2 << 30
"""Free bytes of a folder in memory that make it fit for the inputs' files."""
BLOCKED = 25.0
"""Seconds without an answer after which a child that uses no processor time counts as hanging."""
LONGEST = 600.0
"""Seconds after which any child is given up."""


@dataclass(frozen=True)
class Outcome:
    """An input by its number, what it was, and how it ended."""

    number: int
    case: Case
    verdict: Verdict
    seconds: float


def outcomes(cases: Callable[[int], Case], numbers: Sequence[int], templates: Path) -> Iterator[Outcome]:
    """Every numbered case, judged in child processes; a new child begins after one that died."""
    left = list(numbers)
    while left:
        reader, writer = os.pipe()
        home = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_room()))
        child = os.fork()
        if child == 0:
            os.close(reader)
            _work(cases, left, templates, home, writer)
        os.close(writer)
        begun, done = time.monotonic(), 0
        with os.fdopen(reader, "rb", buffering=0) as lines:
            for said in _said(lines, child):
                took, begun = time.monotonic() - begun, time.monotonic()
                yield Outcome(left[done], cases(left[done]), said, took)
                done += 1
        _, status = os.waitpid(child, 0)
        if done < len(left) and status != 0:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            wrong = "hangs" if number == signal.SIGKILL else f"the process died: signal {number}, status {status}"
            yield Outcome(left[done], cases(left[done]), Verdict(-1, wrong), time.monotonic() - begun)
            done += 1
        elif done < len(left):
            raise RuntimeError("a child ended before its work")
        left = left[done:]
        shutil.rmtree(home, ignore_errors=True)


def _room() -> str | None:
    """Memory in place of a disk, where the system has some: inputs write much and keep nothing."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > ROOM else None


def _said(lines: object, child: int) -> Iterator[Verdict]:
    """Verdicts as the child reports them; a child that blocks is killed."""
    buffer, since, used = b"", time.monotonic(), _processor_time(child)
    while True:
        ready, _, _ = select.select([lines], [], [], 1.0)
        if ready:
            chunk = lines.read(1 << 16)  # type: ignore[attr-defined]
            if not chunk:
                return
            *whole, buffer = (buffer + chunk).split(b"\n")
            for line in whole:
                yield Verdict(**json.loads(line))
            since, used = time.monotonic(), _processor_time(child)
            continue
        waited = time.monotonic() - since
        idle = waited > BLOCKED and _processor_time(child) - used < 0.02 * waited
        if idle or waited > LONGEST:
            os.kill(child, signal.SIGKILL)


def _processor_time(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _work(cases: Callable[[int], Case], numbers: Sequence[int], templates: Path, home: Path, writer: int) -> None:
    """The life of a child: limits first, then one case after the other, then a silent end."""
    try:
        most = _address_space() + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        scratch = home / "scratch"
        scratch.mkdir()
        os.environ |= {"HOME": str(home), "TMPDIR": str(scratch), "RANKFALL_CACHE": str(home / "cache")}
        tempfile.tempdir = str(scratch)
        silence = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(silence, handle)
        for number in numbers:
            verdict = judge(cases(number), templates, home / "inner" / "box")
            os.write(writer, json.dumps(asdict(verdict)).encode() + b"\n")
    except BaseException:
        import traceback

        (home.parent / "fuzz-harness-error.txt").write_text(traceback.format_exc())
        os._exit(3)
    os._exit(0)
