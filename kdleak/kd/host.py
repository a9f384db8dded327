"""The debugger's role above the link: requests, resuming, and serving a running target.

Every request is a round trip during which the whole target stands still, so each method says
how many it costs and none adds one behind the caller's back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kdleak.kd.link import HostLink
from kdleak.kd.packets import LoadSymbols, StateChange
from kdleak.kd.structures import Version


class KdHost:
    """A debugger attached to one target over one link.

    Attributes:
        requests: STATE_MANIPULATE packets sent (continues included, retransmissions not).
        module_events: images loaded and unloaded since the last ``attach``, oldest first.
        stopped: whether the target is stopped, as far as we know.
        link: the link, for its statistics.
    """

    def __init__(
        self,
        link: HostLink,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_print: Callable[[str], None] | None = None,
        request_timeout: float = 10.0,
    ) -> None:
        self.link = link
        self.requests = 0
        self.module_events: list[LoadSymbols] = []
        self.stopped = False

    @property
    def max_read(self) -> int:
        """Bytes per read or write request on this link."""
        return self.link.max_read

    def attach(self, timeout: float) -> StateChange:
        """Connect, break in if the target runs, and return why it is stopped.

        Raises:
            NoTarget, WrongKey, LinkLost.
        """
        raise NotImplementedError

    def get_version(self) -> Version:
        """Ask for DBGKD_GET_VERSION64 (one request)."""
        raise NotImplementedError

    def read_virtual(self, address: int, size: int, processor: int | None = None) -> bytes:
        """Read virtual memory in chunks; stops at the first byte that is not there.

        May return fewer bytes than asked for, b"" when nothing could be read.
        """
        raise NotImplementedError

    def read_virtual_once(self, address: int, size: int) -> bytes:
        """Exactly one request; b"" when it fails. May return fewer bytes."""
        raise NotImplementedError

    def write_virtual(self, address: int, data: bytes) -> int:
        """Write virtual memory; returns the bytes written."""
        raise NotImplementedError

    def read_physical(self, address: int, size: int) -> bytes:
        """Read physical memory, as ``read_virtual``."""
        raise NotImplementedError

    def get_context(self, processor: int) -> bytes:
        """The CONTEXT of one processor (one request once the target's way is known)."""
        raise NotImplementedError

    def set_context(self, processor: int, context: bytes) -> None:
        """Write a CONTEXT back."""
        raise NotImplementedError

    def read_control_space(self, processor: int, address: int, size: int) -> bytes:
        """Read control space (AMD64 selectors: 0 KPCR, 1 KPRCB, 2 special registers, 3 thread)."""
        raise NotImplementedError

    def restore_breakpoints(self) -> None:
        """Remove breakpoints of handles 1 to 32; refusals are normal (32 requests)."""
        raise NotImplementedError

    def resume(self, status: int = 0x00010002, trace: bool = False, dr7: int = 0x400) -> None:
        """Let the target run (Continue2); returns when acknowledged."""
        raise NotImplementedError

    def wait(self, timeout: float | None) -> StateChange | None:
        """Serve the running target until an exception stops it; None at timeout."""
        raise NotImplementedError

    def break_in(self, timeout: float) -> StateChange:
        """Stop the running target and return its state change."""
        raise NotImplementedError

    def detach(self) -> None:
        """Remove breakpoints, let the target run, close the link. Never raises LinkError."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the link and leave the target as it is."""
        raise NotImplementedError
