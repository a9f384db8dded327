"""Every field of both headers, one by one, against offsets that the tests keep on their own."""

from __future__ import annotations

import pytest

from kdleak.dump.header import DumpAttributes, parse_header
from kdleak.dump.kind import DumpKind
from kdleak.errors import TargetError, UnsupportedTarget
from kdleak.model import Architecture
from tests.dump_files.build_header import FIELDS, build_header, place, place_runs, usual_context

WIDTHS = (4, 8)

SIMPLE = {
    "major": 0xC,
    "build": 22621,
    "processors": 17,
    "bug_check_code": 0x161,
    "bug_check_parameters": (1, 2, 3, 0x7FFFFFFF),
    "kd_secondary_version": 2,
    "exception_code": 0x80000003,
    "boot_id": 77,
    "mini_dump_fields": 0xABC,
    "secondary_data_state": 0xC0000001,
    "product_type": 3,
    "suite_mask": 0x110,
    "writer_status": 5,
    "required_space": 0x1_2345_6789,
    "uptime": 0x22_3344_5566,
    "system_time": 0x1DA_0000_0000_0000,
}
POINTERS = ("pfn_database", "module_list", "process_list", "debugger_data", "exception_address")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", sorted(SIMPLE))
def test_field(width: int, name: str) -> None:
    before = parse_header(bytes(build_header(width, 3)))
    after = parse_header(bytes(build_header(width, 3, **{name: SIMPLE[name]})))
    assert getattr(after, name) == SIMPLE[name]
    changed = [field for field in vars(after) if getattr(before, field) != getattr(after, field)]
    assert changed == [name]


@pytest.mark.parametrize("name", POINTERS)
def test_pointers_are_sign_extended_once(name: str) -> None:
    low = parse_header(bytes(build_header(4, 3, **{name: 0x00123450})))
    high = parse_header(bytes(build_header(4, 3, **{name: 0x8054C560})))
    wide = parse_header(bytes(build_header(8, 3, **{name: 0xFFFFF8038054C560})))
    assert getattr(low, name) == 0x00123450
    assert getattr(high, name) == 0xFFFFFFFF8054C560
    assert getattr(wide, name) == 0xFFFFF8038054C560


@pytest.mark.parametrize("width", WIDTHS)
def test_texts_end_at_their_nul(width: int) -> None:
    header = parse_header(
        bytes(build_header(width, 3, comment=b"by hand\0junk", version_user=b"v1\0x"))
    )
    assert (header.comment, header.version_user) == ("by hand", "v1")


@pytest.mark.parametrize("width", WIDTHS)
def test_exception_parameters_are_as_many_as_claimed(width: int) -> None:
    values = tuple(range(1, 16))
    header = build_header(width, 3, exception_count=3, exception_parameters=values)
    assert parse_header(bytes(header)).exception_parameters == (1, 2, 3)
    place(header, width, "exception_count", 0xFFFFFFFF)
    assert parse_header(bytes(header)).exception_parameters == values


@pytest.mark.parametrize(
    ("width", "machine", "size"), [(4, 0x14C, 0x2CC), (8, 0x8664, 0x4D0), (8, 0xAA64, 0x390)]
)
def test_context_is_as_long_as_the_machine_has_it(width: int, machine: int, size: int) -> None:
    raw = bytes(index % 251 for index in range(3000))[: 1200 if width == 4 else 3000]
    header = parse_header(bytes(build_header(width, 3, machine=machine, context=raw)))
    assert header.context == raw[:size]


@pytest.mark.parametrize("width", WIDTHS)
def test_fill_pattern_is_absent(width: int) -> None:
    raw = bytearray(build_header(width, 3))
    for name, (at32, _, at64, _) in FIELDS.items():
        if name in {"machine", "dump_type", "kd_secondary_version"}:
            continue
        at = at32 if width == 4 else at64
        raw[at : at + 32] = b"PAGE" * 8
    place(raw, width, "machine", 0x14C if width == 4 else 0x8664)
    place(raw, width, "dump_type", 3)
    header = parse_header(bytes(raw))
    for name in (*POINTERS, "processors", "bug_check_code", "boot_id", "suite_mask"):
        assert getattr(header, name) == 0, name
    for name in ("system_time", "uptime", "required_space", "product_type", "number_of_runs"):
        assert getattr(header, name) is None, name
    assert header.runs == ()
    assert header.comment == header.version_user == ""
    assert header.context == b""
    assert header.pae is None
    # The text PAGE has the bit of "encrypted" set: absent flags must not refuse a dump.
    assert header.attributes == 0
    assert not header.encrypted


@pytest.mark.parametrize(("byte", "pae"), [(0, False), (1, True), (0x50, None), (7, None)])
def test_pae(byte: int, pae: bool | None) -> None:
    assert parse_header(bytes(build_header(4, 3, pae=byte))).pae is pae


