"""From the last words of a console debugger to one clear error of the tree.

The texts are those of DbgEng 10.0.15063 and of Microsoft's documentation of kd.exe; numbers of
Win32 errors appear in decimal (``0n10048``) or inside an HRESULT (``0x80072740``).
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from kdleak.engine.channels.base import CHECK_DUMP
from kdleak.engine.channels.kd_text import last_lines, says_connected
from kdleak.engine.channels.secrecy import without
from kdleak.errors import (
    BadConnection,
    KdleakError,
    LinkLost,
    NoTarget,
    PortInUse,
    TargetError,
    WrongKey,
)

_NET_PORT = re.compile(
    r"Failed to initialize socket|\b0n(?:10048|10013)\b|0x8007(?:2740|271d)\b", re.IGNORECASE
)
_REFUSED = re.compile(r"\b0n87\b|0x80070057\b", re.IGNORECASE)
_DENIED = re.compile(r"\b0n5\b|0x80070005\b", re.IGNORECASE)
_NOT_OPENED = re.compile(r"^Failed to open (?P<device>.+)$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(?:kd|cdb): (?:cannot use argument|invalid argument)", re.MULTILINE)


def why_it_ended(
    text: str,
    *,
    where: str,
    live: bool,
    exit_code: Optional[int],
    secrets: Tuple[str, ...] = (),
) -> KdleakError:
    """The error for a debugger that ended before the target was attached.

    Args:
        text: the end of what it printed.
        where: the target as it may be shown.
        live: a live target, not a dump.
        exit_code: of the process, None if unknown.
        secrets: what must not be quoted.
    """
    said = without(secrets, last_lines(text, 5)) or "it printed nothing"
    came_back = f"the debugger ended (exit code {exit_code}): {said}"
    if not live:
        return TargetError(
            f"opening {where} with kd.exe",
            came_back,
            CHECK_DUMP,
        )
    tried = f"attaching kd.exe to {where}"
    if _ARGUMENT.search(text):
        return TargetError(tried, came_back, "give the kd.exe of a current WinDbg with --kd")
    device = _NOT_OPENED.search(text)
    if device is not None:
        taken = "another program has it open" if _DENIED.search(text) else "nothing is there"
        return (PortInUse if _DENIED.search(text) else NoTarget)(
            tried,
            f"the debugger could not open {without(secrets, device['device'].strip())} ({taken})",
            "check the name of the port, pipe or host, that the virtual machine runs, and that "
            "no other debugger is attached",
        )
    if _NET_PORT.search(text):
        return PortInUse(
            tried,
            f"the debugger could not take the UDP port: {said}",
            "close the other debugger that uses it (WinDbg, a kd.exe left over), or give the "
            "target another port with bcdedit /dbgsettings",
        )
    if _REFUSED.search(text):
        return BadConnection(
            tried,
            f"the debugger does not understand the connection string: {said}",
            "use net:port=50000,key=a.b.c.d or com:port=COM1,baud=115200",
        )
    return NoTarget(tried, came_back, "start the same kd.exe by hand and see what it says")


def no_answer(
    text: str, *, where: str, live: bool, seconds: float, secrets: Tuple[str, ...] = ()
) -> KdleakError:
    """The error for a target that was not attached within the time given; see `why_it_ended`."""
    said = without(secrets, last_lines(text)) or "nothing"
    if not live:
        return TargetError(
            f"opening {where} with kd.exe",
            f"no prompt within {seconds:.0f} s and more; the debugger said: {said}",
            "give it more time, or a local symbol path if symbols are being downloaded",
        )
    if says_connected(text):
        return NoTarget(
            f"attaching kd.exe to {where}",
            f"the target answered but did not stop within {seconds:.0f} s; the debugger said: "
            f"{said}",
            "give it more time, or a local symbol path if symbols are being downloaded",
        )
    if "Bad packet sent from" in text:
        return WrongKey(
            f"attaching kd.exe to {where}",
            f"packets arrive on the port, but none that fits the key came within {seconds:.0f} s",
            "give the key that the target shows with: bcdedit /dbgsettings; and see that no other "
            "machine sends to this port",
        )
    key = "that its key is the one given, " if where.startswith("net") else ""
    return NoTarget(
        f"attaching kd.exe to {where}",
        f"no target connected within {seconds:.0f} s; the debugger said: {said}",
        f"check that the target runs with debugging on, {key}and that nothing (a firewall, "
        "another debugger) is in between",
    )


def link_lost(tried: str, why: str, text: str, *, secrets: Tuple[str, ...] = ()) -> LinkLost:
    """The error for a session that broke.

    Args:
        tried: one clause: "running .reload on net:port=50000".
        why: one clause: "no answer within 60 s".
        text: the end of what the debugger printed.
        secrets: what must not be quoted.
    """
    said = without(secrets, last_lines(text))
    return LinkLost(
        tried,
        f"{why}; the debugger last said: {said}" if said else why,
        "check that the target still runs and the cable or network to it, then attach again",
    )
