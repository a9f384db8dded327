"""Code that asks for a tag, in images that clang builds for every architecture.

llvm-objdump reads the same images on its own and must agree about every instruction and call.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Dict, List, Set, Tuple

import pytest
from site_images import LEAK, MISSING_TOOLS, Target, build, without_import_names

from kdleak.found import SiteKind, SiteSearch, TagSite
from kdleak.model import Architecture

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(bool(MISSING_TOOLS), reason=f"not installed: {', '.join(MISSING_TOOLS)}"),
]

# function: (routine, number of calls)
CALLS = {
    "CallDirect": ("ExAllocatePoolWithTag", 1),
    "CallTail": ("ExAllocatePoolWithTag", 1),
    "CallWide": ("ExAllocatePool2", 1),
    "CallThunk": ("ExAllocatePoolWithQuotaTag", 1),
    "CallFree": ("ExFreePoolWithTag", 1),
    "CallProtected": ("ExFreePoolWithTag", 1),
    "CallLookaside": ("ExInitializeNPagedLookasideList", 1),
    "CallBranches": ("ExAllocatePoolWithTag", 1),
    "CallTwice": ("ExAllocatePoolWithTag", 3),
}


@pytest.fixture(scope="module", params=[(a, f) for a in Architecture for f in ("-O2", "-Oz")],
                ids=lambda param: f"{param[0].value}{param[1]}")  # fmt: skip
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    architecture, flag = request.param
    folder = tmp_path_factory.mktemp("sites")
    target = build(folder, architecture, flags=[flag])
    return folder, target, target.search()


def by_function(found: SiteSearch, kind: SiteKind, module: str = "driver") -> Dict[str, List]:
    result: Dict[str, List[TagSite]] = {}
    for site in found.sites:
        if site.kind is kind and site.module == module:
            result.setdefault(site.symbol.name, []).append(site)
    return result


def test_every_call_and_nothing_else_is_a_call(built) -> None:
    _, _, found = built
    calls = by_function(found, SiteKind.CALL)
    # Compilers may load the tag once for several calls, or several times for one.
    seen = {
        name: ({site.routine for site in sites}, len({site.call_address for site in sites}))
        for name, sites in calls.items()
    }
    assert seen == {name: ({f"nt!{routine}"}, count) for name, (routine, count) in CALLS.items()}
    frees = {name for name, sites in calls.items() if any(site.frees for site in sites)}
    assert frees == {"CallFree", "CallProtected"}


def test_the_kernels_own_call_is_found(built) -> None:
    _, _, found = built
    calls = by_function(found, SiteKind.CALL, "nt")
    assert list(calls) == ["IoAllocateSomething"]
    assert calls["IoAllocateSomething"][0].routine == "nt!ExAllocatePoolWithTag"


def test_weaker_places(built) -> None:
    _, _, found = built
    assert list(by_function(found, SiteKind.NEAR_CALL)) == ["NearOtherTag"]
    weak = by_function(found, SiteKind.OCCURRENCE)
    assert set(weak) == {"WeakCompare", "WeakOtherRoutine", "TagsInData"}
    assert [site.symbol.offset for site in weak["TagsInData"]] == [4]
    assert weak["TagsInData"][0].instruction == ""
    assert found.gaps == ()


def test_names_of_imports_given_back(built) -> None:
    """After INIT is gone the slots' values alone name the routines."""
    _, target, found = built
    assert isinstance(target, Target)
    module = target.modules[1]
    start = int.from_bytes(target.read(module.base + 0x3C, 4), "little")
    at = module.base + start + 0x18 + (0x70 if target.pointer_size == 8 else 0x60) + 8
    saved = target.read(at, 8)
    without_import_names(target, module)
    try:
        assert target.search().sites == found.sites
    finally:
        target.write(at, saved)


def _disassembly(folder: Path, module: str) -> Dict[int, Tuple[str, str]]:
    """Address -> (mnemonic, operands) of every instruction, as llvm-objdump reads the file."""
    file = {"nt": "ntoskrnl.exe", "driver": "driver.sys"}[module]
    text = subprocess.run(
        ["llvm-objdump-19", "-d", "--no-show-raw-insn", "--x86-asm-syntax=intel", file],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rows = re.findall(r"^\s*([0-9a-f]{6,16}):\s+(\S+)[ \t]*([^\n]*)$", text, re.M)
    return {int(at, 16): (mnemonic, operands) for at, mnemonic, operands in rows}


def test_an_independent_disassembler_agrees(built) -> None:
    folder, target, found = built
    listings = {module: _disassembly(folder, module) for module in ("nt", "driver")}
    mask = (1 << 8 * target.pointer_size) - 1
    arm = target.architecture is Architecture.ARM64
    loads: Set[int] = set()
    for site in found.sites:
        if not site.instruction:
            continue
        listing = listings[site.module]
        mnemonic, operands = listing[site.address & mask]
        assert mnemonic == site.instruction.split()[0]
        numbers = {int(number, 16) for number in re.findall(r"0x([0-9a-f]+)", operands)}
        tag = LEAK.value >> 16 if arm else LEAK.value
        protected = tag | (0x8000 if arm else 0x80000000)
        assert {tag, protected} & {number & 0xFFFFFFFF for number in numbers}, operands
        loads.add(site.address & mask)
        if site.kind is SiteKind.CALL:
            called = listing[site.call_address & mask][0]
            assert called in ({"bl", "blr", "b", "br"} if arm else {"call", "jmp"})
    # And nothing that it reads as such an immediate was left out.
    immediate = re.compile(r"0x(?:eb|6b)61$|0x(?:eb|6b)61," if arm else r"0x(?:eb|6b)61654c")
    there = {
        address
        for listing in listings.values()
        for address, (mnemonic, operands) in listing.items()
        if immediate.search(operands) and (mnemonic == "movk" or not arm)
    }
    assert there == loads
