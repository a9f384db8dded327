"""Code that asks for a tag: x64, x86 and ARM64 code put together by hand, and damaged images."""

from __future__ import annotations

import random
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from site_images import (
    CODE,
    DATA,
    DRIVER,
    KERNEL,
    LEAK,
    PDATA,
    TABLE,
    Target,
    by_hand,
    image_of,
    slot,
)

from kdleak.errors import MissingDependency
from kdleak.found import SiteKind, SiteSearch
from kdleak.model import Architecture, Module
from kdleak.nt.pe import read_image
from kdleak.nt.sites.imports import read_imports
from kdleak.nt.sites.search import code_size, search_sites
from kdleak.tags import PoolTag

TAG = b"Leak"
PROTECTED = b"Lea\xeb"
X64_BASE = DRIVER[Architecture.X64]


class Assembler:
    """Bytes at an RVA; what refers to elsewhere is filled in by where it stands."""

    def __init__(self, width: int = 8) -> None:
        self.code = b""
        self.width = width

    def put(self, *parts: bytes) -> Assembler:
        self.code += b"".join(parts)
        return self

    @property
    def here(self) -> int:
        return CODE + len(self.code)

    def relative(self, opcode: bytes, rva: int) -> Assembler:
        """An instruction that ends with a distance of 32 bits."""
        end = self.here + len(opcode) + 4
        return self.put(opcode, struct.pack("<i", rva - end))

    def through(self, name: str, opcode: bytes = b"\xff\x15") -> Assembler:
        """call (or what the opcode is) [slot of an import]."""
        if self.width == 8:
            return self.relative(opcode, slot(name))
        address = DRIVER[Architecture.X86] + slot(name, 4) & 0xFFFFFFFF
        return self.put(opcode, struct.pack("<I", address))


def kinds(found: SiteSearch) -> list:
    return [(site.kind, site.routine) for site in found.sites]


def one_call(found: SiteSearch, routine: str, call_rva: int) -> None:
    """The only find is this call."""
    assert kinds(found) == [(SiteKind.CALL, f"nt!{routine}")]
    assert found.sites[0].call_address == X64_BASE + call_rva


MOV_R8D, MOV_EDX, MOV_ECX, MOV_ESI = b"\x41\xb8", b"\xba", b"\xb9", b"\xbe"
RET = b"\xc3"

# ---- x64: ways to call ----


def test_import_called_through_its_slot() -> None:
    code = Assembler().put(MOV_R8D, TAG)
    call = code.here
    found = by_hand(code.through("ExAllocatePoolWithTag").put(RET).code).search()
    one_call(found, "ExAllocatePoolWithTag", call)
    site = found.sites[0]
    assert (site.module, str(site.symbol)) == ("driver", "driver!Function")
    assert site.address == X64_BASE + CODE
    assert site.instruction == "mov r8d, 0x6b61654c"
    assert not site.frees
    assert found.drivers == ("driver",)


def test_free_takes_the_tag_as_second_argument_with_the_protected_bit() -> None:
    code = Assembler().put(MOV_EDX, PROTECTED).through("ExFreePoolWithTag").put(RET)
    found = by_hand(code.code).search()
    one_call(found, "ExFreePoolWithTag", CODE + 5)
    assert found.sites[0].frees


def test_protected_bit_added_by_an_instruction() -> None:
    # mov edx, tag; or edx, 80000000h
    code = Assembler().put(MOV_EDX, TAG, b"\x81\xca\0\0\0\x80").through("ExFreePoolWithTag")
    one_call(by_hand(code.code).search(), "ExFreePoolWithTag", CODE + 11)


def test_other_bits_added_make_another_tag() -> None:
    code = Assembler().put(MOV_EDX, TAG, b"\x81\xca\0\0\0\x01").through("ExFreePoolWithTag")
    assert kinds(by_hand(code.code).search()) == [(SiteKind.NEAR_CALL, "nt!ExFreePoolWithTag")]


def test_tail_jump_through_the_slot() -> None:
    code = Assembler().put(MOV_R8D, TAG).through("ExAllocatePool2", b"\x48\xff\x25")
    one_call(by_hand(code.code).search(), "ExAllocatePool2", CODE + 6)


