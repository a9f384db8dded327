"""The native engine on practice machines of all builds, without a wire between them."""

from __future__ import annotations

import pytest
from direct_host import DirectHost
from practice_wire import symbol_path

from kdleak.engine.blocks import block_finder
from kdleak.engine.native import NativeEngine
from kdleak.kd.packets import Api
from kdleak.model import BlockTrust, HitKind, Pool, StackEnd, StopKind
from kdleak.practice.images import BUILDS
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.workload import Workload
from kdleak.tags import PoolTag

pytestmark = pytest.mark.e2e

LEAK = PoolTag.parse("Leak")
BUSY = PoolTag.parse("Busy")
KERNEL_TOPS = {"ExAllocateHeapPool": HitKind.ALLOC, "ExFreeHeapPool": HitKind.FREE}


@pytest.fixture(params=BUILDS)
def attached(request):
    with PracticeMachine(seed=7, build=request.param) as machine:
        for _ in range(30):
            machine.tick()
        host = DirectHost(machine)
        engine = NativeEngine(host, "direct", symbol_path(request.param), host.clock)
        engine.attach(5)
        yield engine, machine, host


def truth(machine):
    """(tag, pool) -> allocs, frees, bytes, from the machine's own ledger."""
    found = {}
    for site in machine.ground_truth():
        allocs, frees, size = found.get((site.tag, site.pool), (0, 0, 0))
        found[site.tag, site.pool] = (
            allocs + site.allocs, frees + site.frees, size + site.bytes,
        )  # fmt: skip
    return found


def test_snapshot_is_the_truth(attached):
    engine, machine, _ = attached
    snapshot = engine.pool_usage()
    assert snapshot.gaps == ()
    wanted = truth(machine)
    # The tables themselves are charged to "Pool" before there is anybody to note the caller.
    wanted = {key: figures for key, figures in wanted.items() if key[0].text != "Pool"}
    assert len(wanted) > 100
    for (tag, pool), figures in wanted.items():
        counters = snapshot.find(tag).of(pool)
        assert (counters.allocs, counters.frees, counters.bytes) == figures, tag
    assert {row.tag for row in snapshot.rows} >= {tag for tag, _ in wanted}


def test_one_tag_is_the_truth_and_cheap(attached):
    engine, machine, host = attached
    engine.pool_usage(LEAK)
    for tag in (LEAK, BUSY):
        engine.pool_usage(tag)
        before = host.requests
        row = engine.pool_usage(tag).find(tag)
        assert host.requests - before == 3  # a row per processor, and the expansion's size
        counters = row.nonpaged
        assert (counters.allocs, counters.frees, counters.bytes) == truth(machine)[
            tag, Pool.NONPAGED
        ]


def armed(engine, tag):
    address = engine.symbol("nt!PoolHitTag")
    engine.write(address, tag.raw)
    return address


def test_hits(attached):
    """Stacks, request counts and blocks of a few hundred hits, against the ledger."""
    engine, machine, host = attached
    before = {site.return_address: site for site in machine.ground_truth() if site.tag == LEAK}
    armed(engine, LEAK)
    finder = block_finder(engine, LEAK)
    seen, live, costs = {}, {}, []
    for _ in range(300):
        host.log.clear()
        stop = engine.resume(10)
        assert stop.kind is StopKind.BREAK_INSTRUCTION
        registers, stack = engine.registers(), engine.stack()
        costs.append([Api(api) for api in host.log])
        assert stack.end is StackEnd.COMPLETE
        names = [str(frame.symbol).split("+")[0] for frame in stack.frames]
        assert len(names) >= 6
        assert names[-2:] == ["nt!PspSystemThreadStartup", "nt!KiStartSystemThread"]
        kind = KERNEL_TOPS[stack.frames[0].symbol.name]
        site = next(f for f in stack.frames if f.symbol.module == "leakydrv")
        assert machine.nearest(site.address)[1] == site.symbol.name
        seen[site.address, kind] = seen.get((site.address, kind), 0) + 1
        start, data = engine.stack_memory()
        assert start == registers["rsp"]
        block = finder.find(registers, start, data, stop.program_counter, kind)
        if block.trust is BlockTrust.UNKNOWN:
            continue
        if kind is HitKind.ALLOC:
            assert block.address not in live
            live[block.address] = block.size
        elif block.address in live:
            size = live.pop(block.address)
            assert block.size in (None, size)
    hit = [Api.SET_CONTEXT, Api.CONTINUE2, Api.GET_CONTEXT, Api.READ_VIRTUAL]
    assert costs[20:] == [hit] * 280
    # The last hit is counted by the kernel only when it goes on.
    engine.write(engine.symbol("nt!PoolHitTag"), bytes(4))
    engine.resume(0.02)
    after = {site.return_address: site for site in machine.ground_truth() if site.tag == LEAK}
    for (address, kind), count in seen.items():
        was = before.get(address)
        if kind is HitKind.ALLOC:
            told = after[address].allocs - (was.allocs if was else 0)
        else:
            told = after[address].free_calls - (was.free_calls if was else 0)
        assert count <= told <= count + 3
    assert finder.statistics.unknown == 0
    assert finder.statistics.contradictions == 0
    assert finder.statistics.learned > 200


