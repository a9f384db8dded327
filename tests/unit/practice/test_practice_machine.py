"""The practice kernel really is one: tables, allocator, threads, clock."""

from __future__ import annotations

import hashlib
import itertools
import struct
from dataclasses import replace

import pytest

from kdleak.errors import UsageError
from kdleak.model import Pool
from kdleak.practice.images import BUILDS
from kdleak.practice.ledger import changes_between
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.processor import STATUS_ASSERTION_FAILURE, STATUS_BREAKPOINT
from kdleak.tags import PoolTag

UNMAPPED = 0xFFFF9000_00000000
LEAK = PoolTag.parse("Leak")
BUSY = PoolTag.parse("Busy")


def run(machine: PracticeMachine, ticks: int) -> None:
    for _ in range(ticks):
        assert machine.tick() is None


def digest(machine: PracticeMachine) -> str:
    total = hashlib.sha256()
    for number, page in machine.physical_pages():
        total.update(number.to_bytes(8, "little"))
        total.update(page)
    return total.hexdigest()


def hash_slot(tag: int, mask: int) -> int:
    product = 40543 * tag
    return (product & 0xFFFFFFFF ^ product >> 32) & mask


def step_over(machine: PracticeMachine, processor: int) -> None:
    machine.processors[processor].program_counter += 1


class TestBoot:
    def test_only_sensible_processor_counts_and_builds_are_accepted(self):
        with pytest.raises(UsageError):
            PracticeMachine(processors=3)
        with pytest.raises(UsageError):
            PracticeMachine(build=7601)

    def test_the_kernel_image_is_what_debuggers_look_for(self, machine):
        head = machine.read_virtual(machine.kernel.base, 0x1000)
        assert head[:4] == b"MZ\x90\x00"
        assert b"POOLCODE" in head

    def test_module_list_is_a_circle_of_three(self, machine):
        head = machine.symbol("PsLoadedModuleList")
        names, entry = [], machine.read_u64("PsLoadedModuleList")
        while entry != head:
            flink, blink = struct.unpack("<QQ", machine.read_virtual(entry, 16))
            assert struct.unpack("<Q", machine.read_virtual(blink, 8))[0] == entry
            size, _, buffer = struct.unpack("<HHxxxxQ", machine.read_virtual(entry + 0x58, 16))
            names.append(machine.read_virtual(buffer, size).decode("utf-16-le"))
            base = struct.unpack("<Q", machine.read_virtual(entry + 0x30, 8))[0]
            assert machine.read_virtual(base, 2) == b"MZ"
            entry = flink
        assert names == ["ntoskrnl.exe", "leakydrv.sys", "busydrv.sys"]

    def test_debugger_data_block_points_at_the_real_things(self, machine):
        block = machine.read_u64("KdpDebuggerDataListHead")
        raw = machine.read_virtual(block, 0x3A0)
        assert raw[0x10:0x14] == b"KDBG"
        assert struct.unpack_from("<I", raw, 0x14) == (0x3A0,)

        def pointer(offset: int) -> int:
            return struct.unpack_from("<Q", raw, offset)[0]

        assert pointer(0x18) == machine.kernel.base
        assert pointer(0x48) == machine.symbol("PsLoadedModuleList")
        assert pointer(0x1B8) == machine.symbol("PoolTrackTable")
        assert pointer(0x20) == machine.symbol("DbgBreakPointWithStatus")
        assert pointer(0x360) == machine.space.pte_base
        processors = struct.unpack("<QQ", machine.read_virtual(pointer(0x218), 16))
        assert processors == tuple(one.prcb for one in machine.processors)

    def test_self_map_shows_the_page_tables(self, machine):
        address = machine.kernel.base
        pte = machine.space.pte_base + ((address >> 9) & 0x7FFFFFFFF8)
        assert int.from_bytes(machine.read_virtual(pte, 8), "little") == machine.space.entry(
            address
        )

    def test_shared_data_page_tells_version_and_time_and_is_not_executable(self, machine):
        shared = 0xFFFFF78000000000
        run(machine, 3)
        page = machine.read_virtual(shared, 0x1000)
        assert struct.unpack_from("<II", page, 0x26C) == (10, 0)
        assert struct.unpack_from("<I", page, 0x260) == (22621,)
        assert struct.unpack_from("<Q", page, 0x320) == (3,)
        assert struct.unpack_from("<Q", page, 0x008)[0] == 3 * machine.workload.tick_length
        assert machine.space.entry(shared) >> 63 == 1

    def test_pools_lie_apart_and_away_from_images(self, machine):
        first, second = machine.addresses.pools
        assert abs(first - second) >= 1 << 30
        assert machine.read_u64("MmNonPagedPoolStart") == first
        assert machine.read_u64("MmPagedPoolStart") == second

    def test_seed_moves_everything(self, boot):
        one, other = boot(seed=1), boot(seed=2)
        assert one.kernel.base != other.kernel.base
        assert one.addresses.pools != other.addresses.pools
        assert one.space.pte_base != other.space.pte_base

    def test_one_processor_works_too(self, boot, read_tables):
        machine = boot(processors=1)
        run(machine, 20)
        assert len(read_tables(machine).tables()) == 1
        leak = [site for site in machine.ground_truth() if site.tag == LEAK and site.allocs]
        assert sum(site.allocs for site in leak) > 30