@pytest.mark.parametrize("jump", [b"\xff\x25", b"\x48\xff\x25", b"\xf3\x0f\x1e\xfa\xff\x25"])
def test_thunk(jump: bytes) -> None:
    code = Assembler().put(MOV_R8D, TAG).relative(b"\xe8", CODE + 0x40).put(RET)
    code.put(b"\xcc" * (CODE + 0x40 - code.here)).through("ExAllocatePoolWithTag", jump)
    one_call(by_hand(code.code).search(), "ExAllocatePoolWithTag", CODE + 6)


def test_thunk_of_a_thunk() -> None:
    code = Assembler().put(MOV_R8D, TAG).relative(b"\xe8", CODE + 0x20).put(RET)
    code.put(b"\xcc" * (CODE + 0x20 - code.here)).relative(b"\xe9", CODE + 0x40)
    code.put(b"\xcc" * (CODE + 0x40 - code.here)).through("ExAllocatePoolWithTag", b"\xff\x25")
    one_call(by_hand(code.code).search(), "ExAllocatePoolWithTag", CODE + 6)


def test_thunks_in_a_ring_end() -> None:
    code = Assembler().put(MOV_R8D, TAG).relative(b"\xe8", CODE + 0x20).put(RET)
    code.put(b"\xcc" * (CODE + 0x20 - code.here)).relative(b"\xe9", CODE + 0x20)
    assert kinds(by_hand(code.code).search()) == [(SiteKind.OCCURRENCE, "")]


def test_retpoline_before_and_after_windows_patches_it() -> None:
    # mov r10, [slot]; call guard (a stub behind the image), or the routine itself.
    for called in (0x9000, KERNEL[Architecture.X64] + CODE + 0x40 - X64_BASE):
        code = Assembler().put(MOV_R8D, TAG).through("ExAllocatePool2", b"\x4c\x8b\x15")
        call = code.here
        target = by_hand(code.put(b"\xe8").code)
        distance = called - (call + 5)
        if not -(1 << 31) <= distance < 1 << 31:
            pytest.skip("the kernel is too far away")
        target.write(X64_BASE + call + 1, struct.pack("<i", distance))
        target.write(X64_BASE + call + 5, RET)
        one_call(target.search(), "ExAllocatePool2", call)


def test_retpoline_thunk() -> None:
    # mov r10, [slot]; jmp guard
    code = Assembler().put(MOV_R8D, TAG).relative(b"\xe8", CODE + 0x20).put(RET)
    code.put(b"\xcc" * (CODE + 0x20 - code.here)).through("ExAllocatePool2", b"\x4c\x8b\x15")
    code.relative(b"\xe9", CODE + 0x80)
    one_call(by_hand(code.code).search(), "ExAllocatePool2", CODE + 6)


def test_routine_in_a_register_that_calls_keep() -> None:
    # mov rbx, [slot]; mov esi, tag; mov r8d, esi; call rbx; mov r8d, esi; call rbx
    code = Assembler().through("ExAllocatePoolWithTag", b"\x48\x8b\x1d").put(MOV_ESI, TAG)
    calls = []
    for _ in range(2):
        code.put(b"\x44\x8b\xc6")
        calls.append(X64_BASE + code.here)
        code.put(b"\xff\xd3")
    found = by_hand(code.put(RET).code, functions=[(CODE, code.here)]).search()
    assert [site.call_address for site in found.sites] == calls
    assert {site.kind for site in found.sites} == {SiteKind.CALL}


def test_dispatcher_of_control_flow_guard() -> None:
    # mov rax, [slot]; call dispatcher, which is: jmp rax
    code = Assembler().put(MOV_R8D, TAG).through("ExAllocatePoolWithTag", b"\x48\x8b\x05")
    call = code.here
    code.relative(b"\xe8", CODE + 0x60).put(RET)
    code.put(b"\xcc" * (CODE + 0x60 - code.here), b"\xff\xe0")
    one_call(by_hand(code.code).search(), "ExAllocatePoolWithTag", call)


def test_address_in_rax_at_the_call_of_something_else_is_no_call_of_it() -> None:
    # mov rax, [slot]; mov [rip+x], rax; call a function of the driver's own
    code = Assembler().put(MOV_R8D, TAG).through("ExAllocatePoolWithTag", b"\x48\x8b\x05")
    code.relative(b"\x48\x89\x05", DATA).relative(b"\xe8", CODE + 0x60).put(RET)
    code.put(b"\xcc" * (CODE + 0x60 - code.here), b"\x31\xc0", RET)
    assert kinds(by_hand(code.code).search()) == [(SiteKind.OCCURRENCE, "")]


