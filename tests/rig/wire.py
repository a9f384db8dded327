"""A UDP wire between a target and its debugger that can be cut and mended."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from typing import Self

_LARGEST = 1 << 16


class Wire:
    """Carries datagrams between a target that sends to ``target_side`` and a debugger.

    Args:
        debugger_port: where the debugger listens, on this machine.

    Attributes:
        target_side: the port that the target sends to.
        dropped: datagrams that came while it was cut.
    """

    def __init__(self, debugger_port: int) -> None:
        self._debugger = ("127.0.0.1", debugger_port)
        self._near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._near.bind(("127.0.0.1", 0))
        self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._far.bind(("127.0.0.1", 0))
        self.target_side: int = self._near.getsockname()[1]
        self.dropped = 0
        self._target: tuple[str, int] | None = None
        self._cut = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._carry)

    def cut(self) -> None:
        """From now on nothing gets through."""
        self._cut.set()

    def mend(self) -> None:
        """From now on everything gets through."""
        self._cut.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join(10)
        self._near.close()
        self._far.close()

    def _carry(self) -> None:
        while not self._end.is_set():
            for one in select.select([self._near, self._far], [], [], 0.1)[0]:
                # Where nobody listens, the system reports it at the next call.
                with contextlib.suppress(ConnectionError):
                    self._pass_on(one)

    def _pass_on(self, came_at: socket.socket) -> None:
        data, source = came_at.recvfrom(_LARGEST)
        if came_at is self._near:
            self._target = source
        if self._cut.is_set():
            self.dropped += 1
        elif came_at is self._near:
            self._far.sendto(data, self._debugger)
        elif self._target is not None:
            self._near.sendto(data, self._target)