def test_sizes_add_up_to_the_ledgers_bytes(attached):
    engine, machine, _ = attached
    armed(engine, BUSY)
    finder = block_finder(engine, BUSY)

    def charged():
        return sum(s.bytes_allocated for s in machine.ground_truth() if s.tag == BUSY)

    before, sizes = charged(), []
    while len(sizes) < 250:
        stop = engine.resume(10)
        kind = KERNEL_TOPS[engine.stack().frames[0].symbol.name]
        block = finder.find(engine.registers(), *engine.stack_memory(), stop.program_counter, kind)
        if kind is HitKind.ALLOC:
            sizes.append(block.size)
    # The last block is charged after the break instruction.
    assert charged() - before == sum(sizes[:-1])
    assert finder.statistics.learned > 200


@pytest.mark.parametrize(
    ("workload", "kind", "detail"),
    [
        (Workload(break_at_tick=40), StopKind.BREAK_INSTRUCTION, ""),
        (Workload(assert_at_tick=40), StopKind.EXCEPTION, "assertion"),
        (Workload(bug_check_at_tick=40), StopKind.BUG_CHECK, "bug check 0x"),
    ],
)
def test_stops_of_other_kinds(workload, kind, detail):
    with PracticeMachine(seed=2, workload=workload) as machine:
        host = DirectHost(machine)
        engine = NativeEngine(host, "direct", symbol_path(), host.clock)
        engine.attach(5)
        assert engine.stop.kind is StopKind.BREAK_IN
        stop = engine.resume(20)
        assert stop.kind is kind
        assert detail in stop.detail
        names = [str(frame.symbol).split("+")[0] for frame in engine.stack().frames]
        assert any(name.startswith("leakydrv!") for name in names)
        assert names[-1] == "nt!KiStartSystemThread"
        if kind is StopKind.BREAK_INSTRUCTION:
            assert names[0] == "nt!DbgBreakPoint"
            assert engine.resume(0.5).kind is StopKind.STILL_RUNNING


def test_break_in_stack_is_whole(attached):
    engine, _, _ = attached
    stack = engine.stack()
    assert stack.frames[0].symbol.name == "DbgBreakPointWithStatus"
    assert stack.end is StackEnd.COMPLETE
    assert len(stack.frames) >= 4


def test_without_symbols_the_tables_cannot_be_found_and_exports_name_the_stack():
    with PracticeMachine(seed=2) as machine:
        host = DirectHost(machine)
        engine = NativeEngine(host, "direct", "", host.clock)
        engine.attach(5)
        snapshot = engine.pool_usage()  # KDBG names nt!PoolTrackTable
        assert any("ExPoolTagTables" in gap for gap in snapshot.gaps)
        assert snapshot.find(BUSY) is not None
        names = [str(frame.symbol) for frame in engine.stack().frames]
        assert names[0].startswith("nt!DbgBreakPointWithStatus")


def test_reload(attached):
    engine, _, _ = attached
    assert engine.reload() == ()
    assert [m.name for m in engine.modules()] == ["nt", "leakydrv", "busydrv"]
    assert engine.stack().frames[0].symbol.name == "DbgBreakPointWithStatus"