def test_slot_bound_to_a_verifier_of_the_kernel() -> None:
    code = Assembler().put(MOV_R8D, TAG).through("KeBugCheckEx").put(RET)
    target = by_hand(code.code)
    target.symbols["nt!VerifierExAllocatePoolWithTag"] = target.symbols.pop("nt!KeBugCheckEx")
    assert kinds(target.search()) == [(SiteKind.CALL, "nt!VerifierExAllocatePoolWithTag")]


def test_tag_on_the_stack_for_a_lookaside_list() -> None:
    # sub rsp, 48h; mov dword [rsp+30h], tag; call
    code = Assembler().put(b"\x48\x83\xec\x48\xc7\x44\x24\x30", TAG)
    code.through("ExInitializeLookasideListEx").put(RET)
    one_call(by_hand(code.code).search(), "ExInitializeLookasideListEx", CODE + 12)


def test_other_slot_of_the_stack_is_no_tag_argument() -> None:
    code = Assembler().put(b"\xc7\x44\x24\x28", TAG).through("ExInitializeLookasideListEx")
    assert kinds(by_hand(code.code).search()) == [
        (SiteKind.NEAR_CALL, "nt!ExInitializeLookasideListEx")
    ]


def test_kmdf_memory_by_its_place_in_the_function_table() -> None:
    # mov r9d, tag; mov rax, [table]; mov rax, [rax+600h]; call rax
    code = Assembler().put(b"\x41\xb9", TAG).relative(b"\x48\x8b\x05", DATA)
    code.put(b"\x48\x8b\x80", struct.pack("<I", 0x600), b"\xff\xd0", RET)
    assert kinds(by_hand(code.code).search()) == [(SiteKind.NEAR_CALL, "Wdf01000!WdfMemoryCreate")]


def test_tag_in_a_structure_for_a_pool_of_ndis() -> None:
    # mov dword [rbp+20h], tag; call [slot]: the structure's address is the argument.
    code = Assembler().put(b"\xc7\x45\x20", TAG).through("NdisAllocateNetBufferListPool").put(RET)
    assert kinds(by_hand(code.code).search()) == [
        (SiteKind.NEAR_CALL, "nt!NdisAllocateNetBufferListPool")
    ]


def test_wrapper_by_its_name() -> None:
    code = Assembler().put(MOV_ECX, TAG).relative(b"\xe8", CODE + 0x40).put(RET)
    code.put(b"\xcc" * (CODE + 0x40 - code.here), b"\x31\xc0", RET)
    target = by_hand(code.code)
    target.symbols["driver!MyAllocatePool"] = X64_BASE + CODE + 0x40
    assert kinds(target.search()) == [(SiteKind.NEAR_CALL, "driver!MyAllocatePool")]


# ---- x64: where the tag is at the call ----


def test_tag_overwritten_before_the_call() -> None:
    code = Assembler().put(MOV_R8D, TAG, MOV_R8D, b"Else").through("ExAllocatePoolWithTag")
    assert kinds(by_hand(code.code).search()) == [(SiteKind.NEAR_CALL, "nt!ExAllocatePoolWithTag")]


@pytest.mark.parametrize(
    "overwrite",
    [
        b"\x45\x31\xc0",  # xor r8d, r8d
        b"\x44\x8b\xc0",  # mov r8d, eax
        b"\x41\x83\xc0\x01",  # add r8d, 1
        b"\x41\xb0\x01",  # mov r8b, 1
        b"\x41\x58",  # pop r8
        b"\x4c\x8d\x00",  # lea r8, [rax]
        b"\x45\x0f\xb6\xc0",  # movzx r8d, r8b
    ],
)
def test_anything_else_that_writes_the_register(overwrite: bytes) -> None:
    code = Assembler().put(MOV_R8D, TAG, overwrite).through("ExAllocatePoolWithTag")
    assert kinds(by_hand(code.code).search()) == [(SiteKind.NEAR_CALL, "nt!ExAllocatePoolWithTag")]


