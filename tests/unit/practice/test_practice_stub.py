"""The stub against scripted requests, as a debugger makes them."""

from __future__ import annotations

import struct

import pytest

from kdleak.kd.packets import (
    Api,
    Continue2,
    Status,
    build_manipulate,
    context_ex_union,
    continue2_union,
    memory_union,
    parse_context_ex_union,
    parse_manipulate,
    parse_memory_union,
    parse_state_change,
    u32_union,
)
from kdleak.kd.structures import parse_version
from kdleak.practice.machine import MachineStop
from kdleak.practice.stub import Action, KdStub

MAX_PACKET = 4000
UNMAPPED = 0xFFFF900000000000


class Debugger:
    """Asks a stub and decodes the answers."""

    def __init__(self, machine):
        self.machine = machine
        machine.tick()
        machine.request_break()
        self.stop = machine.tick()
        self.stub = KdStub(machine, MAX_PACKET)
        self.change = parse_state_change(self.stub.exception_change(self.stop))

    def ask(self, api, union=b"", data=b"", processor=0):
        payload = build_manipulate(api, processor, union, data)
        outcome = self.stub.handle(parse_manipulate(payload))
        assert outcome.action is Action.STAY
        assert outcome.reply is not None
        reply = parse_manipulate(outcome.reply)
        assert reply.api == api
        return reply

    def act(self, api, union=b"", processor=0):
        return self.stub.handle(parse_manipulate(build_manipulate(api, processor, union)))

    def read(self, address, size, api=Api.READ_VIRTUAL):
        return self.ask(api, memory_union(address, size))


@pytest.fixture
def debugger(machine):
    return Debugger(machine)


class TestStateChange:
    def test_reports_the_int3_itself(self, debugger):
        change = debugger.change
        assert change.exception.code == Status.BREAKPOINT
        assert change.program_counter == change.exception.address == debugger.stop.address
        assert change.program_counter == debugger.machine.symbol("DbgBreakPointWithStatus")
        assert change.exception.first_chance
        report = change.control_report
        assert report.instruction_stream[:2] == b"\xcc\xc3"
        assert len(report.instruction_stream) == 16
        assert report.segments[0] == 0x10
        assert (change.processor, change.processors) == (0, 2)

    def test_thread_is_the_one_of_control_space_3(self, debugger):
        reply = debugger.ask(Api.READ_CONTROL_SPACE, memory_union(3, 8))
        assert struct.unpack("<Q", reply.data)[0] == debugger.change.thread

    def test_breakpoints_in_the_reported_stream_are_gone(self, debugger):
        address = debugger.stop.address + 4
        other = debugger.machine.symbol("ExFreePool")
        handles = [self.insert(debugger, address), self.insert(debugger, other)]
        debugger.stub.exception_change(debugger.stop)
        first, second = (
            debugger.ask(Api.RESTORE_BREAKPOINT, u32_union(handle)) for handle in handles
        )
        assert (first.status, second.status) == (Status.UNSUCCESSFUL, Status.SUCCESS)

    @staticmethod
    def insert(debugger, address):
        reply = debugger.ask(Api.WRITE_BREAKPOINT, struct.pack("<QI", address, 0))
        assert reply.succeeded
        return struct.unpack_from("<QI", reply.union)[1]

    def test_load_symbols_names_the_image(self, debugger):
        image = debugger.machine.images[1]
        stop = MachineStop(0, 0, 0, (), debugger.stop.thread, image)
        change = parse_state_change(debugger.stub.load_change(stop, image))
        assert change.load_symbols.path.endswith("leakydrv.sys")
        assert change.load_symbols.base == image.base
        assert change.load_symbols.size == image.size
        assert not change.load_symbols.unload


class TestVersion:
    def test_get_version(self, debugger):
        version = parse_version(debugger.ask(Api.GET_VERSION).union)
        assert (version.major, version.build, version.protocol) == (0xF, 22621, 6)
        assert (version.secondary, version.flags, version.machine) == (2, 7, 0x8664)
        assert version.max_manipulate == 0x31
        machine = debugger.machine
        assert version.kernel_base == machine.kernel.base
        assert version.loaded_module_list == machine.symbol("PsLoadedModuleList")
        flink = struct.unpack("<Q", debugger.read(version.debugger_data_list, 8).data)[0]
        assert debugger.read(flink + 0x10, 4).data == b"KDBG"


