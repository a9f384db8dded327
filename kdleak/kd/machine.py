"""What a blocking link drives: a state machine that takes bytes and time and gives bytes.

Both media and both roles have the same surface, so one driver serves all four, and tests run
them against each other in simulated time.
"""

from __future__ import annotations

from typing import Optional, Protocol, Tuple

from kdleak.kd.link import Statistics
from kdleak.kd.reliable import Reliable

Address = Tuple[str, int]
"""IP address and UDP port."""

Parcel = Tuple[bytes, Optional[Address]]
"""Bytes for or from the medium; the address is None on a byte stream."""


class Machine(Protocol):
    """Sans-io link of one role over one medium.

    Attributes:
        statistics: counters.
        break_ins: target: break-in requests received and not yet taken by the owner.
        reboots: host: times the target is known to have booted again.
    """

    statistics: Statistics
    break_ins: int
    reboots: int

    @property
    def reliable(self) -> Reliable:
        """The delivery layer."""

    @property
    def alive_at(self) -> float | None:
        """When the peer was last heard."""

    def start(self, now: float) -> None:
        """The medium is ready; begin."""

    def receive(self, data: bytes, source: Address | None, now: float) -> None:
        """Take in what the medium gave."""

    def tick(self, now: float) -> None:
        """Do what is due at this time."""

    def take_output(self) -> list[Parcel]:
        """What has to go out now, in order."""

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next, None for never."""

    def send_break_in(self) -> None:
        """Host: put one break-in request out."""

    @property
    def connected(self) -> bool:
        """Whether a peer is there, as far as this end can know."""

    def find_refusal(self) -> str:
        """Why what arrives does not count, "" when nothing arrives or all is well."""

    def forget(self, now: float) -> None:
        """Host: stop believing in the present session, take any target that calls."""


def earliest(*deadlines: float | None) -> float | None:
    """The first of some deadlines."""
    known = [deadline for deadline in deadlines if deadline is not None]
    return min(known) if known else None