def test_call_in_between_takes_the_register() -> None:
    code = Assembler().put(MOV_R8D, TAG).through("KeBugCheckEx").through("ExAllocatePoolWithTag")
    assert kinds(by_hand(code.code).search()) == [(SiteKind.NEAR_CALL, "nt!ExAllocatePoolWithTag")]


def test_tag_in_another_argument() -> None:
    code = Assembler().put(MOV_EDX, TAG).through("ExAllocatePoolWithTag")
    assert kinds(by_hand(code.code).search()) == [(SiteKind.NEAR_CALL, "nt!ExAllocatePoolWithTag")]


def test_tag_through_copies_and_a_stack_slot() -> None:
    # mov eax, tag; mov [rsp+40h], eax; call other; mov would be lost, so without it:
    code = Assembler().put(b"\xb8", TAG, b"\x89\x44\x24\x40", b"\x8b\x4c\x24\x40", b"\x41\x89\xc8")
    call = code.here
    found = by_hand(code.through("ExAllocatePoolWithTag").put(RET).code).search()
    one_call(found, "ExAllocatePoolWithTag", call)


def test_either_of_two_tags() -> None:
    # mov r8d, other; mov ecx, tag; cmove r8d, ecx
    code = Assembler().put(MOV_R8D, b"Else", MOV_ECX, TAG, b"\x44\x0f\x44\xc1")
    call = code.here
    target = by_hand(code.through("ExAllocatePoolWithTag").put(RET).code)
    one_call(target.search(), "ExAllocatePoolWithTag", call)
    assert kinds(target.search(PoolTag.parse("Else"))) == kinds(target.search())


def test_paths_that_meet_at_the_call() -> None:
    # test ecx, ecx; je L; mov r8d, tag; jmp M; L: mov r8d, other; M: call
    code = Assembler().put(b"\x85\xc9\x74\x08", MOV_R8D, TAG, b"\xeb\x06", MOV_R8D, b"Else")
    call = code.here
    found = by_hand(code.through("ExAllocatePoolWithTag").put(RET).code).search()
    one_call(found, "ExAllocatePoolWithTag", call)


def test_loop_ends() -> None:
    # L: mov r8d, tag; call; jmp L
    code = Assembler().put(MOV_R8D, TAG).through("ExAllocatePoolWithTag").relative(b"\xe9", CODE)
    one_call(by_hand(code.code).search(), "ExAllocatePoolWithTag", CODE + 6)


def test_call_beyond_the_end_of_the_function_is_not_near() -> None:
    code = Assembler().put(b"\xb8", TAG, RET).through("ExAllocatePoolWithTag")
    assert kinds(by_hand(code.code).search()) == [(SiteKind.OCCURRENCE, "")]


def test_comparison_is_no_argument() -> None:
    # cmp r8d, tag, in front of a call
    code = Assembler().put(b"\x41\x81\xf8", TAG).through("ExAllocatePoolWithTag").put(RET)
    assert kinds(by_hand(code.code).search()) == [(SiteKind.OCCURRENCE, "")]


def test_block_that_only_a_jump_table_leads_to() -> None:
    # The function ends with jmp rax; behind it, within its bounds, the case.
    code = Assembler().put(b"\x48\x8b\x01\xff\xe0", MOV_R8D, TAG)
    call = code.here
    code.through("ExAllocatePoolWithTag").put(RET)
    found = by_hand(code.code, functions=[(CODE, code.here)]).search()
    one_call(found, "ExAllocatePoolWithTag", call)


def test_bytes_in_the_middle_of_another_instruction() -> None:
    # movabs rax, with the tag as its upper half; mov r8d of something else follows.
    code = Assembler().put(b"\x48\xb8", b"\x01\x02\x41\xb8", TAG)
    code.through("ExAllocatePoolWithTag").put(RET)
    found = by_hand(code.code, functions=[(CODE, code.here)]).search()
    assert [site.kind for site in found.sites] == [SiteKind.OCCURRENCE]


def test_without_unwind_data_decoding_falls_into_step() -> None:
    rng = random.Random(5)
    filler = b"\x48\x89\x5c\x24\x08\x57\x48\x83\xec\x20\x48\x8b\xf9"
    for size in (0, 3, 7):
        code = Assembler().put(rng.randbytes(size), filler, MOV_R8D, TAG)
        call = code.here
        found = by_hand(code.through("ExAllocatePoolWithTag").put(RET).code).search()
        one_call(found, "ExAllocatePoolWithTag", call)


