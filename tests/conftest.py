"""What every test finds as it should be."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """Commands keep Ctrl+C from cutting off their end: for good, in a process of their own."""
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:  # started by nohup, or in the background of a script
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
