"""kdleak's own readers of Windows structures agree with the truth of the practice kernel."""

from __future__ import annotations

import pytest

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.model import Pool
from kdleak.nt.pool import read_pool_usage
from kdleak.practice.images import BUILDS
from kdleak.tags import PoolTag


class MachineMemory:
    """A machine as the readers want it."""

    def __init__(self, machine):
        self.machine = machine

    def read(self, address, size):
        data = self.machine.read_virtual(address, size)
        if len(data) < size:
            raise MemoryUnreadable(address, size)
        return data

    def symbol(self, name):
        try:
            return self.machine.symbol(name)
        except KeyError:
            raise SymbolNotFound(f"looking for {name}", "it is in no symbol file") from None


@pytest.mark.parametrize("build", BUILDS)
def test_pool_usage(boot, build):
    machine = boot(build=build)
    for _ in range(50):
        assert machine.tick() is None
    memory = MachineMemory(machine)
    snapshot = read_pool_usage(memory, memory.symbol, build, 8, processors=2)
    assert snapshot.gaps == ()
    truth: dict[tuple[PoolTag, Pool], list[int]] = {}
    for site in machine.ground_truth():
        row = truth.setdefault((site.tag, site.pool), [0, 0, 0])
        row[0] += site.allocs
        row[1] += site.frees
        row[2] += site.bytes
    checked = 0
    for (tag, pool), (allocs, frees, size) in truth.items():
        if tag.text == "Pool":  # the tables' own memory is not booked by any call site
            continue
        usage = snapshot.find(tag)
        assert usage is not None, tag
        counters = usage.of(pool)
        # A tag without anything outstanding may be shown with its counts levelled.
        assert counters.outstanding == allocs - frees
        assert counters.bytes == size
        checked += 1
    assert checked > 100