# ---- inside the kernel, and other modules ----


def test_kernel_calls_its_own_routine_directly() -> None:
    target = by_hand(b"")
    kernel = KERNEL[Architecture.X64]
    start = CODE + 0x800
    code = MOV_R8D + TAG + b"\xe8" + struct.pack("<i", CODE - (start + 11)) + RET
    target.write(kernel + start, code)
    target.symbols["nt!IopAllocate"] = kernel + start
    found = target.search()
    assert [(site.kind, site.module) for site in found.sites] == [(SiteKind.CALL, "nt")]
    assert found.sites[0].routine == "nt!ExAllocatePoolWithTag"


def test_only_the_modules_asked_for() -> None:
    code = Assembler().put(MOV_R8D, TAG).through("ExAllocatePoolWithTag").put(RET)
    target = by_hand(code.code)
    assert target.search(only=["DRIVER"]).modules == 1
    found = target.search(only=["nt"])
    assert (found.modules, found.sites) == (1, ())


def test_several_tags_in_one_pass() -> None:
    code = Assembler().put(MOV_R8D, TAG).through("ExAllocatePoolWithTag")
    code.put(MOV_EDX, b"Else").through("ExFreePoolWithTag").put(RET)
    target = by_hand(code.code)
    tags = (LEAK, PoolTag.parse("Else"), PoolTag.parse("Xyzw"))
    before = target.reads
    results = search_sites(
        tags,
        memory=target,
        modules=target.modules,
        symbol=target.symbol,
        nearest=target.nearest,
        pointer_size=8,
        architecture=Architecture.X64,
    )
    many = target.reads - before
    assert [one.tag for one in results] == list(tags)
    assert [kinds(one) for one in results] == [
        [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")],
        [(SiteKind.CALL, "nt!ExFreePoolWithTag")],
        [],
    ]
    before = target.reads
    target.search()
    assert many < 1.5 * (target.reads - before)


# ---- data and limits ----


def test_data_is_marked_as_weak_and_limited() -> None:
    target = by_hand(RET, data=TAG * 50)
    found = target.search(limit=10)
    assert kinds(found) == [(SiteKind.OCCURRENCE, "")] * 10
    assert found.occurrences_left_out == 40
    assert found.sites[0].address == X64_BASE + DATA
    assert found.drivers == ()
    assert target.search(data_sections=False).sites == ()


def test_calls_come_first() -> None:
    code = Assembler().put(b"\x3d", TAG, MOV_R8D, TAG).through("ExAllocatePoolWithTag").put(RET)
    found = by_hand(code.code, data=TAG).search()
    assert [site.kind for site in found.sites] == [
        SiteKind.CALL,
        SiteKind.OCCURRENCE,
        SiteKind.OCCURRENCE,
    ]


# ---- what is not there ----


def test_pages_that_are_missing_are_a_gap_and_the_rest_is_searched() -> None:
    target = by_hand(b"")
    image = bytearray(image_of(b"\xc3" * 8, section_size=0x2000))
    image[0x2800 : 0x2800 + 6] = MOV_R8D + TAG
    image[0x2806:0x280C] = b"\xff\x15" + struct.pack("<i", slot("ExAllocatePoolWithTag") - 0x280C)
    base = X64_BASE + 0x100000
    target.add("paged", base, bytes(image), {"PagedFunction": 0x2800})
    address = KERNEL[Architecture.X64] + CODE
    target.write(base + slot("ExAllocatePoolWithTag"), struct.pack("<Q", address))
    target.absent.add(base + 0x1000)
    found = target.search()
    assert kinds(found) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]
    assert found.gaps == ("paged: 1 of 2 pages of .text cannot be read",)


def test_image_without_headers_is_a_gap() -> None:
    target = by_hand(RET)
    target.absent.add(X64_BASE)
    found = target.search()
    assert found.modules == 1
    assert len(found.gaps) == 1
    assert found.gaps[0].startswith("the headers of driver cannot be read")