class TestTagTables:
    @pytest.mark.parametrize("build", BUILDS)
    def test_tables_agree_with_the_ledger_in_every_layout(self, boot, read_tables, build):
        machine = boot(build=build)
        run(machine, 60)
        truth: dict[int, list[int]] = {}
        for site in machine.ground_truth():
            start = 0 if site.pool is Pool.NONPAGED else 3
            row = truth.setdefault(site.tag.value, [0] * 6)
            row[start] += site.allocs
            row[start + 1] += site.frees
            row[start + 2] += site.bytes
        sums = read_tables(machine).sums()
        pool = sums.pop(PoolTag.parse("Pool").value)  # the tables count themselves there
        truth.pop(PoolTag.parse("Pool").value)
        assert pool.nonpaged_allocs >= 3
        assert {
            key: [
                row.nonpaged_allocs, row.nonpaged_frees, row.nonpaged_bytes,
                row.paged_allocs, row.paged_frees, row.paged_bytes,
            ]
            for key, row in sums.items()
        } == truth  # fmt: skip
        assert len(truth) > 100

    def test_first_table_is_the_boot_table_and_rows_are_aligned(self, machine, read_tables):
        run(machine, 20)
        reader = read_tables(machine)
        tables = reader.tables()
        assert len(tables) == 2
        assert tables[0] == machine.read_u64("PoolTrackTable")
        first, second = (reader.rows(table) for table in tables)
        assert {row.key for row in second} - {0} <= {row.key for row in first}
        assert all(two.key in (0, one.key) for one, two in zip(first, second, strict=True))

    def test_rows_lie_where_the_tag_hash_says(self, machine, read_tables):
        reader = read_tables(machine)
        rows = reader.rows(reader.tables()[0])
        mask = machine.read_u64("PoolTrackTableMask")
        assert (reader.size, mask) == (2049, 0x7FF)
        known = {b"Pool": 0x5A5, b"Proc": 0x633, b"File": 0x244, b"MmSt": 0x265}
        for text, slot in known.items():
            key = int.from_bytes(text, "little")
            assert hash_slot(key, mask) == slot
            places = [index for index, row in enumerate(rows) if row.key == key]
            assert len(places) == 1
            assert all(rows[index & mask].key for index in range(slot, places[0] + 1))
        assert rows[-1].key == 0

    def test_a_processor_that_frees_what_another_allocated_goes_negative(
        self, machine, read_tables
    ):
        run(machine, 40)
        reader = read_tables(machine)
        rows = [row for row in reader.rows(reader.tables()[0]) if row.key == BUSY.value]
        assert rows[0].nonpaged_frees > rows[0].nonpaged_allocs
        assert rows[0].nonpaged_bytes < 0

    def test_small_table_spills_into_expansion_and_overflow(self, boot, read_tables, small):
        machine = boot(workload=replace(small, tracker_rows=65, expansion_rows=20))
        run(machine, 5)
        reader = read_tables(machine)
        rows = reader.rows(reader.tables()[0])
        assert all(row.key for row in rows)
        assert rows[-1].key == int.from_bytes(b"Ovfl", "little")
        assert rows[-1].nonpaged_allocs > 0
        count = machine.read_u64("PoolTrackTableExpansionSize")
        assert count == 20
        expansion = reader.rows(machine.read_u64("PoolTrackTableExpansion"), count)
        assert all(row.key for row in expansion)
        assert not {row.key for row in expansion} & {row.key for row in rows}

    def test_old_counters_wrap_at_32_bits(self, boot, read_tables, small):
        machine = boot(build=15063, workload=replace(small, counter_bias=0xFFFFFFFF - 60))
        run(machine, 60)
        reader = read_tables(machine)
        irp = int.from_bytes(b"Irp ", "little")
        row = next(one for one in reader.rows(reader.tables()[0]) if one.key == irp)
        assert row.nonpaged_allocs < 0x10000
        assert reader.sums()[irp].nonpaged_allocs > reader.sums()[irp].nonpaged_frees

    def test_population_has_a_large_innocent_user_and_odd_tags(self, boot, read_tables, small):
        machine = boot(workload=replace(small, population=100))
        run(machine, 1)
        sums = read_tables(machine).sums()
        paged = max(sums.values(), key=lambda row: row.paged_bytes)
        assert paged.key == int.from_bytes(b"CM31", "little")
        assert paged.paged_bytes > 24_000_000
        texts = {key.to_bytes(4, "little") for key in sums}
        assert {b"Irp ", b"N\xf7bL", b"\x01Db\0"} <= texts
        assert b"NbL\x77" in texts  # asked for with bit 31, which the tables never hold
        assert {b".Net", b"d  b", b"A.B "} <= texts
        assert 60 <= len(sums) <= 200


