"""Blocking KD links over byte streams, both roles."""

from __future__ import annotations

import time
from collections.abc import Callable

from kdleak.kd.blocking import BlockingHost, BlockingTarget
from kdleak.kd.media import Medium
from kdleak.kd.reliable import Role
from kdleak.kd.serial_machine import SerialMachine

MAX_READ = 0x800
"""Bytes per read request: half of what fits, which every kernel accepts."""

BREAK_IN_SECONDS = 2.0
"""A 0x62 too many breaks in a second time after the next resume: patience."""


class SerialHost(BlockingHost):
    """The debugger's end of a serial link.

    Args:
        medium: an open stream; the link owns it from here on.
        clock: seconds, monotonic.
        retry: seconds after which an unacknowledged packet is sent again.
    """

    def __init__(
        self,
        medium: Medium,
        *,
        where: str = "",
        clock: Callable[[], float] = time.perf_counter,
        retry: float = 1.0,
    ) -> None:
        super().__init__(
            SerialMachine(Role.HOST, retry=retry),
            medium,
            where=where or getattr(medium, "where", "serial line"),
            max_read=MAX_READ,
            clock=clock,
            handshakes=False,
            break_in_interval=BREAK_IN_SECONDS,
        )


class SerialTarget(BlockingTarget):
    """The debuggee's end of a serial link; arguments as ``SerialHost``."""

    def __init__(
        self,
        medium: Medium,
        *,
        where: str = "",
        clock: Callable[[], float] = time.perf_counter,
        retry: float = 1.0,
    ) -> None:
        super().__init__(
            SerialMachine(Role.TARGET, retry=retry),
            medium,
            where=where or getattr(medium, "where", "serial line"),
            max_read=MAX_READ,
            clock=clock,
        )
