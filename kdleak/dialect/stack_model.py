"""A printed stack as the model's: addresses moved to the frames they belong to.

The debugger prints in each row the address the row's function returns to. The model's frames
carry the instruction they stand at: the first one the instruction pointer, every later one the
return address printed in the row above it.
"""

from __future__ import annotations

import re
from typing import FrozenSet, List, Optional

from kdleak.dialect.stack import StackText
from kdleak.dialect.stack_frame import StackFrame
from kdleak.dialect.stack_header import HeaderKind
from kdleak.model import Frame, Stack, StackEnd, Symbolized, SymbolKind

_EXPORTS_OF = re.compile(
    r"Defaulted to export symbols for\s+(?:.*\\)?([^\s\\]+?)(?:\.\w{1,4})?\s*-?\Z"
)
_KERNELS = frozenset({"ntoskrnl", "ntkrnlmp", "ntkrnlpa", "ntkrpamp"})
_USER_SPACE_END = {4: 0x80000000, 8: 1 << 63}


def to_model(
    stack: StackText, instruction_pointer: Optional[int] = None, pointer_size: int = 8
) -> Stack:
    """The frames of a printed stack with the instruction each stands at.

    Inline rows are left out: they have no address of their own. An address that the text does not
    tell is 0: the first one without an instruction pointer, all of ``kc``, and the one below a
    gap. A bare address in the call site column is that frame's address.

    How it ends: COMPLETE when the last row returns to zero. Below a "Following frames may be
    wrong" all frames are kept, and the end is USER_MODE where the doubt begins in user space (the
    kernel's part is whole), else IMPLAUSIBLE. DEPTH when the text just ends: the list was
    cut, limited (``kb 4``), or shows no addresses.

    Args:
        stack: as printed.
        instruction_pointer: where the processor stood, None when not known.
        pointer_size: bytes of an address of the target, 4 or 8.
    """
    mask = (1 << (8 * pointer_size)) - 1
    exports = _modules_with_exports(stack)
    frames: List[Frame] = []
    following = instruction_pointer or 0
    doubtful_from: Optional[int] = None
    last: Optional[StackFrame] = None
    gap = False
    for row in stack.frames:
        gap = gap or row.after_gap
        if row.inline:
            continue
        address = 0 if gap else following
        gap = False
        if stack.header is HeaderKind.ADDRESS_ONLY:
            address = row.return_address or 0
        elif row.address is not None:
            address = row.address
        address &= mask
        if row.uncertain and doubtful_from is None:
            doubtful_from = address
        frames.append(
            Frame(address, (row.frame_address or 0) & mask, _symbolized(row, address, exports))
        )
        following = row.return_address or 0
        last = row
    return Stack(tuple(frames), _end(stack, last, doubtful_from, pointer_size))


def _end(
    stack: StackText, last: Optional[StackFrame], doubtful_from: Optional[int], pointer_size: int
) -> StackEnd:
    if doubtful_from is not None:
        in_user_space = 0 < doubtful_from < _USER_SPACE_END[pointer_size]
        return StackEnd.USER_MODE if in_user_space else StackEnd.IMPLAUSIBLE
    if last is not None and last.return_address == 0 and not _cut(stack, last):
        return StackEnd.COMPLETE
    return StackEnd.DEPTH


def _cut(stack: StackText, last: StackFrame) -> bool:
    """A row that could not be read stands below the last one."""
    return any(entry.line > last.line for entry in stack.unparsed)


def _symbolized(row: StackFrame, address: int, exports: FrozenSet[str]) -> Symbolized:
    offset = row.offset or 0
    if row.module is None:
        if row.symbol is None:
            return Symbolized(address)
        # A name without module still tells a reader where the frame is.
        return Symbolized(address, "", row.symbol, offset, SymbolKind.NONE)
    if row.symbol is None:
        return Symbolized(address, row.module, "", offset, SymbolKind.MODULE)
    kind = SymbolKind.EXPORT if row.module.lower() in exports else SymbolKind.PDB
    return Symbolized(address, row.module, row.symbol, offset, kind)


def _modules_with_exports(stack: StackText) -> FrozenSet[str]:
    """Modules for which the debugger said that it has export names only."""
    names = set()
    for warning in stack.warnings:
        found = _EXPORTS_OF.search(warning)
        if found:
            name = found.group(1).lower()
            names.add(name)
            if name in _KERNELS:
                names.add("nt")
    return frozenset(names)