class TestBigPages:
    @pytest.mark.parametrize("build", BUILDS)
    def test_every_row_in_use_is_page_aligned_hashed_and_typed(self, boot, build):
        machine = boot(build=build)
        run(machine, 30)
        row_size = 0x20 if build >= 20348 else 0x18
        rows = machine.read_u64("PoolBigPageTableSize")
        raw = machine.read_virtual(machine.read_u64("PoolBigPageTable"), rows * row_size)
        assert len(raw) == rows * row_size
        used = 0
        for at in range(0, len(raw), row_size):
            address, key, packed, size = struct.unpack_from("<QIIQ", raw, at)
            if address & 1:
                continue
            used += 1
            assert address & 0xFFF == 0
            assert key
            assert size % 0x1000 == 0
            paged = address >= machine.addresses.pools[1] and address < (
                machine.addresses.pools[1] + (0x4000 << 12)
            )
            if build >= 26100:
                assert packed >> 8 & 0xFFF == (0x100 if paged else 0x40)
                page = address >> 12
            else:
                assert packed >> 8 & 0xFFF == (1 if paged else 0x200)
                page = address >> 12 & 0xFFFFFFFF
            slot = hash_slot(page, rows - 1)
            while slot != at // row_size:  # every place on the way is or was in use
                assert struct.unpack_from("<Q", raw, slot * row_size)[0] != 1
                slot = (slot + 1) & (rows - 1)
        assert used == machine.read_u32("ExpPoolBigEntriesInUse") > 20

    def test_table_grows(self, boot, small):
        machine = boot(workload=replace(small, big_page_rows=16))
        run(machine, 10)
        rows = machine.read_u64("PoolBigPageTableSize")
        assert rows > 16
        assert rows & (rows - 1) == 0
        assert machine.read_u32("ExpPoolBigEntriesInUse") < rows