def test_many_gaps_are_told_in_few_sentences() -> None:
    target = by_hand(RET)
    for number in range(100):
        base = 0xFFFFF80030000000 + 0x100000 * number
        target.add(f"paged{number}", base, image_of(RET), {})
        target.absent.add(base + (0x1000 if number < 60 else 0))
    found = target.search()
    assert len(found.gaps) < 45
    assert "and pages of 20 more sections" in (f"and {gap}" for gap in found.gaps)
    assert any("and 28 more" in gap for gap in found.gaps)


def test_discarded_section_is_no_gap() -> None:
    image = bytearray(image_of(RET))
    flags = image.index(b".text") + 36
    struct.pack_into("<I", image, flags, 0x62000020)
    target = Target(Architecture.X64)
    target.add("driver", X64_BASE, bytes(image), {})
    target.absent.add(X64_BASE + CODE)
    assert target.search().gaps == ()


def test_size_of_the_code_is_known_before_it_is_read() -> None:
    target = by_hand(RET)
    assert code_size(target, target.modules) == 2 * 0x1000


def test_capstone_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "capstone", None)
    with pytest.raises(MissingDependency, match="kdleak\\[dump\\]"):
        by_hand(RET).search()


# ---- x86 ----


def x86(code: Assembler) -> SiteSearch:
    return by_hand(code.code, Architecture.X86).search()


def test_x86_pushed_argument() -> None:
    # push tag; push ecx; push 1; call [slot]
    code = Assembler(4).put(b"\x68", TAG, b"\x51\x6a\x01").through("ExAllocatePoolWithTag")
    found = x86(code)
    assert kinds(found) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]
    assert found.sites[0].instruction == "push 0x6b61654c"
    assert found.sites[0].call_address == DRIVER[Architecture.X86] + CODE + 8


def test_x86_wide_flags_take_two_places() -> None:
    # ExAllocatePool2: push tag; push size; push 0; push 40h
    code = Assembler(4).put(b"\x68", TAG, b"\x51\x6a\0\x6a\x40").through("ExAllocatePool2")
    assert kinds(x86(code)) == [(SiteKind.CALL, "nt!ExAllocatePool2")]


def test_x86_stored_argument() -> None:
    # mov dword [esp+8], tag; call
    code = Assembler(4).put(b"\xc7\x44\x24\x08", TAG).through("ExAllocatePoolWithTag")
    assert kinds(x86(code)) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]


def test_x86_other_argument_is_not_the_tag() -> None:
    # push 1; push tag; push 1
    code = Assembler(4).put(b"\x6a\x01\x68", TAG, b"\x6a\x01").through("ExAllocatePoolWithTag")
    assert kinds(x86(code)) == [(SiteKind.NEAR_CALL, "nt!ExAllocatePoolWithTag")]


def test_x86_register_and_thunk() -> None:
    # mov esi, tag; push esi; push ecx; push 1; call thunk
    code = Assembler(4).put(MOV_ESI, TAG, b"\x56\x51\x6a\x01").relative(b"\xe8", CODE + 0x30)
    code.put(RET, b"\xcc" * (CODE + 0x30 - code.here - 1))
    code.through("ExAllocatePoolWithTag", b"\xff\x25")
    assert kinds(x86(code)) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]


def test_x86_routine_in_a_register() -> None:
    # mov edi, [slot]; push tag; push ecx; push 1; call edi
    code = Assembler(4).through("ExAllocatePoolWithTag", b"\x8b\x3d")
    code.put(b"\x68", TAG, b"\x51\x6a\x01\xff\xd7", RET)
    assert kinds(x86(code)) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]


def test_x86_tail_jump() -> None:
    # mov dword [esp+0ch], tag; jmp [slot]: the return address lies below the arguments.
    code = Assembler(4).put(b"\xc7\x44\x24\x0c", TAG).through("ExAllocatePoolWithTag", b"\xff\x25")
    assert kinds(x86(code)) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]


# ---- ARM64 ----


def words(*instructions: int) -> bytes:
    return struct.pack(f"<{len(instructions)}I", *instructions)


def movz(register: int, half: int, shift: int = 0) -> int:
    return 0x52800000 | shift << 21 | half << 5 | register


def movk(register: int, half: int, shift: int = 1) -> int:
    return 0x72800000 | shift << 21 | half << 5 | register


