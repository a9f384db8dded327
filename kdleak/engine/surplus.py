"""Break-ins that nobody waits for any more.

A request to break in that another stop has overtaken stays on its way, at the target or in the
debugger, and stops the target right after its next resume.
"""

from __future__ import annotations

from kdleak.model import Stop, StopKind

_SECONDS = 2.0  # of running, in which a request left over would have been noticed


class SurplusBreakIns:
    """Tells stops that answer a request left over, which are resumed unseen.

    Args:
        limit: most of them after one request.

    Attributes:
        absorbed: how many were resumed so far.
    """

    def __init__(self, limit: int) -> None:
        self.absorbed = 0
        self._limit = limit
        self._left = 0
        self._seconds = 0.0

    def expect(self) -> None:
        """A request was made: it, or one before it, may come once more."""
        self._left, self._seconds = self._limit, _SECONDS

    def ran(self, seconds: float) -> None:
        """The target ran for so long."""
        self._seconds -= seconds

    def is_one(self, stop: Stop) -> bool:
        """Whether a stop answers such a request, as far as its kind and the time tell."""
        return stop.kind is StopKind.BREAK_IN and self._seconds > 0 and self._left > 0

    def absorb(self) -> None:
        """Count a stop that is resumed unseen."""
        self.absorbed += 1
        self._left -= 1