class TestPoolHitTag:
    def stops(self, machine: PracticeMachine, count: int):
        machine.write_u32("PoolHitTag", LEAK.value)
        found = 0
        while found < count:
            stop = machine.tick()
            if stop is not None:
                assert stop.code == STATUS_BREAKPOINT
                yield stop, machine.nearest(stop.address)[1]
                step_over(machine, stop.processor)
                found += 1

    def test_starts_with_the_value_of_a_stock_system(self, machine):
        assert machine.read_u32("PoolHitTag") == 0xFFFFFF0F

    def test_breaks_at_every_alloc_and_free_of_the_tag_and_no_other(self, machine):
        def done() -> tuple[int, int]:
            sites = [site for site in machine.ground_truth() if site.tag == LEAK]
            return sum(site.allocs for site in sites), sum(site.frees for site in sites)

        allocs, frees = done()
        names = [name for _, name in self.stops(machine, 120)]
        machine.write_u32("PoolHitTag", 0xFFFFFF0F)
        ticks = machine.ticks
        # Finish the tick that was stopped last: what it still does is not seen any more.
        assert machine.tick() is None
        assert machine.ticks == ticks + 1
        allocs, frees = done()[0] - allocs, done()[1] - frees
        assert set(names) == {"ExAllocateHeapPool", "ExFreeHeapPool"}
        assert 0 <= allocs - names.count("ExAllocateHeapPool") <= 3
        assert 0 <= frees - names.count("ExFreeHeapPool") <= 3

    def test_header_is_written_and_counters_are_not_charged_yet(self, machine, read_tables):
        reader = read_tables(machine)
        row = reader.sums()[LEAK.value]
        charged = {
            "ExAllocateHeapPool": row.nonpaged_allocs + row.paged_allocs,
            "ExFreeHeapPool": row.nonpaged_frees + row.paged_frees,
        }
        small_blocks = 0
        for stop, name in self.stops(machine, 60):
            row = reader.sums()[LEAK.value]
            assert row.nonpaged_allocs + row.paged_allocs == charged["ExAllocateHeapPool"]
            assert row.nonpaged_frees + row.paged_frees == charged["ExFreeHeapPool"]
            charged[name] += 1
            context = machine.processors[stop.processor].context()
            registers = struct.unpack_from("<16Q", context, 0x78)
            for value in registers:
                header = machine.read_virtual(value - 16, 16)
                if len(header) == 16 and header[4:8] == LEAK.raw and header[3] & 2:
                    assert header[2] > 1
                    small_blocks += 1
                    break
        assert small_blocks > 40

    def test_break_in_the_middle_of_a_tick_loses_nothing(self, boot):
        free, stopped = boot(seed=5), boot(seed=5)
        run(free, 40)
        while stopped.ticks < 20:
            stopped.write_u32("PoolHitTag", LEAK.value)
            stop = stopped.tick()
            if stop is not None:
                step_over(stopped, stop.processor)
        stopped.write_u32("PoolHitTag", 0xFFFFFF0F)
        run(stopped, 20)
        assert free.ground_truth() == stopped.ground_truth()

    def test_single_steps_go_through_every_instruction_and_change_nothing(self, boot):
        free, stepped = boot(seed=6), boot(seed=6)
        run(free, 10)
        run(stepped, 4)
        stepped.write_u32("PoolHitTag", LEAK.value)
        stop = stepped.tick()
        step_over(stepped, stop.processor)
        stepped.write_u32("PoolHitTag", 0xFFFFFF0F)
        counters, names = [], []
        while len(counters) < 900:
            event = stepped.step(stop.processor)
            assert event.code == 0x80000004
            counters.append(event.address)
            names.append(stepped.nearest(event.address)[1])
        # A repeated string instruction steps on the spot.
        straight = sum(0 <= two - one < 16 for one, two in itertools.pairwise(counters))
        assert straight > 300
        assert names.index("ExpInsertPoolTracker") < names.index("ExpLedgerCharge")
        assert "TrackRequest" in names
        run(stepped, 6)
        assert stepped.ground_truth() == free.ground_truth()


class TestDrivers:
    def test_three_call_sites_and_only_one_leaks(self, machine):
        run(machine, 300)
        sites = {
            site.function: site
            for site in machine.ground_truth()
            if site.tag == LEAK and site.allocs
        }
        assert set(sites) == {"TrackRequest", "BuildContext", "CloneHeader"}
        assert all(site.module == "leakydrv" for site in sites.values())
        assert sites["TrackRequest"].outstanding > 80
        assert sites["TrackRequest"].frees > 100
        assert sites["BuildContext"].outstanding <= 4
        assert sites["CloneHeader"].outstanding == 0
        sizes = {site.bytes_allocated / site.allocs for site in sites.values()}
        assert len(sizes) == 3

    def test_busy_driver_does_much_more_and_holds_steady(self, machine):
        run(machine, 200)
        before = next(s for s in machine.ground_truth() if s.tag == BUSY and s.allocs)
        leak = sum(s.allocs + s.frees for s in machine.ground_truth() if s.tag == LEAK)
        assert 10 <= (before.allocs + before.frees) / leak <= 50
        run(machine, 200)
        after = next(s for s in machine.ground_truth() if s.tag == BUSY and s.allocs)
        assert abs(after.outstanding - before.outstanding) < 120

    def test_contexts_are_released_on_the_other_processor_by_another_function(self, machine):
        run(machine, 50)
        frees = {site.function for site in machine.ground_truth() if site.free_calls}
        assert {"ReleaseContext", "FinishRequest", "CloneHeader", "FreeEntry"} <= frees

    def test_no_memory_left_is_survived(self, boot, small, read_tables):
        machine = boot(
            memory=24 << 20,
            workload=replace(small, population=0, leak_requests=200, leak_permille=1000),
        )
        run(machine, 600)
        leak = next(s for s in machine.ground_truth() if s.function == "TrackRequest")
        run(machine, 20)
        again = next(s for s in machine.ground_truth() if s.function == "TrackRequest")
        assert again.allocs - leak.allocs < 200 * 20
        assert read_tables(machine).sums()[LEAK.value].nonpaged_allocs > 10_000