def pointer_load(at: int, name: str, register: int = 8) -> bytes:
    """adrp x, page of the slot; ldr x, [x, #low]."""
    rva = slot(name)
    pages = (rva >> 12) - (at >> 12)
    adrp = 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register
    load = 0xF9400000 | (rva & 0xFFF) // 8 << 10 | register << 5 | register
    return words(adrp, load)


BLR_X8, RET_ARM, LOW, HIGH = 0xD63F0100, 0xD65F03C0, 0x654C, 0x6B61


def arm(code: bytes, **options: object) -> SiteSearch:
    return by_hand(code, Architecture.ARM64, **options).search()


def arm_call(*setup: int, routine: str = "ExAllocatePoolWithTag") -> bytes:
    return pointer_load(CODE, routine) + words(*setup, BLR_X8, RET_ARM)


@pytest.mark.parametrize(
    "setup",
    [
        (movz(2, LOW), movk(2, HIGH)),
        (movz(2, HIGH, 1), movk(2, LOW, 0)),
        (movz(2, LOW), movk(2, HIGH | 0x8000)),
        (movz(9, LOW), movk(9, HIGH), 0x2A0903E2),  # mov w2, w9
        (movz(2, LOW), 0xD503201F, movk(2, HIGH)),  # nop in between
    ],
)
def test_arm64_constant_in_two_moves(setup: tuple) -> None:
    found = arm(arm_call(*setup))
    assert kinds(found) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]
    assert found.sites[0].instruction.startswith("movk ")


def test_arm64_second_argument_of_free() -> None:
    found = arm(arm_call(movz(1, LOW), movk(1, HIGH), routine="ExFreePoolWithTag"))
    assert kinds(found) == [(SiteKind.CALL, "nt!ExFreePoolWithTag")]
    assert found.sites[0].frees


def test_arm64_other_halves_are_nothing() -> None:
    assert kinds(arm(arm_call(movz(2, LOW + 1), movk(2, HIGH)))) == []
    assert kinds(arm(arm_call(movz(3, LOW), movk(2, HIGH)))) == []


def test_arm64_overwritten() -> None:
    found = arm(arm_call(movz(2, LOW), movk(2, HIGH), movz(2, 7)))
    assert kinds(found) == [(SiteKind.NEAR_CALL, "nt!ExAllocatePoolWithTag")]


def test_arm64_literal() -> None:
    # ldr w2, literal; call; ret; literal
    load = 0x18000002 | (16 // 4) << 5
    code = pointer_load(CODE, "ExAllocatePoolWithTag") + words(load, BLR_X8, RET_ARM, 0) + TAG
    assert kinds(arm(code)) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]


def test_arm64_thunk_and_tail_call() -> None:
    # movz, movk, b thunk; at 0x20: adrp x8; ldr x8; br x8
    for branch in (0x94000000, 0x14000000):
        code = words(movz(2, LOW), movk(2, HIGH), branch | (0x20 - 8) // 4, RET_ARM, 0, 0, 0, 0)
        code += pointer_load(CODE + 0x20, "ExAllocatePoolWithTag") + words(0xD61F0100)
        assert kinds(arm(code)) == [(SiteKind.CALL, "nt!ExAllocatePoolWithTag")]


# ---- bad input ----


@settings(max_examples=20, deadline=None)
@given(
    raw=st.binary(min_size=0, max_size=0x400),
    architecture=st.sampled_from(list(Architecture)),
    tag=st.sampled_from([1, 0x01010101, 0x0F0F0F0F, LEAK.value]),
    spots=st.lists(st.integers(0, 0x3F0), max_size=12),
)
def test_random_code_never_raises(raw, architecture, tag, spots) -> None:
    code = bytearray(raw.ljust(0x400, b"\x90"))
    for spot in spots:
        code[spot : spot + 4] = tag.to_bytes(4, "little")
    target = by_hand(bytes(code), architecture, functions=[(CODE, CODE + 0x300)], data=raw)
    found = target.search(PoolTag(tag))
    assert found.modules == 2
    for site in found.sites:
        assert site.module in ("nt", "driver")
        assert (site.call_address == 0) == (site.kind is SiteKind.OCCURRENCE)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_damaged_headers_never_raise(data) -> None:
    image = bytearray(image_of(MOV_R8D + TAG + RET, functions=[(CODE, CODE + 7)]))
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.one_of(st.integers(0, 0x280), st.integers(PDATA, PDATA + 0x20)))
        image[at] = data.draw(st.integers(0, 255))
    target = Target(Architecture.X64)
    target.add("driver", X64_BASE, bytes(image), {})
    found = target.search()
    assert found.modules <= 1


