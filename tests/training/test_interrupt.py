"""Ctrl-C and SIGTERM: a request the first time, an end the second."""

from __future__ import annotations

import signal
import threading

import pytest

from rankfall.training.work import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    told: list[int] = []
    with stop_on_signals(lambda: told.append(1)) as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
    assert told == [1]
    assert signal.getsignal(number) is before


def test_the_second_ctrl_c_ends_at_once() -> None:
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_another_thread_is_never_asked() -> None:
    answers: list[bool] = []

    def work() -> None:
        with stop_on_signals() as stop:
            answers.append(stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
