"""What a console debugger prints, as pure text logic: marks, prompts, bounded memory, complaints.

kd.exe prints its prompt without a line end, so the prompt stands glued in front of whatever comes
next. Every command is followed by an ``.echo`` of a mark that nobody can foresee; the output of
the command is what stands before the mark, and the prompt behind the mark says which processor
stopped, and how the prompt in front of it reads, exactly.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Deque, Optional, Tuple

PROMPT = (
    r"(?:(?:(?:[0-9]{1,2}\.)?(?P<cpu>[0-9]{1,4}): )?l?kd(?::[a-z0-9]{1,8})?"
    r"|[0-9]{1,4}:[0-9]{3,5}(?::\w{1,8})?)> "
)
"""A prompt as the debugger prints it; a dump may have one of a user-mode program (``0:000> ``), or
where its processors cannot be read ``16.0: kd:x86> ``."""

_LEADING = re.compile(rf"(?:\A\n?{PROMPT.replace('?P<cpu>', '?:')})")
_TRAILING = re.compile(rf"{PROMPT.replace('?P<cpu>', '?:')}\Z")
_ECHO = ".echo "
_MARK = re.compile(r"(?:\.echo )?\bkdleak[0-9a-f]{16}\b")
_LONGEST_PROMPT = 40

_LOST = (
    "retry sending the same data packet for ",
    "... retry sending the same data packet for ",
    "the transport connection between host kernel debugger and target windows seems lost",
    "the target machine restarted without notifying the debugger",
)
_BREAK_IN = "You are seeing this message because you pressed either"
_CONNECTED = re.compile(r"^(?:Connected to |Kernel Debugger connection established)", re.MULTILINE)
_STOPPING = re.compile(
    r"^(?:[^\n]{0,200} - code [0-9a-fA-F]{1,8} \((?:first|!!! second) chance"
    r"|Breakpoint [0-9]{1,5} hit|\*\*\* Fatal System Error)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Found:
    """Where a mark was found.

    Attributes:
        start: first character of the mark.
        end: first character behind it, its line end and the prompt that follows.
        prompt: that prompt, "" if it is not there (yet).
        processor: number in the prompt, None if it shows none.
    """

    start: int
    end: int
    prompt: str = ""
    processor: Optional[int] = None


def before_a_stop(text: str) -> int:
    """Characters of whole lines that were printed before a stop is announced."""
    announced = _STOPPING.search(text)
    return announced.start() if announced is not None else text.rfind("\n") + 1


def new_mark() -> str:
    """A mark that no target can foresee."""
    return "kdleak" + secrets.token_hex(8)


def find_mark(text: str, mark: str) -> Optional[Found]:
    """Find a mark that was echoed, not the command that echoes it.

    Args:
        text: with LF line ends.
        mark: letters and digits.
    """
    start = text.find(mark)
    while start >= 0 and text.endswith(_ECHO, 0, start):
        start = text.find(mark, start + 1)
    if start < 0:
        return None
    behind = re.compile(rf"[ \t]*\n(?P<prompt>{PROMPT})").match(text, start + len(mark))
    if behind is None:
        return Found(start, start + len(mark))
    cpu = behind["cpu"]
    return Found(start, behind.end(), behind["prompt"], int(cpu) if cpu else None)


def output_of(text: str, found: Found, command: str) -> str:
    """The output of a command: what stands before the mark, without prompts and echoes.

    Args:
        text: from the prompt at which the command was read, or from behind it, to the mark.
        found: where the mark stands in it.
        command: the command, in case the debugger repeats what it reads.
    """
    mark = text[found.start :].split("\n", 1)[0].rstrip()
    before = text[: found.start]
    if before.endswith(_ECHO + mark + "\n"):
        before = before[: -len(_ECHO + mark + "\n")]
    if found.prompt and before.endswith(found.prompt):
        before = before[: -len(found.prompt)]
    elif not found.prompt:
        # Nothing says how this prompt reads: a digit printed just before it would go with it.
        before = _TRAILING.sub("", before)
    before = _LEADING.sub("", before, count=1)
    if command and before.startswith(command + "\n"):
        before = before[len(command) + 1 :]
    return before


def overlap_of(mark: str) -> int:
    """Characters to look at again when more text comes, so that no mark is missed."""
    return len(_ECHO) + 2 * len(mark) + _LONGEST_PROMPT


class Capture:
    """Text in the order it came, at most ``limit`` characters of it: the newest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: Deque[str] = deque()
        self._size = 0
        self._dropped = 0

    def add(self, text: str) -> None:
        """Append; the oldest pieces go when there is too much."""
        self._pieces.append(text)
        self._size += len(text)
        while self._size > self._limit:
            oldest = self._pieces.popleft()
            keep = min(len(oldest), max(0, self._limit - self._size + len(oldest)))
            if keep:
                self._pieces.appendleft(oldest[-keep:])
            self._size -= len(oldest) - keep
            self._dropped += len(oldest) - keep

    def take(self) -> Tuple[str, int]:
        """All that is there, and how many characters before it were dropped; then empty."""
        text, dropped = "".join(self._pieces), self._dropped
        self._pieces.clear()
        self._size = self._dropped = 0
        return text, dropped


def with_notice(text: str, dropped: int) -> str:
    """The text, with a first line that says what is missing before it."""
    if not dropped:
        return text
    rest = text.split("\n", 1)[1] if "\n" in text else ""  # the first line is no whole one
    return f"[kdleak: {dropped + len(text) - len(rest)} characters dropped here]\n{rest}"


def says_lost(text: str) -> bool:
    """Whether the debugger says that the link to the target is gone."""
    lowered = text.lower()
    return any(
        lowered.startswith(phrase) or f"\n{phrase}" in lowered or f"> {phrase}" in lowered
        for phrase in _LOST
    )


def says_connected(text: str) -> bool:
    """Whether a target has answered the debugger."""
    return _CONNECTED.search(text) is not None


def says_break_in(text: str) -> bool:
    """Whether the target stopped because a debugger asked it to."""
    return _BREAK_IN in text


def last_lines(text: str, count: int = 3, width: int = 160) -> str:
    """The last lines that say something, on one line, harmless to a terminal.

    Args:
        text: what the debugger printed.
        count: lines to keep.
        width: characters to keep of each.
    """
    lines = []
    for line in reversed(text[-8192:].split("\n")):
        plain = _MARK.sub("", _LEADING.sub("", line + " ")).strip()
        if plain.strip("*.- ") and plain not in lines:
            lines.append("".join(one if one.isprintable() else "?" for one in plain)[:width])
            if len(lines) == count:
                break
    return " / ".join(reversed(lines))
