"""nt's pool variables in the practice kernels, against the truth of their symbols."""

from __future__ import annotations

import pytest

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.nt.kdbg import find_debugger_data
from kdleak.nt.memory import read_pointer
from kdleak.nt.pe import read_image
from kdleak.nt.places.pool_places import PoolPlaces, Way
from kdleak.nt.pool import PoolTagTables
from kdleak.practice.images import BUILDS
from kdleak.practice.machine import PracticeMachine

NAMES = ("ExPoolTagTables", "PoolTrackTableSize", "PoolTrackTableMask", "PoolBigPageTable",
         "PoolBigPageTableSize")  # fmt: skip


class MachineMemory:
    def __init__(self, machine):
        self._machine = machine

    def read(self, address, size):
        data = self._machine.read_virtual(address, size)
        if len(data) != size:
            raise MemoryUnreadable(address + len(data), size)
        return data


@pytest.fixture(scope="module", params=[(build, count) for build in BUILDS for count in (1, 2)],
                ids=lambda item: f"{item[0]}-{item[1]}")  # fmt: skip
def machine(request):
    build, processors = request.param
    with PracticeMachine(build=build, processors=processors) as machine:
        for _ in range(20):
            machine.tick()
        yield machine


def places(machine, *, kdbg, symbol=None):
    memory = MachineMemory(machine)
    block = find_debugger_data(memory, machine.symbol("nt!KdDebuggerDataBlock")) if kdbg else None
    assert (block is not None) == kdbg
    return PoolPlaces(
        memory,
        read_image(memory, machine.kernel.base),
        build=machine.build,
        pointer_size=8,
        processors=len(machine.processors),
        symbol=symbol,
        debugger_data=block,
    )


def usage(machine, symbol, processors):
    return PoolTagTables(
        MachineMemory(machine), symbol, machine.build, 8, lambda: 0.0, processors=processors
    ).usage()


@pytest.mark.parametrize("kdbg", [True, False], ids=["kdbg", "no-kdbg"])
def test_contents_agree_with_the_symbols(machine, kdbg):
    found = places(machine, kdbg=kdbg)
    for name in NAMES:
        assert found.symbol(f"nt!{name}") == machine.symbol(f"nt!{name}"), name
        assert found.how(f"nt!{name}") is Way.CONTENTS
    table = found.symbol("nt!PoolTrackTable")
    if kdbg:
        assert table == machine.symbol("nt!PoolTrackTable")
    # Without KDBG, another variable that holds the same pointer is as good.
    assert read_pointer(MachineMemory(machine), table, 8) == machine.read_u64("PoolTrackTable")
    truth = usage(machine, machine.symbol, len(machine.processors))
    mine = usage(machine, found.symbol, found.processors)
    assert mine.rows == truth.rows
    assert mine.gaps == ()


def test_symbols_are_used_where_they_are(machine):
    def symbol(name):
        try:
            return machine.symbol(name)
        except KeyError as error:
            raise SymbolNotFound(name) from error

    found = places(machine, kdbg=False, symbol=symbol)
    for name in ("PoolTrackTable", *NAMES):
        assert found.symbol(f"nt!{name}") == machine.symbol(f"nt!{name}")
        assert found.how(f"nt!{name}") is Way.SYMBOL
    assert found.processors == len(machine.processors)
    assert found.remarks == []
