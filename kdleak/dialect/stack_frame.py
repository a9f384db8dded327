"""A row of a stack as a value: what the debugger printed, column by column."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple, Optional, Tuple


class Missing(enum.Enum):
    """What a row still lacks; more may stand in the lines below it."""

    NOTHING = 0
    SYMBOL = 1
    """All address columns, but no call site."""
    ARGUMENTS = 2
    """Cut between two arguments."""
    BRACKET = 3
    """A parameter list or a source position was opened and not closed."""


@dataclass(frozen=True)
class StackFrame:
    """One row as printed. Addresses are None where the row does not print them.

    Attributes:
        number: frame number.
        frame_address: ChildEBP, FramePtr or Child-SP.
        return_address: address this frame returns to, an instruction of the next row's function.
        args: the first words of the argument area as printed (3 on 32-bit machines, else 4); on
            64-bit machines these are stack contents and rarely the real arguments.
        module: as the debugger names it; None where only an address is printed.
        symbol: name of the function; None for ``module+0x...``.
        offset: bytes from the symbol, from the module base without one; None when none is printed.
        inline: a row for code that was inlined into the next real row; it has no addresses.
        source: ``path @ line``.
        parameters: text between the brackets of ``kp`` and ``kP``.
        trap_frame: address of the trap frame that this row's registers came from.
        address: the call site is this bare address (in logs without return addresses: the
            address in the first column).
        uncertain: below a ``WARNING: ... Following frames may be wrong.``
        wrapped: continued in the next line of the log.
        line: number of the line it begins in.
        fpo: text of ``(FPO: ...)`` without its brackets ("Non-Fpo" keeps its square ones).
        convention: text of ``(CONV: ...)``.
        backing_store: Child-BSP of Itanium.
        memory: bytes between this frame and the one above it (``kf``).
        after_gap: rows are missing above this one (the author's "...", or a damaged row).
        inline_address: where the inlined code stands, ``(Inline Function @ ...)``.
    """

    number: Optional[int] = None
    frame_address: Optional[int] = None
    return_address: Optional[int] = None
    args: Optional[Tuple[int, ...]] = None
    module: Optional[str] = None
    symbol: Optional[str] = None
    offset: Optional[int] = None
    inline: bool = False
    source: Optional[str] = None
    parameters: Optional[str] = None
    trap_frame: Optional[int] = None
    address: Optional[int] = None
    uncertain: bool = False
    wrapped: bool = False
    line: int = 0
    fpo: Optional[str] = None
    convention: Optional[str] = None
    backing_store: Optional[int] = None
    memory: Optional[int] = None
    after_gap: bool = False
    inline_address: Optional[int] = None

    @property
    def certain_symbol(self) -> bool:
        """The row names a place: a module, a function, or an address."""
        return self.module is not None or self.symbol is not None or self.address is not None


class Row(NamedTuple):
    """A row read: the frame, and what the text says beyond it."""

    frame: StackFrame
    missing: Missing = Missing.NOTHING
    width: int = 0
    """Bytes of an address, 0 where none is printed."""
    rest: str = ""
    """Text behind the call site that belongs to no column."""


class Where(NamedTuple):
    """What the listing above says about a row."""

    line: int = 0
    uncertain: bool = False
    wrapped: bool = False
    after_gap: bool = False


NOWHERE = Where()
