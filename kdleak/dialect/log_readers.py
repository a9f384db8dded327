"""The readers of a log, in the order in which they are asked whether a line is theirs.

What has a certain header comes before what is known by the shape of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Sequence, Tuple

from kdleak.dialect.log_event import Disassembly, Value
from kdleak.dialect.memory_dump import is_dump_command, read_memory_row, take_memory_dump
from kdleak.dialect.modules import starts_modules, take_modules
from kdleak.dialect.place import is_instruction, take_place
from kdleak.dialect.pointer_listing import starts_pointer_listing, take_pointer_listing
from kdleak.dialect.pool import starts_pool, take_pool
from kdleak.dialect.poolfind import starts_poolfind, take_poolfind
from kdleak.dialect.poolmon import starts_poolmon, take_poolmon
from kdleak.dialect.pooltag import starts_pooltag, take_pooltag
from kdleak.dialect.poolused import starts_poolused, take_poolused
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.registers import starts_registers, take_registers
from kdleak.dialect.reload import starts_reload, take_reload
from kdleak.dialect.source import Line
from kdleak.dialect.stack import starts_stack, take_stack
from kdleak.dialect.symbol_lines import starts_symbol_lines, take_symbol_lines
from kdleak.dialect.verifier import starts_verifier, take_verifier
from kdleak.dialect.verifier_log import starts_verifier_log, take_verifier_log
from kdleak.dialect.version import starts_version, take_version
from kdleak.dialect.vm import starts_vm, take_vm

Lines = Sequence[Line]


@dataclass(frozen=True)
class Reader:
    """One kind of output.

    Attributes:
        starts: whether such an output begins at a line.
        take: reads it, given the command above ("" if there is none); the second value is the
            index of the first line that is not its own.
        at_command: whether it may begin at its own command line.
    """

    starts: Callable[[Lines, int, str], bool]
    take: Callable[[Lines, int, str], Tuple[Value, int]]
    at_command: bool = False


def _plain(
    starts: Callable[[Lines, int], bool],
    take: Callable[[Lines, int], Tuple[Value, int]],
    at_command: bool = False,
) -> Reader:
    """A reader that does not care for the command above."""
    return Reader(
        lambda lines, index, _: starts(lines, index),
        lambda lines, index, _: take(lines, index),
        at_command,
    )


def _below_dump_command(lines: Lines, index: int, command: str) -> bool:
    return is_dump_command(command) and read_memory_row(lines[index], True) is not None


def _is_memory(lines: Lines, index: int, command: str) -> bool:
    del command
    return read_memory_row(lines[index]) is not None


def _take_memory(lines: Lines, index: int, command: str) -> Tuple[Value, int]:
    return take_memory_dump(lines, index, is_dump_command(command))


def _below_disassembly_command(lines: Lines, index: int, command: str) -> bool:
    return is_disassembly_command(command) and take_place(lines, index) is not None


def is_disassembly_command(command: str) -> bool:
    """Whether a command shows instructions: ``u``, ``ub``, ``uf``, ``up``."""
    return command.split(None, 1)[:1] in (["u"], ["ub"], ["uf"], ["up"], ["U"])


def _take_disassembly(lines: Lines, index: int, command: str) -> Tuple[Value, int]:
    del command
    found = take_place(lines, index)
    if found is None:
        return Disassembly(None, 0, lines[index].number), index + 1
    place, end = found
    while end < len(lines) and not is_prompt(lines[end].text):
        text = lines[end].text
        if text.strip() and not is_instruction(text) and take_place(lines, end) is None:
            break
        end += 1
    return Disassembly(place.symbol, place.address, lines[index].number), end


READERS: Tuple[Reader, ...] = (
    _plain(starts_poolused, take_poolused, at_command=True),
    _plain(starts_poolfind, take_poolfind, at_command=True),
    _plain(starts_pool, take_pool, at_command=True),
    _plain(starts_verifier_log, take_verifier_log, at_command=True),
    _plain(starts_verifier, take_verifier, at_command=True),
    _plain(starts_vm, take_vm, at_command=True),
    _plain(starts_poolmon, take_poolmon),
    _plain(starts_registers, take_registers),
    Reader(_below_disassembly_command, _take_disassembly),
    Reader(_below_dump_command, _take_memory),
    _plain(starts_modules, take_modules),
    Reader(lambda lines, index, _: starts_stack(lines, index), take_stack),
    Reader(lambda lines, index, _: starts_pointer_listing(lines, index), take_pointer_listing),
    Reader(_is_memory, _take_memory),
    _plain(starts_symbol_lines, take_symbol_lines),
    _plain(starts_reload, take_reload),
    _plain(starts_version, take_version),
    _plain(starts_pooltag, take_pooltag),
)


def find_reader(
    lines: Lines, index: int, command: str, at_command: bool = False
) -> Optional[Reader]:
    """The reader whose output begins at a line; None if it is nobody's.

    Args:
        lines: of the log.
        index: of the line.
        command: the command above, "" if there is none.
        at_command: ask only those that may begin at their own command line.
    """
    for reader in READERS:
        if (reader.at_command or not at_command) and reader.starts(lines, index, command):
            return reader
    return None
