"""Code that asks for a tag on the practice machine, whose ledger knows every call site."""

from __future__ import annotations

import pytest

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.found import SiteKind, SiteSearch
from kdleak.model import Architecture, Module, Symbolized, SymbolKind
from kdleak.nt.sites.search import search_sites
from kdleak.practice.images import BUILDS
from kdleak.practice.machine import PracticeMachine
from kdleak.tags import PoolTag


class MachineMemory:
    """The machine's kernel memory as a ``MemoryReader``."""

    def __init__(self, machine: PracticeMachine) -> None:
        self._machine = machine

    def read(self, address: int, size: int) -> bytes:
        data = self._machine.read_virtual(address, size)
        if len(data) != size:
            raise MemoryUnreadable(address + len(data), size)
        return data


@pytest.fixture(scope="module", params=sorted(BUILDS))
def machine(request):
    machine = PracticeMachine(seed=7, build=request.param, processors=1)
    for _ in range(40):
        assert machine.tick() is None
    yield machine
    machine.close()


def search(machine: PracticeMachine, tag: str) -> SiteSearch:
    def symbol(name: str) -> int:
        try:
            return machine.symbol(name)
        except KeyError:
            raise SymbolNotFound(f"looking up {name}", "it is not there") from None

    def nearest(address: int) -> Symbolized:
        module, name, offset = machine.nearest(address)
        return Symbolized(address, module, name, offset, SymbolKind.PDB)

    (found,) = search_sites(
        (PoolTag.parse(tag),),
        memory=MachineMemory(machine),
        modules=[Module(one.name, one.base, one.size, one.file_name) for one in machine.images],
        symbol=symbol,
        nearest=nearest,
        pointer_size=8,
        architecture=Architecture.X64,
    )
    return found


def returns_after(machine: PracticeMachine, call: int) -> int:
    """The return address of a call instruction: rel32 or through memory."""
    first = machine.read_virtual(call, 2)
    assert first[:1] == b"\xe8" or first == b"\xff\x15"
    return call + (5 if first[:1] == b"\xe8" else 6)


@pytest.mark.parametrize("tag", ["Leak", "Busy", "Irp ", "File"])
def test_every_call_site_of_the_ledger_is_found_exactly(machine, tag: str) -> None:
    sites = [site for site in machine.ground_truth() if site.tag == PoolTag.parse(tag)]
    sites = [site for site in sites if site.allocs and site.function != "ExpCreatePopulation"]
    assert sites or tag not in ("Leak", "Busy")
    found = search(machine, tag)
    calls = {
        returns_after(machine, one.call_address): one
        for one in found.sites
        if one.kind is SiteKind.CALL
    }
    for site in sites:
        # What the population allocates at boot is named by a table, not by an immediate.
        call = calls.get(site.return_address)
        if call is None:
            assert site.module == "nt", f"{site.module}!{site.function} was not found"
            continue
        assert not call.frees
        assert (call.module, call.symbol.name) == (site.module, site.function)
        assert call.symbol.offset < site.offset
    allocating = {at for at, one in calls.items() if not one.frees and one.module != "nt"}
    ran = {site.return_address for site in sites if site.module != "nt"}
    assert ran <= allocating


def test_the_leaking_driver_is_the_only_one(machine) -> None:
    found = search(machine, "Leak")
    assert found.drivers == ("leakydrv",)
    kinds = [site.kind for site in found.sites]
    assert kinds == [SiteKind.CALL] * 5
    assert sum(site.frees for site in found.sites) == 2
    assert found.modules == len(machine.images)
    assert found.gaps == ()


def test_a_tag_that_nobody_asks_for(machine) -> None:
    found = search(machine, "Zq9!")
    assert found.sites == ()
    assert found.drivers == ()