class TestMemory:
    def test_long_read_is_cut_to_the_packet(self, debugger):
        reply = debugger.read(debugger.machine.kernel.base, 0x10000)
        assert len(reply.data) == MAX_PACKET - 56
        assert parse_memory_union(reply.union)[2] == len(reply.data)

    def test_read_into_a_hole_comes_back_short_and_of_a_hole_fails(self, debugger):
        machine = debugger.machine
        end = machine.images[1].base + machine.images[1].size
        reply = debugger.read(end - 100, 400)
        assert (reply.status, len(reply.data)) == (0, 100)
        reply = debugger.read(UNMAPPED, 16)
        assert (reply.status, reply.data) == (Status.UNSUCCESSFUL, b"")
        assert parse_memory_union(reply.union) == (UNMAPPED, 16, 0)
        assert debugger.read(0x0001_0000_0000_0000, 8).status == Status.UNSUCCESSFUL

    def test_the_ledger_cannot_be_seen(self, debugger):
        machine = debugger.machine
        assert not debugger.read(machine.addresses.ledger, 16).data
        physical = machine.space.translate(machine.addresses.ledger)
        assert not debugger.read(physical, 16, Api.READ_PHYSICAL).data

    def test_write_and_read_back(self, debugger):
        address = debugger.machine.symbol("PoolHitTag")
        reply = debugger.ask(Api.WRITE_VIRTUAL, memory_union(address, 4), b"Leak")
        assert (reply.status, parse_memory_union(reply.union)[2]) == (0, 4)
        assert debugger.read(address, 4).data == b"Leak"
        assert debugger.machine.read_u32("PoolHitTag") == int.from_bytes(b"Leak", "little")

    def test_write_to_a_hole_fails(self, debugger):
        reply = debugger.ask(Api.WRITE_VIRTUAL, memory_union(UNMAPPED, 4), b"Leak")
        assert reply.status == Status.UNSUCCESSFUL
        assert parse_memory_union(reply.union)[2] == 0

    def test_physical_and_virtual_show_the_same(self, debugger):
        machine = debugger.machine
        address = machine.kernel.base + 0x40
        physical = machine.space.translate(address)
        virtual = debugger.read(address, 64).data
        assert debugger.read(physical, 64, Api.READ_PHYSICAL).data == virtual
        assert not debugger.read(1 << 40, 8, Api.READ_PHYSICAL).succeeded
        spot = machine.space.translate(machine.symbol("PoolHitTag"))
        debugger.ask(Api.WRITE_PHYSICAL, memory_union(spot, 4), b"Busy")
        assert machine.read_u32("PoolHitTag") == int.from_bytes(b"Busy", "little")

    def test_search_finds_across_chunks_and_says_when_not(self, debugger):
        machine = debugger.machine
        base = machine.kernel.base
        union = struct.pack("<QQI", base, machine.kernel.size, 8)
        reply = debugger.ask(Api.SEARCH_MEMORY, union, b"POOLCODE")
        found = struct.unpack_from("<Q", reply.union)[0]
        assert (reply.status, machine.read_virtual(found, 8)) == (0, b"POOLCODE")
        reply = debugger.ask(Api.SEARCH_MEMORY, union[:16] + u32_union(7), b"no such")
        assert reply.status == 0x8000001A
        gap = struct.pack("<QQI", machine.images[1].base - 0x5000, 0x6000, 2)
        reply = debugger.ask(Api.SEARCH_MEMORY, gap, b"MZ")
        assert struct.unpack_from("<Q", reply.union)[0] == machine.images[1].base

    def test_fill(self, debugger):
        address = debugger.machine.symbol("KiBugCheckData")
        union = struct.pack("<QIHH", address, 7, 1, 3)
        reply = debugger.ask(Api.FILL_MEMORY, union, b"abc")
        assert struct.unpack_from("<QI", reply.union) == (address, 7)
        assert debugger.read(address, 8).data == b"abcabca\0"
        bad = struct.pack("<QIHH", address, 7, 9, 3)
        assert not debugger.ask(Api.FILL_MEMORY, bad, b"abc").succeeded
        assert not debugger.ask(Api.FILL_MEMORY, union, b"").succeeded

    def test_query(self, debugger):
        code = debugger.machine.symbol("KiIdleLoop")
        data = debugger.machine.symbol("PoolHitTag")
        for address in (code, data):
            reply = debugger.ask(Api.QUERY_MEMORY, struct.pack("<QQII", address, 0, 0, 0))
            assert struct.unpack_from("<QQII", reply.union) == (address, 0, 2, 7)
        assert not debugger.ask(Api.QUERY_MEMORY, struct.pack("<Q", UNMAPPED)).succeeded


