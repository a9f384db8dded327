"""The operations of an engine that a dump cannot carry out."""

from __future__ import annotations

from typing import NoReturn

from kdleak.errors import NotLive
from kdleak.model import Stop


class NoLiveTarget:
    """Refuses what needs a machine that runs.

    Attributes:
        where: the target as the user named it.
        requests: round trips to a target: none.
        seconds_stopped: seconds a target was stopped: none.
    """

    where: str
    requests = 0
    seconds_stopped = 0.0

    def write(self, address: int, data: bytes) -> None:
        """Refused.

        Raises:
            NotLive: always.
        """
        del address, data
        self._refuse("writing memory")

    def resume(self, timeout: float | None) -> Stop:
        """Refused.

        Raises:
            NotLive: always.
        """
        del timeout
        self._refuse("letting the target run")

    def interrupt(self, timeout: float = 30.0) -> Stop:
        """Refused.

        Raises:
            NotLive: always.
        """
        del timeout
        self._refuse("stopping the target")

    def _refuse(self, tried: str) -> NoReturn:
        raise NotLive(
            f"{tried} of {self.where}",
            "it is a crash dump, nothing runs in it",
            "attach to a running machine with -k for that",
        )