@pytest.mark.parametrize(
    ("width", "raw", "masked"),
    [
        (8, 0x80000001AA002, 0x80000001AA000),
        (8, 0xFFFF0000001AAFFF, 0x000F0000001AA000),
        (4, 0x0031A0E7, 0x0031A0E0),
    ],
)
def test_table_base_without_flags(width: int, raw: int, masked: int) -> None:
    header = parse_header(bytes(build_header(width, 3, directory_table_base=raw)))
    assert header.directory_table_base == masked


@pytest.mark.parametrize(("width", "room"), [(4, 86), (8, 43)])
def test_runs_up_to_the_room_of_the_header(width: int, room: int) -> None:
    runs = [(index * 0x100 + 1, 0x10) for index in range(room)]
    header = build_header(width, 1)
    place_runs(header, width, runs)
    parsed = parse_header(bytes(header))
    assert parsed.runs == tuple(runs)
    assert (parsed.number_of_runs, parsed.number_of_pages) == (room, 0x10 * room)
    assert parsed.context == usual_context(width)[: len(parsed.context)]
    place_runs(header, width, runs, number=0xFFFFFFFF)
    assert parse_header(bytes(header)).runs == tuple(runs)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1, DumpKind.FULL),
        (2, DumpKind.KERNEL),
        (3, DumpKind.HEADER_ONLY),
        (4, DumpKind.TRIAGE),
        (5, DumpKind.BITMAP_FULL),
        (6, DumpKind.BITMAP_KERNEL),
        (7, DumpKind.BITMAP_KERNEL),
        (8, DumpKind.KERNEL_RANGES),
        (9, DumpKind.KERNEL_AND_USER_RANGES),
        (10, DumpKind.COMPLETE_RANGES),
    ],
)
def test_kinds(number: int, kind: DumpKind) -> None:
    header = parse_header(bytes(build_header(8, number)))
    assert (header.kind, header.dump_type) == (kind, number)
    assert kind.title


@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        (b"FDMPDUMP", DumpKind.BITMAP_FULL),
        (b"SDMPDUMP", DumpKind.BITMAP_KERNEL),
        (b"\x40\0\0\0RDMPDUMP", DumpKind.KERNEL_AND_USER_RANGES),
    ],
)
@pytest.mark.parametrize("number", [0x45474150, 0, 99])
def test_kind_by_what_follows_where_the_type_is_not_known(
    number: int, behind: bytes, kind: DumpKind
) -> None:
    raw = bytes(build_header(8, number)) + behind.ljust(0x40, b"\0")
    assert parse_header(raw).kind is kind


def test_absent_type_is_an_old_complete_dump_and_an_unknown_one_is_refused() -> None:
    assert parse_header(bytes(build_header(4, 0x45474150))).kind is DumpKind.FULL
    with pytest.raises(TargetError, match="dump type is 99"):
        parse_header(bytes(build_header(4, 99)))


@pytest.mark.parametrize(
    ("width", "machine", "architecture"),
    [
        (4, 0x14C, Architecture.X86),
        (4, 0x45474150, Architecture.X86),
        (8, 0x8664, Architecture.X64),
        (8, 0xAA64, Architecture.ARM64),
    ],
)
def test_machines(width: int, machine: int, architecture: Architecture) -> None:
    header = parse_header(bytes(build_header(width, 3, machine=machine)))
    assert (header.architecture, header.pointer_size) == (architecture, width)


@pytest.mark.parametrize(
    ("width", "machine", "name"),
    [(8, 0x200, "Itanium"), (4, 0x8664, "0x8664"), (8, 0x14C, "0x14c"), (4, 0x1C4, "ARM")],
)
def test_other_machines_are_refused_by_name(width: int, machine: int, name: str) -> None:
    with pytest.raises(UnsupportedTarget, match=name):
        parse_header(bytes(build_header(width, 3, machine=machine)))


def test_attributes_and_encryption() -> None:
    for bit, flag in enumerate(DumpAttributes):
        header = parse_header(bytes(build_header(8, 3, attributes=1 << bit)))
        assert header.attributes is flag
        assert header.encrypted is (bit == 8)
    decrypted = parse_header(bytes(build_header(8, 3, attributes=3 << 8)))
    assert not decrypted.encrypted


@pytest.mark.parametrize("width", WIDTHS)
def test_too_short_or_without_signature(width: int) -> None:
    raw = bytes(build_header(width, 3))
    with pytest.raises(TargetError, match="ends after"):
        parse_header(raw[:-1])
    with pytest.raises(TargetError, match="does not begin"):
        parse_header(b"PAGEDUMB" + raw[8:])
