"""Call stacks: the text of ``k`` and its relatives, of ``STACK_TEXT``, and inside other output.

All forms of ``k kb kv kn kc kp kP kL kf`` of 32-bit and 64-bit machines are read, with or without
their header, with rows that a terminal or a mail program broke in two. Format facts: Microsoft,
"k, kb, kc, kd, kp, kP, kv (Display Stack Backtrace)", and recorded sessions of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

from kdleak.dialect.pointer_listing import (
    PointerListing,
    starts_pointer_listing,
    take_pointer_listing,
)
from kdleak.dialect.prompt import find_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.stack_command import command_above, is_call_site_command, prompt_above
from kdleak.dialect.stack_fold import unfold
from kdleak.dialect.stack_frame import StackFrame
from kdleak.dialect.stack_header import HeaderKind, read_header
from kdleak.dialect.stack_messages import is_message
from kdleak.dialect.stack_reader import StackReader
from kdleak.dialect.stack_row import read_call_site
from kdleak.dialect.stack_start import begins_without_header

_LOOK_AHEAD = 8


@dataclass(frozen=True)
class StackText:
    """One stack as printed.

    Attributes:
        command: as typed above it, without prompt and remarks; None where there is none.
        frames: rows in their order, inline ones included.
        warnings: messages that belong to the stack, as printed; a broken one is joined again.
        line: number of the line it begins in.
        header: what stands above the rows.
        pointer_size: bytes of the printed addresses; None where no row prints one.
        rejected: why this is no stack although it has the header of one; "" if it is.
        unparsed: damaged rows, and text behind rows that is no part of them.
    """

    command: Optional[str]
    frames: Tuple[StackFrame, ...]
    warnings: Tuple[str, ...]
    line: int
    header: HeaderKind = HeaderKind.NONE
    pointer_size: Optional[int] = None
    rejected: str = ""
    unparsed: Tuple[Unparsed, ...] = ()


@dataclass(frozen=True)
class Stacks:
    """Every stack of a text.

    Attributes:
        stacks: in their order.
        listings: what ``dps`` and its relatives print between them.
        unparsed: entries of all of them. Lines that belong to no stack are none of theirs.
    """

    stacks: Tuple[StackText, ...]
    listings: Tuple[PointerListing, ...] = ()
    unparsed: Tuple[Unparsed, ...] = ()


def parse_stacks(source: Source) -> Stacks:
    """Find and read every stack of a text."""
    lines = lines_of(source)
    stacks: List[StackText] = []
    listings: List[PointerListing] = []
    unparsed: List[Unparsed] = []
    command: Optional[str] = None
    index = 0
    while index < len(lines):
        if starts_stack(lines, index):
            stack, index = take_stack(lines, index, command or "")
            stacks.append(stack)
            unparsed += stack.unparsed
        elif starts_pointer_listing(lines, index):
            listing, index = take_pointer_listing(lines, index)
            listings.append(listing)
            unparsed += listing.unparsed
        else:
            prompt = find_prompt(lines[index])
            if prompt is not None:
                command = prompt.command or None
            index += 1
    return Stacks(tuple(stacks), tuple(listings), tuple(unparsed))


def starts_stack(lines: Sequence[Line], index: int) -> bool:
    """Whether a stack begins at this line: its header, its first row, or a message above them."""
    text = lines[index].text
    if not text or text.isspace():
        return False
    if read_header(text) is not None or begins_without_header(lines, index):
        return True
    if is_message(text):
        return _message_above_stack(lines, index)
    if "RetAddr" in text and unfold(lines[index]) is not None:
        return True
    return _begins_call_sites(lines, index)


def _message_above_stack(lines: Sequence[Line], index: int) -> bool:
    """A message belongs to a stack that begins below it, with nothing but messages between."""
    for position in range(index + 1, min(index + 1 + _LOOK_AHEAD, len(lines))):
        text = lines[position].text
        if not text.strip() or is_message(text):
            continue
        return (
            read_header(text) is not None
            or begins_without_header(lines, position)
            or _begins_call_sites(lines, position)
        )
    return False


def _begins_call_sites(lines: Sequence[Line], index: int) -> bool:
    """The first row of a ``kc`` without header: only the command above tells."""
    above = prompt_above(lines, index, _LOOK_AHEAD)
    if above is None or not is_call_site_command(above.command):
        return False
    text = lines[index].text
    return find_prompt(lines[index]) is None and read_call_site(text) is not None


def take_stack(
    lines: Sequence[Line], index: int, command: Optional[str] = None
) -> Tuple[StackText, int]:
    """Read the stack that begins at a line.

    Args:
        lines: the log, undecorated.
        index: where ``starts_stack`` said yes.
        command: the last command typed above; None looks for it a few lines up, "" says that
            there is none.

    Returns:
        The stack, and the index of the first line that is not its own.
    """
    if command is None:
        command = command_above(lines, index)
    line = lines[index].number
    folded = unfold(lines[index]) if read_header(lines[index].text) is None else None
    if folded is not None:
        command = folded.command or command
        reader = StackReader(folded.lines, 0, command or "")
        reader.read()
        end = index + 1
    else:
        reader = StackReader(lines, index, command or "")
        end = reader.read()
    kind = reader.header.kind
    if kind is HeaderKind.NONE and reader.address_only:
        kind = HeaderKind.ADDRESS_ONLY
    rejected = ""
    if not reader.frames and reader.refused:
        rejected = "a header of a stack, but no row below it is one"
    stack = StackText(
        command or None,
        tuple(_without_modules(reader) or reader.frames),
        tuple(reader.warnings),
        line,
        kind,
        reader.width or None,
        rejected,
        tuple(reader.unparsed),
    )
    return stack, end


def _without_modules(reader: StackReader) -> List[StackFrame]:
    """Old debuggers print names without modules: what stands before the offset is the function.

    Only below their own header, and only when no row of the stack shows a module.
    """
    if not reader.header.without_modules:
        return []
    if any(frame.module is not None and frame.symbol is not None for frame in reader.frames):
        return []
    return [
        replace(frame, module=None, symbol=frame.module) if frame.symbol is None else frame
        for frame in reader.frames
    ]