class TestEvents:
    def test_assertion(self, boot, small):
        machine = boot(workload=replace(small, assert_at_tick=4))
        run(machine, 3)
        stop = machine.tick()
        assert (stop.code, machine.nearest(stop.address)[0]) == (
            STATUS_ASSERTION_FAILURE,
            "leakydrv",
        )
        machine.processors[stop.processor].program_counter += 2
        run(machine, 3)

    def test_driver_breakpoint(self, boot, small):
        machine = boot(workload=replace(small, break_at_tick=2))
        run(machine, 1)
        stop = machine.tick()
        assert machine.nearest(stop.address) == ("nt", "DbgBreakPoint", 0)

    def test_bug_check_breaks_twice_and_keeps_breaking(self, boot, small):
        printed: list[bytes] = []
        machine = boot(workload=replace(small, bug_check_at_tick=2), on_print=printed.append)
        run(machine, 1)
        statuses = []
        while len(statuses) < 3:
            stop = machine.tick()
            if stop is not None:
                assert machine.nearest(stop.address)[1] == "DbgBreakPointWithStatus"
                context = machine.processors[stop.processor].context()
                statuses.append(struct.unpack_from("<Q", context, 0x80)[0])
                step_over(machine, stop.processor)
        assert statuses == [3, 4, 4]
        data = struct.unpack("<5Q", machine.read_virtual(machine.symbol("KiBugCheckData"), 40))
        assert data == (0xDEADDEAD, 1, 2, 3, 4)
        assert b"Fatal System Error: 0xdeaddead" in b"".join(printed)

    def test_print(self, boot, small):
        printed: list[bytes] = []
        machine = boot(workload=replace(small, print_every_ticks=5), on_print=printed.append)
        run(machine, 11)
        assert printed == [b"leakydrv: 5 requests seen\n", b"leakydrv: 10 requests seen\n"]

    def test_late_driver_is_announced_and_then_listed(self, boot, small):
        machine = boot(workload=replace(small, late_driver_at_tick=3))
        run(machine, 2)
        last = machine.read_u64("PsLoadedModuleList")
        assert not [site for site in machine.ground_truth() if site.tag == BUSY]
        stop = machine.tick()
        assert stop.loaded is not None
        assert (stop.code, stop.loaded.name) == (0, "busydrv")
        assert machine.read_u64("PsLoadedModuleList") == last
        run(machine, 5)
        assert [site for site in machine.ground_truth() if site.tag == BUSY]

    def test_break_in_comes_from_the_clock_interrupt(self, machine):
        run(machine, 2)
        machine.request_break()
        stop = machine.tick()
        assert machine.nearest(stop.address)[:2] == ("nt", "DbgBreakPointWithStatus")
        context = machine.processors[stop.processor].context()
        assert struct.unpack_from("<Q", context, 0x80) == (1,)
        stack = machine.processors[stop.processor].stack_pointer
        returns = [
            machine.nearest(value)[1]
            for (value,) in struct.iter_unpack("<Q", machine.read_virtual(stack, 0x400))
            if value in machine.kernel
        ]
        order = [name for name in returns if name in {
            "KdCheckForDebugBreak", "KeUpdateSystemTime", "KeClockInterruptNotify",
            "KiCallInterruptServiceRoutine", "KiInterruptDispatchNoLockNoEtw", "PoIdle",
        }]  # fmt: skip
        assert order[:5] == [
            "KdCheckForDebugBreak",
            "KeUpdateSystemTime",
            "KeClockInterruptNotify",
            "KiCallInterruptServiceRoutine",
            "KiInterruptDispatchNoLockNoEtw",
        ]
        assert "PoIdle" in order
        step_over(machine, stop.processor)
        run(machine, 3)

    @pytest.mark.parametrize(
        ("code", "register", "parameters"),
        [
            (b"\x48\x8b\x01", UNMAPPED, (0, UNMAPPED)),  # mov rax, [rcx]
            (b"\x48\x89\x01", UNMAPPED, (1, UNMAPPED)),  # mov [rcx], rax
            (b"\xff\xe1", UNMAPPED, (8, UNMAPPED)),  # jmp rcx
        ],
    )
    def test_access_violation_is_reported_not_raised(self, machine, code, register, parameters):
        place = machine.symbol("KiUnexpectedInterrupt")
        machine.write_virtual(place, code)
        machine.request_break()
        stop = machine.tick()
        record = bytearray(machine.processors[0].context())
        struct.pack_into("<Q", record, 0x80, register)
        struct.pack_into("<Q", record, 0xF8, place)
        machine.processors[0].set_context(bytes(record))
        stop = machine.tick()
        assert (stop.code, stop.parameters) == (0xC0000005, parameters)

    def test_writing_to_code_from_inside_is_an_access_violation_too(self, machine):
        place = machine.symbol("KiUnexpectedInterrupt")
        machine.write_virtual(place, b"\x48\x89\x01")
        machine.request_break()
        machine.tick()
        record = bytearray(machine.processors[0].context())
        struct.pack_into("<Q", record, 0x80, place)
        struct.pack_into("<Q", record, 0xF8, place)
        machine.processors[0].set_context(bytes(record))
        stop = machine.tick()
        assert (stop.code, stop.address) == (0xC0000005, place)
        write, address = stop.parameters
        assert (write, address >> 12) == (1, place >> 12)

    def test_an_instruction_that_does_not_exist(self, machine):
        place = machine.symbol("KiUnexpectedInterrupt")
        machine.write_virtual(place, b"\x0f\x0b")
        machine.processors[0].program_counter = place
        machine._running = 0
        assert machine.tick().code == 0xC000001D