class TestRegisters:
    def test_context_of_both_processors(self, debugger):
        one = debugger.ask(Api.GET_CONTEXT, processor=0).data
        other = debugger.ask(Api.GET_CONTEXT, processor=1).data
        assert len(one) == len(other) == 0x4D0
        assert struct.unpack_from("<Q", one, 0xF8)[0] == debugger.stop.address
        assert struct.unpack_from("<Q", one, 0x80)[0] == 1
        machine = debugger.machine
        assert machine.nearest(struct.unpack_from("<Q", other, 0xF8)[0])[1] == "PoIdle"
        assert not debugger.ask(Api.GET_CONTEXT, processor=2).succeeded

    def test_set_context_moves_the_program_counter(self, debugger):
        record = bytearray(debugger.ask(Api.GET_CONTEXT).data)
        struct.pack_into("<Q", record, 0xF8, debugger.stop.address + 1)
        struct.pack_into("<Q", record, 0xB8, 0x1234)
        assert debugger.ask(Api.SET_CONTEXT, data=bytes(record)).succeeded
        again = debugger.ask(Api.GET_CONTEXT).data
        assert again == bytes(record)
        assert not debugger.ask(Api.SET_CONTEXT, data=bytes(100)).succeeded

    def test_context_ex_in_slices(self, debugger):
        whole = debugger.ask(Api.GET_CONTEXT).data
        reply = debugger.ask(Api.GET_CONTEXT_EX, context_ex_union(0, 0x4D0))
        assert reply.data == whole
        reply = debugger.ask(Api.GET_CONTEXT_EX, context_ex_union(0xF8, 8))
        assert (reply.data, parse_context_ex_union(reply.union)) == (
            whole[0xF8:0x100],
            (0xF8, 8, 8),
        )
        assert not debugger.ask(Api.GET_CONTEXT_EX, context_ex_union(0x4D0, 1)).succeeded
        new = bytearray(whole)
        struct.pack_into("<Q", new, 0x78, 0xABCD)
        half = 0x268
        debugger.ask(Api.SET_CONTEXT_EX, context_ex_union(0, half, 0x4D0), bytes(new[:half]))
        assert debugger.ask(Api.GET_CONTEXT).data == whole
        debugger.ask(Api.SET_CONTEXT_EX, context_ex_union(half, half, 0x4D0), bytes(new[half:]))
        assert debugger.ask(Api.GET_CONTEXT).data == bytes(new)

    def test_control_space(self, debugger):
        machine = debugger.machine
        for selector, value in ((0, machine.processors[1].pcr), (1, machine.processors[1].prcb)):
            reply = debugger.ask(Api.READ_CONTROL_SPACE, memory_union(selector, 8), processor=1)
            assert struct.unpack("<Q", reply.data)[0] == value
        special = debugger.ask(Api.READ_CONTROL_SPACE, memory_union(2, 0xE0)).data
        assert len(special) == 0xE0
        assert struct.unpack_from("<Q", special, 0x10)[0] == machine.space.root
        limit, base = struct.unpack_from("<HQ", special, 0x56)
        descriptors = debugger.read(base, limit + 1).data
        code = struct.unpack_from("<Q", descriptors, 0x10)[0]
        assert code >> 53 & 1  # 64-bit code segment
        assert code >> 47 & 1  # present
        assert not debugger.ask(Api.READ_CONTROL_SPACE, memory_union(9, 8)).succeeded
        changed = bytearray(special)
        struct.pack_into("<Q", changed, 0x20, 0x77)
        debugger.ask(Api.WRITE_CONTROL_SPACE, memory_union(2, len(changed)), bytes(changed))
        assert debugger.ask(Api.READ_CONTROL_SPACE, memory_union(2, 0xE0)).data == bytes(changed)

    def test_msr(self, debugger):
        reply = debugger.ask(Api.READ_MSR, u32_union(0xC0000101))
        _, low, high = struct.unpack_from("<III", reply.union)
        assert low | high << 32 == debugger.machine.processors[0].pcr
        assert not debugger.ask(Api.READ_MSR, u32_union(0x12345)).succeeded
        debugger.ask(Api.WRITE_MSR, u32_union(0xC0000102, 5, 6))
        reply = debugger.ask(Api.READ_MSR, u32_union(0xC0000102))
        assert struct.unpack_from("<III", reply.union)[1:] == (5, 6)


