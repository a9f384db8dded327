"""Texts by which the engine says that a command failed, each as one clear sentence.

A command that fails raises nothing in the debugger: its text is all there is. The list holds what
kernel debuggers print for missing symbols, memory, extensions and rights, and for sessions in
which the operation does not exist.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Optional, Tuple


class FailureKind(enum.Enum):
    """What a failure is about."""

    LOCAL_KERNEL = "local kernel session"
    NOT_SUPPORTED = "not supported by the target"
    NOT_CONNECTED = "no target"
    RUNNING = "target is running"
    ACCESS_DENIED = "access denied"
    UNKNOWN_SYMBOL = "unknown symbol"
    NO_EXPORT = "unknown extension command"
    WRONG_SYMBOLS = "symbols of the kernel are missing or wrong"
    MODULE_SYMBOLS = "symbols of a module are missing"
    MEMORY = "memory not readable"
    NO_EXTENSION = "extension library missing"
    SYNTAX = "command not understood"


@dataclass(frozen=True)
class EngineFailure:
    """A failed command.

    Attributes:
        kind: what it is about.
        text: the line that says so, blanks at its ends cut off.
        sentence: the same for people, with what to do.
    """

    kind: FailureKind
    text: str
    sentence: str


_FAILURES: Tuple[Tuple[FailureKind, str, str], ...] = (
    (
        FailureKind.LOCAL_KERNEL,
        r"local kernel debugg(?:ing|er)[^\n]{0,80}(?:not|n't)[ ]|"
        r"not (?:supported|available|allowed)[^\n]{0,80}local kernel|"
        r"not an operation supported in the current session/local kernel",
        "This is a local kernel session: it can neither stop the machine nor hit a breakpoint; "
        "attach from a second machine.",
    ),
    (
        FailureKind.NOT_SUPPORTED,
        r"operation not supported by current debuggee|"
        r"not (?:an operation )?supported (?:in|by|for) (?:the |this )?(?:current )?"
        r"(?:session|target|debuggee|dump)|not supported (?:in|for) (?:a )?(?:dump|minidump)s?",
        "The target of this session cannot do that: a dump or a local session has no live "
        "machine to write to or to resume.",
    ),
    (
        FailureKind.NOT_CONNECTED,
        r"no runnable debuggees? error|target machine is not connected|"
        r"debuggee (?:is )?not connected|no (?:current )?debuggee|"
        r"kernel debugger (?:connection )?(?:is )?not connected|waiting to reconnect\.{3}\s*\Z",
        "No target is connected to this debugger.",
    ),
    (
        FailureKind.RUNNING,
        r"debuggee is (?:currently )?running|target is running|machine is running",
        "The target is running; break in before giving commands.",
    ),
    (
        FailureKind.ACCESS_DENIED,
        r"access (?:is |was )?denied|Win32 error 0n5\b|0x80070005|"
        r"requires (?:elevation|administrat\w+)|privilege not held",
        "Access was denied: the debugger lacks the rights for it.",
    ),
    (
        FailureKind.UNKNOWN_SYMBOL,
        r"couldn't resolve error at '(?P<what>[^\n]{1,200}?)'\s*$|"
        r"couldn't resolve '(?P<what2>[^'\n]{1,200})'|unable to resolve (?:symbol )?(?P<what3>\S+)",
        "The debugger does not know the name in '{what}': its symbols are not loaded.",
    ),
    (
        FailureKind.NO_EXPORT,
        r"no export (?P<what>\w{1,64}) found",
        "The debugger has no !{what} command: the extension that provides it is not loaded.",
    ),
    (
        FailureKind.WRONG_SYMBOLS,
        r"unable to (?:get|read|find)[^\n]{0,40}(?:PoolTrackTable|PoolBigPageTable|ExpPool\w*|"
        r"PoolVector|PoolDescriptor|nt!\w+|type info\w*)|symbols? (?:are |is )?wrong|"
        r"(?:using the |with |need )correct symbols|"
        r"\*\*\* ERROR: [^\n]{0,120}symbols? [^\n]{0,60}for (?:nt\b|nto?s?krnl\w*|ntkr\w+)|"
        r"kernel symbols are (?:wrong|not available|missing)|please fix symbols|"
        r"type referenced: ",
        "Symbols of the kernel are missing or wrong; check .sympath and use .reload /f nt.",
    ),
    (
        FailureKind.MEMORY,
        r"memory access error|unable to read memory|"
        r"(?:unable|failed|could not|couldn't) (?:to )?(?:read|write|get)[^\n]{0,60}"
        r"(?: at |address|memory|heap key)|error reading|page not present",
        "The debugger could not read or write that memory of the target.",
    ),
    (
        FailureKind.NO_EXTENSION,
        r"unable to add extension DLL: (?P<what>\S{1,64})|"
        r"the call to LoadLibrary\((?P<what2>[^)\n]{1,64})\) failed",
        "The extension library '{what}' could not be loaded: the debugger's installation lacks it.",
    ),
    (
        FailureKind.MODULE_SYMBOLS,
        r"\*\*\* ERROR: [^\n]{0,120}symbols? [^\n]{0,60}for (?P<what>[^\n]{1,120}?)(?: -)? *$",
        "Symbols of {what} could not be loaded: names in it may be wrong.",
    ),
    (
        FailureKind.SYNTAX,
        r"\^ (?:extra character|syntax|bad register|range|numeric expression|operand|"
        r"unable to|no code|breakpoint|overflow|illegal)[^\n]{0,40}error in|"
        r"syntax error (?:in|at) '?(?P<what>[^\n']{1,100})|unrecognized command",
        "The debugger did not understand the command.",
    ),
)

_COMPILED = tuple(
    (kind, re.compile(pattern, re.IGNORECASE | re.MULTILINE), sentence)
    for kind, pattern, sentence in _FAILURES
)
_WORDS = (
    *("error", "fail", "unable", "could", "no export", "not supported", "operation", "denied"),
    *("wrong", "symbols", "not connected", "no debuggee", "no current debuggee", "reconnect"),
    *("running", "requires", "privilege", "not present", "unrecognized", "type referenced"),
    *("local kernel", "0x80070005"),
)
"""One of them is in every text that a pattern finds; looking for words is faster by far."""


def find_engine_error(text: str) -> Optional[EngineFailure]:
    """The failure that the output of a command tells of; None if it tells of none.

    Where several are there, the one that explains most: what the session cannot do at all comes
    before what a missing extension breaks.

    Args:
        text: output of one command.
    """
    lowered = text.lower()
    if not any(word in lowered for word in _WORDS):
        return None
    for kind, pattern, sentence in _COMPILED:
        found = pattern.search(text)
        if found:
            named = (value for value in found.groupdict().values() if value)
            what = next(named, "")
            return EngineFailure(kind, _line_at(text, found.start()), sentence.format(what=what))
    return None


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()
