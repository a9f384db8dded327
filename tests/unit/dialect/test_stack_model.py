"""From a printed stack to the model's: which address belongs to which frame, and how it ends."""

from __future__ import annotations

from kdleak.dialect.stack import StackText, parse_stacks
from kdleak.dialect.stack_model import to_model
from kdleak.model import StackEnd, SymbolKind

HEADER = " # Child-SP          RetAddr           Call Site\n"
WARNING = "WARNING: Stack unwind information not available. Following frames may be wrong.\n"


def only(text: str) -> StackText:
    (stack,) = parse_stacks(text).stacks
    return stack


def row(number: int, returns: str, site: str) -> str:
    return f"{number:02x} fffff880`0000{number:04x} {returns} {site}\n"


def addresses(text: str, pointer=0x1111):
    return [frame.address for frame in to_model(only(text), pointer, 8).frames]


def test_each_frame_stands_at_the_return_address_of_the_row_above():
    text = (
        HEADER
        + row(0, "fffff800`00000001", "nt!A")
        + row(1, "fffff800`00000002", "drv+0x10")
        + row(2, "00000000`00000000", "nt!C+0x3")
    )
    model = to_model(only(text), 0x1111, 8)
    assert [frame.address for frame in model.frames] == [
        0x1111,
        0xFFFFF80000000001,
        0xFFFFF80000000002,
    ]
    assert [str(frame.symbol) for frame in model.frames] == ["nt!A", "drv+0x10", "nt!C+0x3"]
    assert [frame.symbol.kind for frame in model.frames] == [
        SymbolKind.PDB,
        SymbolKind.MODULE,
        SymbolKind.PDB,
    ]
    assert model.frames[2].stack_pointer == 0xFFFFF88000000002
    assert model.end is StackEnd.COMPLETE


def test_without_instruction_pointer_the_first_address_is_unknown():
    assert addresses(HEADER + row(0, "fffff800`00000001", "nt!A"), None) == [0]


def test_inline_rows_are_left_out():
    text = (
        HEADER
        + row(0, "fffff800`00000001", "nt!A")
        + "01 (Inline Function) --------`-------- drv!Inlined+0x1\n"
        + row(2, "00000000`00000000", "drv!Real+0x3")
    )
    assert addresses(text) == [0x1111, 0xFFFFF80000000001]


def test_below_a_gap_the_address_is_unknown():
    text = (
        HEADER
        + row(0, "fffff800`00000001", "nt!A")
        + "...\n"
        + row(5, "fffff800`00000005", "nt!F")
        + row(6, "00000000`00000000", "nt!G")
    )
    assert addresses(text) == [0x1111, 0, 0xFFFFF80000000005]


def test_a_bare_address_is_its_own():
    text = HEADER + "...\n" + row(5, "00000000`00000000", "0x00007ffc`79732b84")
    assert addresses(text) == [0x00007FFC79732B84]


def test_logs_print_each_frames_own_address():
    assert addresses("87c1b68d nt!Iov+0x95\n926ecbed Ver!Sv+0xf2\n") == [0x87C1B68D, 0x926ECBED]


def test_a_list_that_just_stops_is_cut_by_depth():
    text = HEADER + row(0, "fffff800`00000001", "nt!A")
    assert to_model(only(text), 1, 8).end is StackEnd.DEPTH
    assert to_model(only(HEADER), 1, 8).end is StackEnd.DEPTH


def test_doubt_in_the_kernel_and_doubt_in_user_space():
    kernel = HEADER + row(0, "fffff800`00000001", "nt!A") + WARNING
    kernel += row(1, "00000000`00000000", "drv+0x1")
    user = HEADER + row(0, "00007ffc`79732b84", "nt!A") + WARNING
    user += row(1, "00000000`00000000", "app+0x1")
    assert to_model(only(kernel), 1, 8).end is StackEnd.IMPLAUSIBLE
    assert to_model(only(user), 1, 8).end is StackEnd.USER_MODE
    assert len(to_model(only(kernel), 1, 8).frames) == 2


def test_export_names_are_called_so():
    text = (
        HEADER
        + "*** ERROR: Symbol file could not be found.  Defaulted to export symbols for hub.sys - \n"
        + "*** ERROR: Symbol file could not be found.  Defaulted to export symbols for "
        + "ntkrnlmp.exe - \n"
        + row(0, "fffff800`00000001", "nt!A")
        + row(1, "fffff800`00000002", "hub!B+0x1")
        + row(2, "00000000`00000000", "drv!C+0x1")
    )
    kinds = [frame.symbol.kind for frame in to_model(only(text), 1, 8).frames]
    assert kinds == [SymbolKind.EXPORT, SymbolKind.EXPORT, SymbolKind.PDB]


def test_addresses_fit_the_pointer():
    stack = only("ChildEBP RetAddr\nf7d7e8f4 804bd3ea nt!A\nf7d7e954 00000000 nt!B+0x1\n")
    model = to_model(stack, 0xFFFFFFFF8059CEC8, 4)
    assert [frame.address for frame in model.frames] == [0x8059CEC8, 0x804BD3EA]