class TestDeterminism:
    def test_two_runs_with_one_seed_are_the_same_to_the_last_byte(self, boot):
        one, other = boot(seed=9), boot(seed=9)
        run(one, 80)
        run(other, 80)
        assert one.ground_truth() == other.ground_truth()
        assert digest(one) == digest(other)

    def test_another_seed_differs(self, boot):
        one, other = boot(seed=9), boot(seed=10)
        run(one, 10)
        run(other, 10)
        assert digest(one) != digest(other)

    def test_it_is_fast_enough_for_benchmarks(self, machine):
        import time

        began = time.monotonic()
        run(machine, 200)
        seconds = time.monotonic() - began
        calls = sum(site.allocs + site.free_calls for site in machine.ground_truth())
        assert calls / seconds > 5_000


class TestLedger:
    def test_changes_between_two_moments(self, machine):
        run(machine, 20)
        before = machine.ground_truth()
        assert changes_between(before, before) == ()
        run(machine, 10)
        changes = changes_between(before, machine.ground_truth())
        sites = {site.function: site for site in changes if site.tag == LEAK}
        assert sites["TrackRequest"].allocs == 10
        assert sites["CloneHeader"].outstanding == 0
        assert sites["ReleaseContext"].free_calls == sites["BuildContext"].frees
        assert {site.function for site in changes}.isdisjoint({"ExpCreatePopulation"})


class TestDumpSupport:
    def test_pages_in_use_hold_what_virtual_reads_show(self, machine):
        pages = dict(machine.physical_pages())
        address = machine.kernel.base
        physical = machine.space.translate(address)
        assert pages[physical >> 12] == machine.read_virtual(address, 0x1000)
        prcb = machine.processors[0].prcb
        context = machine.read_virtual(prcb + 0x130, 0x4D0)
        assert context == machine.processors[0].context()
        assert machine.directory_table_base >> 12 in pages
