"""Why the debugger says the target stopped, as a ``Stop``."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import FrozenSet, Mapping, Optional, Tuple

from kdleak.dialect.breaks import Break, BreakReason, BugCheck, parse_breaks
from kdleak.engine.channels.base import Resumed
from kdleak.engine.dbgeng_symbols import DebuggerSymbols
from kdleak.errors import SymbolNotFound
from kdleak.model import Architecture, Stop, StopKind
from kdleak.nt.memory import sign_extend

STATUS_BREAKPOINT = 0x80000003
STATUS_WX86_BREAKPOINT = 0x4000001F
STATUS_SINGLE_STEP = 0x80000004
_BREAKPOINTS = (STATUS_BREAKPOINT, STATUS_WX86_BREAKPOINT)
_BUG_CHECK_STATUSES = (3, 4, 5)  # first and second chance of a bug check, fatal

_RESTARTED = re.compile(
    r"^(?:Shutdown occurred at |Waiting to reconnect|Connected to Windows |"
    r"Kernel Debugger connection established)",
    re.MULTILINE,
)


_BREAK_IN_PLACES = ("nt!DbgBreakPointWithStatus", "nt!RtlpBreakWithStatusInstruction")

STATUS_ARGUMENT = {Architecture.X64: "rcx", Architecture.ARM64: "x0"}
"""Register that holds the status passed to nt!DbgBreakPointWithStatus; on x86 it is pushed."""

_LAST_EVENT = re.compile(r"^Last event: (?:[0-9a-f]+\.[0-9a-f]+: )?", re.MULTILINE)
_HIT_BREAKPOINT = re.compile(r"^Hit breakpoint ([0-9]{1,5})[ \t]*$", re.MULTILINE)

_BUG_CHECK_ANSWER = re.compile(
    r"^Bugcheck code (?P<code>[0-9a-f]{1,8})[ \t]*\n"
    r"Arguments (?P<arguments>[0-9a-f`]{1,17}(?: [0-9a-f`]{1,17}){3})[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True)
class BreakInPlace:
    """Where a break-in stops the kernel.

    Attributes:
        addresses: of the break instructions in nt!DbgBreakPointWithStatus and on x86
            nt!RtlpBreakWithStatusInstruction, 64 bits wide.
        argument: register that holds the status passed to it, "" where it is on the stack.
    """

    addresses: FrozenSet[int]
    argument: str = "rcx"

    def holds(self, address: int) -> bool:
        """Whether an address is one of them (or the byte behind)."""
        return bool({address, address - 1} & self.addresses)


def find_break_in(symbols: DebuggerSymbols, architecture: Architecture) -> BreakInPlace:
    """Where break-ins stop, as far as nt's symbols tell."""
    found = set()
    for name in _BREAK_IN_PLACES:
        with contextlib.suppress(SymbolNotFound):  # one of the two is enough
            found.add(symbols.address(name))
    return BreakInPlace(frozenset(found), STATUS_ARGUMENT.get(architecture, ""))


def restarted(text: str) -> bool:
    """Whether the text of a resume tells of a target that went away and came back."""
    return _RESTARTED.search(text) is not None


def last_break(text: str) -> Optional[Break]:
    """The last stop that a text announces, None if it announces none."""
    breaks = parse_breaks(text).breaks
    return breaks[-1] if breaks else None


def last_event(text: str) -> str:
    """The answer to ``.lastevent`` in the words of the banner it repeats."""
    said = _LAST_EVENT.sub("", text, count=1)
    return _HIT_BREAKPOINT.sub(r"Breakpoint \1 hit", said, count=1)


def classify(
    resumed: Resumed,
    announced: Optional[Break],
    registers: Mapping[str, int],
    place: BreakInPlace,
    at: float,
) -> Stop:
    """The stop after a resume.

    Args:
        resumed: from the channel.
        announced: what its text announces, None for nothing.
        registers: of the processor that stopped; {} where they could not be had.
        place: where break-ins stop.
        at: seconds, when it was seen.
    """
    counter = (
        registers.get("rip")
        or sign_extend(registers.get("eip", 0), 4)
        or registers.get("pc")
        or (announced.address if announced is not None and announced.address else 0)
    )
    code = resumed.code
    first_chance = resumed.first_chance
    if announced is not None and announced.code is not None:
        code = announced.code
        if announced.first_chance is not None:
            first_chance = announced.first_chance
    kind, detail = _kind(code, announced, registers, place, counter)
    return Stop(
        kind=kind,
        program_counter=counter,
        code=code or 0,
        first_chance=first_chance,
        processor=resumed.processor or 0,
        at=at,
        detail=detail,
    )


def _kind(
    code: Optional[int],
    announced: Optional[Break],
    registers: Mapping[str, int],
    place: BreakInPlace,
    counter: int,
) -> Tuple[StopKind, str]:
    if announced is not None and announced.bug_check is not None:
        return StopKind.BUG_CHECK, _bug_check(announced.bug_check)
    if announced is not None and announced.reason is BreakReason.BREAKPOINT:
        return StopKind.EXCEPTION, f"breakpoint {announced.number} of the debugger"
    if place.holds(counter) and code in (None, *_BREAKPOINTS):
        # A bug check stops at the same instruction as a break-in; its argument tells.
        # It is a ULONG: what stands above it in the register means nothing.
        fatal = registers.get(place.argument, 0) & 0xFFFFFFFF in _BUG_CHECK_STATUSES
        return (StopKind.BUG_CHECK, "bug check") if fatal else (StopKind.BREAK_IN, "")
    if code in _BREAKPOINTS:
        return StopKind.BREAK_INSTRUCTION, ""
    if code == STATUS_SINGLE_STEP:
        return StopKind.SINGLE_STEP, ""
    return StopKind.EXCEPTION, _exception(code, announced)


def crash_of(text: str) -> str:
    """The bug check that the answer to ``.bugcheck`` shows: "bug check 0xd1 (...)"; "" for none.

    Args:
        text: ``Bugcheck code 000000D1`` and a line of four arguments; the code is zero where
            there was none (a dump of a machine that went on).
    """
    found = _BUG_CHECK_ANSWER.search(text)
    if found is None or not int(found["code"], 16):
        return ""
    arguments = tuple(int(one.replace("`", ""), 16) for one in found["arguments"].split())
    return _bug_check(BugCheck(int(found["code"], 16), arguments))


def _bug_check(values: BugCheck) -> str:
    arguments = ", ".join(f"0x{value:x}" for value in values.args)
    return f"bug check 0x{values.code:x}" + (f" ({arguments})" if arguments else "")


def _exception(code: Optional[int], announced: Optional[Break]) -> str:
    if not code:
        return "the debugger did not say why"
    name = announced.exception if announced is not None else ""
    return f"{name or 'exception'} 0x{code:08x}"