class TestBreakpoints:
    def test_insert_hit_and_remove(self, debugger):
        machine = debugger.machine
        address = machine.images[1].symbols["TrackRequest"]
        before = debugger.read(address, 4).data
        reply = debugger.ask(Api.WRITE_BREAKPOINT, struct.pack("<QI", address, 0))
        handle = struct.unpack_from("<QI", reply.union)[1]
        assert 1 <= handle <= 32
        assert machine.read_virtual(address, 1) == b"\xcc"
        assert debugger.read(address, 4).data == before
        machine.processors[0].program_counter += 1
        stop = machine.tick() or machine.tick()
        assert (stop.address, stop.code) == (address, Status.BREAKPOINT)
        debugger.stub.exception_change(stop)
        assert machine.read_virtual(address, 4) == before
        while machine.tick() is not None:
            pytest.fail("the breakpoint is still there")

    def test_table_is_full_after_32_and_addresses_are_not_doubled(self, debugger):
        base = debugger.machine.symbol("KiIdleLoop")
        for index in range(32):
            reply = debugger.ask(Api.WRITE_BREAKPOINT, struct.pack("<QI", base + index, 0))
            assert struct.unpack_from("<QI", reply.union)[1] == index + 1
        union = struct.pack("<QI", base + 40, 0)
        assert not debugger.ask(Api.WRITE_BREAKPOINT, union).succeeded
        assert debugger.ask(Api.RESTORE_BREAKPOINT, u32_union(7)).succeeded
        assert not debugger.ask(Api.RESTORE_BREAKPOINT, u32_union(7)).succeeded
        assert not debugger.ask(Api.WRITE_BREAKPOINT, struct.pack("<QI", base, 0)).succeeded
        assert debugger.ask(Api.WRITE_BREAKPOINT, union).succeeded

    @pytest.mark.parametrize("handle", [0, 1, 33, 0xFFFFFFFF])
    def test_unknown_handles_are_refused(self, debugger, handle):
        reply = debugger.ask(Api.RESTORE_BREAKPOINT, u32_union(handle))
        assert reply.status == Status.UNSUCCESSFUL

    def test_not_in_a_hole(self, debugger):
        reply = debugger.ask(Api.WRITE_BREAKPOINT, struct.pack("<QI", UNMAPPED, 0))
        assert reply.status == Status.UNSUCCESSFUL

    def test_many_at_once(self, debugger):
        base = debugger.machine.symbol("KiIdleLoop")
        rows = b"".join(struct.pack("<QIxxxx", base + index, 0) for index in range(3))
        reply = debugger.ask(Api.WRITE_BREAKPOINT_EX, u32_union(3), rows)
        handles = [handle for _, handle in struct.iter_unpack("<QIxxxx", reply.data)]
        assert (reply.status, handles) == (0, [1, 2, 3])
        reply = debugger.ask(Api.RESTORE_BREAKPOINT_EX, u32_union(2), u32_union(1, 9))
        assert reply.status == Status.UNSUCCESSFUL
        assert not debugger.ask(Api.RESTORE_BREAKPOINT, u32_union(1)).succeeded
        assert not debugger.ask(Api.WRITE_BREAKPOINT_EX, u32_union(9), rows).succeeded
        assert not debugger.ask(Api.RESTORE_BREAKPOINT_EX, u32_union(9)).succeeded

    def test_write_below_a_breakpoint_keeps_it(self, debugger):
        machine = debugger.machine
        address = machine.symbol("ExFreePool")
        debugger.ask(Api.WRITE_BREAKPOINT, struct.pack("<QI", address, 0))
        debugger.ask(Api.WRITE_VIRTUAL, memory_union(address, 2), b"\x90\x90")
        assert machine.read_virtual(address, 2) == b"\xcc\x90"
        assert debugger.read(address, 2).data == b"\x90\x90"
        debugger.ask(Api.RESTORE_BREAKPOINT, u32_union(1))
        assert machine.read_virtual(address, 2) == b"\x90\x90"


