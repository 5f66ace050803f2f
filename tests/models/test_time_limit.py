"""Loading that takes too long is stopped and refused in one line, and nothing of it stays."""

from __future__ import annotations

import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.calls import refused
from tests.models.small import save_small

from rankfall.errors import RequestError
from rankfall.models.load import folder as loader
from rankfall.models.load.confinement import time_limit
from rankfall.models.load.open import open_model

SHORT = 0.2
NEVER = threading.Event()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_small(tmp_path / "model")


@pytest.fixture
def waiting_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A library that waits for something that never comes, after the temporary folder was made."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def wait(table: Any, stage: Path) -> Any:
        assert stage.parent == scratch
        NEVER.wait()

    monkeypatch.setattr(loader, "library_config", wait)
    return scratch


def test_a_loader_that_waits_for_ever_is_refused_and_leaves_nothing(model: Path, waiting_loader: Path) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(RequestError, match=r"model to load within 0\.2 seconds; got still loading then") as caught:
        open_model(model, load_seconds=SHORT)
    assert "\n" not in str(caught.value)
    assert list(waiting_loader.iterdir()) == []
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_command_refuses_in_one_line(
    model: Path, waiting_loader: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "allow more with --load-seconds" in refused(capsys, "audit", model, "--load-seconds", SHORT)


def test_code_that_catches_everything_does_not_get_away_with_it() -> None:
    def stubborn() -> None:
        try:
            NEVER.wait()
        except BaseException:
            return

    with pytest.raises(RequestError, match="it to load within"), time_limit(SHORT, "it"):
        stubborn()


def test_a_model_that_is_quick_enough_is_opened_and_the_timer_stopped(model: Path) -> None:
    assert open_model(model, load_seconds=300).network is not None
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_errors_inside_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), time_limit(300, "it"):
        _ = 1 / 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_timer_that_was_there_goes_on() -> None:
    signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        with time_limit(300, "it"):
            assert signal.getitimer(signal.ITIMER_REAL)[0] <= 300
        assert 300 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_another_thread_loads_without_a_limit(model: Path) -> None:
    opened: list[Any] = []
    thread = threading.Thread(target=lambda: opened.append(open_model(model, load_seconds=300)))
    thread.start()
    thread.join()
    assert len(opened) == 1


def test_no_time_at_all_is_refused(model: Path) -> None:
    with pytest.raises(RequestError, match="a positive number of seconds to load in; got 0"):
        open_model(model, load_seconds=0)


def test_a_library_stopped_between_two_defaults_leaves_none_changed() -> None:
    """It may be stopped just before it takes back a default device or number format."""
    import torch

    def stopped() -> None:
        torch.device("meta").__enter__()
        torch.set_default_dtype(torch.float16)
        NEVER.wait()

    with pytest.raises(RequestError, match="it to load within"), time_limit(SHORT, "it"):
        stopped()
    made = torch.empty(1)
    assert (made.device.type, made.dtype) == ("cpu", torch.float32)
    assert torch.get_default_device().type == "cpu"


def test_no_time_at_all_is_refused_like_too_little() -> None:
    with pytest.raises(RequestError, match="it to load within"), time_limit(5e-324, "it"):
        NEVER.wait()


def test_an_interruption_lost_while_an_object_is_deleted_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Python cannot raise inside of `__del__`: it prints, and goes on."""

    class Slow:
        def __del__(self) -> None:
            NEVER.wait()

    def stopped() -> None:
        kept = Slow()
        del kept
        NEVER.wait()

    with pytest.raises(RequestError, match="it to load within"), time_limit(SHORT, "it"):
        stopped()
    assert capsys.readouterr().err == ""
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