@settings(max_examples=60, deadline=None)
@given(
    directory=st.binary(max_size=0x200),
    pointers=st.lists(st.integers(0x5000, 0x5200), min_size=4, max_size=20),
    size=st.sampled_from([20, 40, 0x200, 0x2000]),
)
def test_damaged_import_tables_never_raise(directory, pointers, size) -> None:
    image = bytearray(image_of(RET))
    image[0x5000 : 0x5000 + len(directory)] = directory
    for number, rva in enumerate(pointers):  # descriptors that lead into themselves
        struct.pack_into("<I", image, 0x5000 + 4 * number, rva)
    struct.pack_into("<II", image, 0x98 + 0x70 + 8, 0x5000, size)
    target = Target(Architecture.X64)
    target.add("driver", X64_BASE, bytes(image), {})
    headers = read_image(target, X64_BASE)
    assert headers is not None
    for rva, (library, name) in read_imports(target, headers).items():
        assert rva >= 0
        assert library.isascii()
        assert name


def test_imports_by_name_and_by_number() -> None:
    image = bytearray(image_of(RET))
    struct.pack_into("<IIIII", image, 0x5000, 0x5100, 0, 0, 0x5200, TABLE)
    struct.pack_into("<QQQQ", image, 0x5100, 0x5300, 1 << 63 | 7, 0x5320, 0)
    image[0x5200:0x520D] = b"ntoskrnl.exe\0"
    image[0x5300:0x5306] = b"\0\0One\0"
    image[0x5320:0x5326] = b"\0\0Two\0"
    struct.pack_into("<II", image, 0x98 + 0x70 + 8, 0x5000, 40)
    target = Target(Architecture.X64)
    target.add("driver", X64_BASE, bytes(image), {})
    headers = read_image(target, X64_BASE)
    assert headers is not None
    assert read_imports(target, headers) == {
        TABLE: ("ntoskrnl.exe", "One"),
        TABLE + 16: ("ntoskrnl.exe", "Two"),
    }
    target.absent.add(X64_BASE + 0x5000)
    assert read_imports(target, headers) == {}


@pytest.mark.parametrize("value", [0xFFFFFFFF, 0x7FFFFFFF, 0x80000000])
def test_absurd_sizes_are_harmless(value: int) -> None:
    image = bytearray(image_of(MOV_R8D + TAG + RET))
    optional = 0x98
    struct.pack_into("<I", image, optional + 0x38, value & 0x7FFFFFFF)
    for number in range(16):
        struct.pack_into("<II", image, optional + 0x70 + 8 * number, 0x1000, value)
    section = optional + 0xF0
    struct.pack_into("<I", image, section + 8, value)
    target = Target(Architecture.X64)
    target.add("driver", X64_BASE, bytes(image), {})
    started = time.perf_counter()
    target.search()
    # The module list names a huge module, too; nothing of it is there.
    target.modules[0] = Module("driver", X64_BASE, value, "driver.sys")
    found = target.search()
    assert time.perf_counter() - started < 5
    assert found.gaps


def test_tag_of_ordinary_bytes_is_bounded() -> None:
    target = by_hand(b"\x01\0\0\0" * 0x400, data=b"\x01\0\0\0" * 0x400)
    started = time.perf_counter()
    found = target.search(PoolTag(1))
    assert time.perf_counter() - started < 10
    assert len(found.sites) + found.occurrences_left_out >= 0x400


def test_large_image_is_searched_fast() -> None:
    rng = random.Random(1)
    size = 30 << 20
    target = Target(Architecture.X64)
    block = rng.randbytes(1 << 20)
    image = image_of(b"", section_size=size - 0x2000, size=size)
    image = image[:CODE] + (block * 30)[: size - CODE - 0x10] + bytes(0x10)
    target.add("nt", KERNEL[Architecture.X64], image, {})
    started = time.perf_counter()
    assert target.search().sites == ()
    assert time.perf_counter() - started < 2.5