class TestFlow:
    def test_continue_and_step(self, debugger):
        go = continue2_union(Continue2(dr7=0x401))
        assert debugger.act(Api.CONTINUE2, go).action is Action.RESUME
        assert debugger.machine.processors[1].dr7 == 0x401
        step = continue2_union(Continue2(trace=True))
        outcome = debugger.act(Api.CONTINUE2, step)
        assert (outcome.action, outcome.reply) == (Action.STEP, None)
        assert debugger.act(Api.CONTINUE, u32_union(0x10002)).action is Action.RESUME
        machine = debugger.machine
        machine.processors[0].program_counter += 1
        before = machine.processors[0].program_counter
        stop = machine.step(0)
        assert stop.code == Status.SINGLE_STEP
        assert stop.address == machine.processors[0].program_counter != before
        assert machine.nearest(stop.address)[1] == "KdCheckForDebugBreak"
        change = parse_state_change(debugger.stub.exception_change(stop))
        assert change.control_report.dr6 & 0x4000
        assert machine.tick() is None

    def test_switch_processor(self, debugger):
        outcome = debugger.act(Api.SWITCH_PROCESSOR, processor=1)
        assert (outcome.action, outcome.reply) == (Action.SWITCH, None)
        change = parse_state_change(debugger.stub.exception_change(debugger.stub.switched_stop()))
        assert (change.processor, change.exception.code) == (1, 0x80000007)
        assert debugger.machine.nearest(change.program_counter)[1] == "PoIdle"
        reply = debugger.ask(Api.SWITCH_PROCESSOR, processor=5)
        assert reply.status == Status.UNSUCCESSFUL

    def test_cause_bug_check(self, debugger):
        assert debugger.act(Api.CAUSE_BUG_CHECK, u32_union(0)).action is Action.RESUME
        stop = debugger.machine.tick()
        assert debugger.machine.nearest(stop.address)[1] == "DbgBreakPointWithStatus"
        assert debugger.machine.read_u64("KiBugCheckData") == 0xE2

    def test_reboot(self, debugger):
        assert debugger.act(Api.REBOOT).action is Action.REBOOT

    @pytest.mark.parametrize(
        "api",
        [Api.CLEAR_ALL_INTERNAL_BREAKPOINTS, Api.SET_SPECIAL_CALL, Api.CLEAR_SPECIAL_CALLS],
    )
    def test_requests_without_reply(self, debugger, api):
        outcome = debugger.act(api)
        assert (outcome.action, outcome.reply) == (Action.STAY, None)

    @pytest.mark.parametrize(
        "api", [Api.GET_BUS_DATA, Api.READ_IO_SPACE, Api.PAGE_IN, 0x3161, 0x3199, 0]
    )
    def test_what_it_does_not_know_it_refuses(self, debugger, api):
        assert debugger.ask(api).status == Status.UNSUCCESSFUL

    def test_special_calls(self, debugger):
        assert debugger.ask(Api.QUERY_SPECIAL_CALLS).union[:4] == bytes(4)
