"""The native engine on a scripted host: what it asks, what it makes of the answers."""

from __future__ import annotations

import signal
import struct
import threading

import pytest
from native_fakes import (
    BREAK_IN,
    BUGCHECK,
    DATA,
    DRIVER,
    HEAD,
    KERNEL,
    STACK,
    THREAD,
    ScriptedHost,
    break_in,
    exception,
    windows,
)

from kdleak.engine.base import Engine
from kdleak.engine.native import NativeEngine
from kdleak.engine.native_signals import HoldSignals
from kdleak.engine.stack_reader import StackReader
from kdleak.errors import (
    LinkLost,
    MemoryNotWritten,
    MemoryUnreadable,
    SymbolNotFound,
    TargetError,
    TargetRestarted,
    UnsupportedTarget,
)
from kdleak.kd.packets import LoadSymbols, NewState, StateChange
from kdleak.model import Architecture, StackEnd, StopKind

HIT = DRIVER + 0x1234


def attached(*script, host=None, **more):
    host = host or ScriptedHost(**more)
    host.script = [break_in(), *script]
    engine = NativeEngine(host, "net:port=50000", clock=lambda: host.now)
    engine.attach(10.0)
    host.log.clear()
    return engine, host


def test_attach_says_what_is_there():
    engine, host = attached()
    checked: Engine = engine
    assert checked.target.build == 19045
    assert checked.target.architecture is Architecture.X64
    assert (checked.target.processors, checked.target.pointer_size) == (2, 8)
    assert checked.target.kernel_base == KERNEL
    assert checked.target.live
    assert "19045" in checked.target.description
    assert checked.stop.kind is StopKind.BREAK_IN
    assert checked.stop.thread == THREAD
    assert checked.requests == host.requests
    assert [(m.name, m.base, m.file_name) for m in checked.modules()] == [
        ("nt", KERNEL, "ntoskrnl.exe"),
        ("leak_drv", DRIVER, "leak-drv.sys"),
    ]
    assert checked.name == "native"
    assert checked.where == "net:port=50000"


def test_a_hit_costs_four_requests():
    engine, host = attached(exception(HIT), exception(HIT))
    engine.resume(5)
    engine.registers(), engine.stack()
    host.log.clear()
    engine.resume(5)
    engine.registers()
    engine.stack()
    assert engine.registers()["rip"] == HIT
    assert host.log == ["set context", "resume", "get context", "read"]


def test_resume_steps_over_the_break_instruction_and_keeps_the_rest_of_the_context():
    engine, host = attached(exception(HIT), exception(HIT + 8))
    engine.resume(5)
    host.register("rbx", 0x1122334455667788)
    engine.resume(5)
    context = host.contexts_set[-1]
    assert struct.unpack_from("<Q", context, 0xF8) == (HIT + 1,)
    assert struct.unpack_from("<Q", context, 0x90) == (0x1122334455667788,)
    assert host.resumed_with[-1] == 0x10002


@pytest.mark.parametrize(
    "change",
    [
        exception(HIT, stream=b"\x90\xc3"),  # somebody's breakpoint, taken out meanwhile
        exception(HIT + 1, address=HIT, stream=b"\xc3"),  # stepped over already
        exception(HIT, 0x80000004),
    ],
)
def test_no_step_where_no_break_instruction_is(change):
    engine, host = attached(change, 1.0)
    engine.resume(5)
    host.log.clear()
    engine.resume(1)
    assert "set context" not in host.log


def test_the_instruction_is_read_where_the_stop_does_not_show_it():
    engine, host = attached(exception(HIT, stream=b""), 1.0, exception(HIT + 4, stream=b""), 1.0)
    host.fill(HIT, b"\xcc\x90\x90\x90\x90")
    engine.resume(5)
    host.log.clear()
    engine.resume(1)
    assert host.log == ["read", "get context", "set context", "resume"]
    engine.resume(1)
    host.log.clear()
    engine.resume(1)
    assert host.log == ["read", "resume"]


def test_unhandled_exception_is_handed_back_to_the_target():
    engine, host = attached(exception(HIT, 0xC0000005, first_chance=False), 1.0)
    stop = engine.resume(5)
    assert stop.kind is StopKind.EXCEPTION
    assert "access violation" in stop.detail
    assert "second" in stop.detail
    assert not stop.first_chance
    engine.resume(1)
    assert host.resumed_with[-1] == 0x80010001


def test_failed_assertion_is_ignored_when_the_target_goes_on():
    engine, host = attached(exception(HIT, 0xC0000420, stream=b"\xcd\x2c\x90"), 1.0)
    assert "assertion" in engine.resume(5).detail
    engine.close()
    assert struct.unpack_from("<Q", host.contexts_set[-1], 0xF8) == (HIT + 2,)
    assert host.resumed_with[-1] == 0x10002


def test_module_report_as_first_stop_is_continued_normally():
    change = StateChange(
        NewState.LOAD_SYMBOLS, 6, 0, 2, THREAD, HIT, load_symbols=LoadSymbols("x.sys", DRIVER)
    )
    engine, host = attached(change, 1.0)
    assert engine.resume(5).kind is StopKind.EXCEPTION
    engine.resume(1)
    assert host.resumed_with[-1] == 0x10002


def test_kinds_of_stops():
    engine, _ = attached(exception(HIT), exception(HIT, 0x80000004), 3.0, break_in(), 1.0)
    assert engine.resume(5).kind is StopKind.BREAK_INSTRUCTION
    assert engine.resume(5).kind is StopKind.SINGLE_STEP
    assert engine.resume(5).kind is StopKind.BREAK_IN
    assert engine.resume(5).kind is StopKind.STILL_RUNNING
    assert engine.stop.kind is StopKind.STILL_RUNNING


def test_leftover_hit_of_another_session_is_seen_at_attach():
    host = ScriptedHost()
    host.script = [exception(HIT)]
    engine = NativeEngine(host, "x", clock=lambda: host.now)
    engine.attach(5)
    assert engine.stop.kind is StopKind.BREAK_INSTRUCTION
    assert engine.stop.program_counter == HIT


def test_bug_check():
    host = ScriptedHost()
    engine, _ = attached(lambda: host.register("rcx", 3), break_in(), host=host)
    host.fill(BUGCHECK, struct.pack("<5Q", 0xD1, 0x10, 2, 0, HIT))
    stop = engine.resume(5)
    assert stop.kind is StopKind.BUG_CHECK
    assert "0xd1" in stop.detail
    assert f"{HIT:x}" in stop.detail


def test_bug_check_without_its_data():
    host = ScriptedHost()
    engine, _ = attached(lambda: host.register("rcx", 4), break_in(), break_in(), host=host)
    stop = engine.resume(5)
    assert (stop.kind, stop.detail) == (StopKind.BUG_CHECK, "bug check")
    del host.memory[BUGCHECK >> 12]
    assert engine.resume(5).detail == "bug check"


def test_without_debugger_data_a_break_in_is_a_break_instruction():
    host = ScriptedHost()
    host.fill(HEAD, bytes(16))
    engine, _ = attached(host=host)
    assert engine.stop.kind is StopKind.BREAK_INSTRUCTION
    assert any("debugger data" in remark for remark in engine.remarks)


def test_boot_application_is_let_run_until_windows_is_there():
    host = ScriptedHost(version=windows(major=0x40F))

    def boots():
        host.version = windows()

    engine, _ = attached(3.0, boots, break_in(), host=host)
    assert engine.target.build == 19045


def test_boot_stage_that_introduces_itself_anew():
    host = ScriptedHost(version=windows(major=0x40F))

    def boots():
        host.version = windows()

    engine, _ = attached(TargetRestarted("waiting", "unloads all"), boots, break_in(), host=host)
    assert engine.target.build == 19045
    assert engine.symbol_remarks == ()


def test_boot_application_for_too_long():
    host = ScriptedHost(version=windows(major=0x40F))
    with pytest.raises(UnsupportedTarget, match="boot application"):
        attached(*[1.0, break_in()] * 20, host=host)


def test_unknown_machine():
    with pytest.raises(UnsupportedTarget, match="0x0200"):
        attached(host=ScriptedHost(version=windows(machine=0x200)))


@pytest.mark.parametrize(
    ("machine", "architecture", "pointer_size"),
    [(0x14C, Architecture.X86, 4), (0xAA64, Architecture.ARM64, 8)],
)
def test_other_machines_can_be_read_and_run_but_not_walked(machine, architecture, pointer_size):
    host = ScriptedHost(version=windows(machine=machine, flags=3 if pointer_size == 4 else 7))
    engine, _ = attached(1.0, host=host)
    assert engine.target.architecture is architecture
    assert engine.target.pointer_size == pointer_size
    with pytest.raises(UnsupportedTarget, match="x64 stacks only"):
        engine.stack()
    assert engine.read(HEAD, 4) == host.peek(HEAD, 4)
    assert engine.resume(1).kind is StopKind.STILL_RUNNING


def test_stack_near_its_top_is_read_up_to_the_page_and_remembered():
    host = ScriptedHost()
    host.whole_reads_only = True
    near_top = [lambda: host.register("rsp", STACK - 0x90), exception(HIT)]
    engine, _ = attached(*near_top, *near_top, host=host)
    engine.resume(5)
    host.log.clear()
    assert engine.stack().end is StackEnd.NO_UNWIND_DATA
    assert engine.stack_memory() == (STACK - 0x90, bytes(0x90))
    assert host.log[:3] == ["get context", "read", "read"]
    engine.resume(5)
    host.log.clear()
    engine.stack()
    assert host.log == ["get context", "read"]


def test_page_behind_a_stack_may_come_back():
    host = ScriptedHost()
    host.whole_reads_only = True
    near_top = [lambda: host.register("rsp", STACK - 0x90), exception(HIT)]
    engine, _ = attached(*near_top, *near_top, host=host)
    engine.resume(5)
    engine.stack()
    host.fill(STACK, b"\x01" * 0x1000)
    reader = StackReader(host.read_virtual_once, lambda: host.max_read)
    assert len(reader.read(STACK - 0x90, 0x200)) == 0x200
    del host.memory[STACK >> 12]
    assert len(reader.read(STACK - 0x90, 0x200)) == 0x90
    before = host.requests
    assert len(reader.read(STACK - 0x90, 0x200)) == 0x90
    assert host.requests == before + 1
    host.fill(STACK, b"\x01" * 0x1000)
    assert len(reader.read(STACK, 0x100)) == 0x100  # a deeper frame asked beyond it
    assert len(reader.read(STACK - 0x90, 0x200)) == 0x200


def test_stack_size_is_learned():
    reader = StackReader(ScriptedHost().read_virtual_once, lambda: ScriptedHost.max_read)
    assert reader.size == 0x400
    reader.learn(0x88)
    assert reader.size == 0x100
    reader.learn(0x290)
    assert reader.size == 0x300
    reader.learn(0x5000)
    assert reader.size == 0x400
    for _ in range(StackReader.REMEMBERED):
        reader.learn(0x150)
    assert reader.size == 0x1C0


def test_stack_memory_only_after_a_stack_and_only_while_stopped():
    engine, _ = attached(exception(HIT), 1.0)
    engine.resume(5)
    assert engine.stack_memory() == (0, b"")
    engine.stack()
    assert engine.stack_memory()[0] == STACK - 0x800
    engine.resume(1)
    assert engine.stack_memory() == (0, b"")


def test_stack_that_cannot_be_read():
    engine, host = attached(exception(HIT))
    engine.resume(5)
    host.register("rsp", STACK + 0x5000)
    stack = engine.stack()
    assert [frame.address for frame in stack.frames] == [HIT]
    assert engine.stack_memory() == (STACK + 0x5000, b"")


def test_running_target_is_not_asked_anything():
    engine, host = attached(1.0, exception(HIT))
    assert len(engine.modules()) == 2
    engine.resume(1)
    requests = host.requests
    with pytest.raises(MemoryUnreadable, match="running"):
        engine.read(KERNEL, 4)
    for ask in (
        engine.registers,
        engine.stack,
        engine.pool_usage,
        engine.reload,
        lambda: engine.write(KERNEL, b"x"),
    ):
        with pytest.raises(TargetError, match="running"):
            ask()
    with pytest.raises(SymbolNotFound, match="running"):
        engine.symbol("nt!PoolHitTag")
    assert str(engine.nearest(DRIVER + 4)) == "leak_drv+0x4"
    assert host.requests == requests
    assert engine.resume(1).kind is StopKind.BREAK_INSTRUCTION  # it only goes on waiting
    assert host.requests == requests


def test_interrupt():
    engine, host = attached(1.0, break_in(), 1.0, exception(HIT))
    assert engine.interrupt().kind is StopKind.BREAK_IN  # stopped already
    assert "break in" not in host.log
    engine.resume(1)
    assert engine.interrupt().kind is StopKind.BREAK_IN
    engine.resume(1)
    assert engine.interrupt().kind is StopKind.BREAK_INSTRUCTION  # a hit came first


def test_break_in_request_left_over_is_resumed_unseen():
    host = ScriptedHost()
    host.register("rcx", 1)
    engine, _ = attached(
        0.5, break_in(), 1.0, exception(HIT), 0.2, break_in(), exception(HIT), host=host
    )
    assert engine.resume(1).kind is StopKind.STILL_RUNNING  # one from the attach
    assert engine.interrupt(5).kind is StopKind.BREAK_INSTRUCTION  # it met a hit
    assert engine.resume(5).program_counter == HIT
    assert host.log.count("resume") == 4
    assert engine.break_ins_absorbed == 2


@pytest.mark.parametrize(("wait", "status"), [(3.0, 1), (0.1, 2)])
def test_other_break_ins_are_told(wait, status):
    host = ScriptedHost()
    engine, _ = attached(lambda: host.register("rcx", status), wait, break_in(), host=host)
    assert engine.resume(5).kind is StopKind.BREAK_IN


def test_interrupt_of_a_target_that_does_not_answer():
    engine, host = attached(1.0)
    engine.resume(1)
    with pytest.raises(LinkLost):
        engine.interrupt(10)
    assert host.log.count("break in") > 2
    assert engine.stop.kind is StopKind.STILL_RUNNING


def test_write_is_checked_and_read_is_never_stale():
    engine, host = attached()
    address = DATA + 0x100
    engine.read(address, 4)
    engine.write(address, b"Leak")
    assert engine.read(address, 4) == b"Leak"
    host.write_limit = 2
    with pytest.raises(MemoryNotWritten, match="wrote 2"):
        engine.write(address, b"0123")
    host.fill(address, b"else")
    assert engine.read(address, 4) == b"else"


def test_unreadable_memory():
    engine, _ = attached()
    with pytest.raises(MemoryUnreadable) as caught:
        engine.read(STACK - 8, 16)
    assert caught.value.address == STACK


def test_module_events_keep_the_list_up_to_date_without_a_request():
    new = 0xFFFFF80030000000
    path = "\\SystemRoot\\System32\\drivers\\new.sys"
    engine, host = attached(
        LoadSymbols(path, new, size=0x6000), LoadSymbols("", DRIVER, unload=True),
        exception(new + 0x10), LoadSymbols("user.dll", 0x7FF012340000, size=0x1000), 1.0,
    )  # fmt: skip
    assert [m.name for m in engine.modules()] == ["nt", "leak_drv"]
    engine.resume(5)
    host.log.clear()
    assert [m.name for m in engine.modules()] == ["nt", "new"]
    assert engine.modules()[1].path == path
    assert host.log == []
    engine.resume(1)
    assert [m.name for m in engine.modules()] == ["nt", "new"]
    assert engine.nearest(DRIVER + 4).module == ""


def test_list_is_read_when_first_needed():
    engine, host = attached(1.0, exception(HIT))
    engine.resume(1)
    assert engine.modules() == ()
    assert str(engine.nearest(DRIVER)) == "fffff800`20000000"
    engine.resume(1)
    host.log.clear()
    assert str(engine.nearest(DRIVER)) == "leak_drv"
    assert host.log.count("read") > 2


def test_reload_reads_the_list_again():
    engine, host = attached()
    del host.memory[(DATA + 0x1000) >> 12]
    remarks = engine.reload()
    assert any("module list" in remark for remark in remarks)
    assert engine.modules() == ()


def test_symbols_without_any_say_what_to_give():
    engine, _ = attached()
    with pytest.raises(SymbolNotFound, match="symbol store"):
        engine.symbol("nt!PoolHitTag")
    with pytest.raises(SymbolNotFound, match="no module is called nosuch"):
        engine.symbol("nosuch!x")


def test_seconds_stopped_grow_only_while_stopped():
    engine, host = attached(50.0)
    before = engine.seconds_stopped
    host.now += 2
    assert engine.seconds_stopped == pytest.approx(before + 2)
    engine.resume(50)
    after = engine.seconds_stopped
    host.now += 100
    assert engine.seconds_stopped == pytest.approx(after)
    assert after < before + 3


def test_errors_while_waiting_pass_through():
    engine, _ = attached(TargetRestarted("waiting", "it boots again"))
    with pytest.raises(TargetRestarted):
        engine.resume(5)
    assert engine.stop.kind is StopKind.STILL_RUNNING


# -- leaving


def test_close_leaves_the_target_running_behind_the_break():
    engine, host = attached(exception(HIT))
    engine.resume(5)
    engine.close()
    assert struct.unpack_from("<Q", host.contexts_set[-1], 0xF8) == (HIT + 1,)
    assert not host.stopped
    assert host.closed
    engine.close()  # again does nothing
    assert host.log.count("resume") == 2
    assert engine.stop.kind is StopKind.STILL_RUNNING


def test_a_stop_behind_our_back_is_not_stepped_over_with_old_registers():
    """A continue was obeyed though its acknowledgement was lost; the target has stopped anew."""
    engine, host = attached(exception(HIT), 1.0)
    engine.resume(5)
    engine.registers()  # of the first stop
    host.state = exception(HIT + 0x500)
    host.register("rbx", 0x1234)
    host.log.clear()
    stop = engine.resume(5)
    assert stop.program_counter == HIT + 0x500
    assert "resume" not in host.log
    assert engine.registers()["rbx"] == 0x1234
    engine.resume(0.5)
    written = host.contexts_set[-1]
    assert struct.unpack_from("<Q", written, 0xF8) == (HIT + 0x501,)
    assert struct.unpack_from("<Q", written, 0x90) == (0x1234,)


def test_the_same_stop_told_again_is_no_second_stop():
    engine, host = attached(exception(HIT), 1.0)
    first = engine.resume(5)
    engine.registers()
    host.state = exception(HIT)
    host.register("rbx", 0x77)
    assert engine.resume(0.5).kind is StopKind.STILL_RUNNING
    assert struct.unpack_from("<Q", host.contexts_set[-1], 0x90) == (0x77,)
    assert first.program_counter == HIT


def test_leaving_waits_for_a_break_in_that_is_still_on_its_way():
    engine, host = attached(exception(HIT), break_in(), 1.0)
    engine.resume(5)
    host.break_in_pending = True  # sent while something else had stopped the target
    engine.close()
    assert not host.stopped
    assert host.log.count("resume") == 3
    assert host.closed


def test_leaving_leaves_another_stop_to_its_user():
    engine, host = attached(exception(HIT), exception(HIT + 0x100))
    engine.resume(5)
    host.break_in_pending = True
    engine.close()
    assert host.stopped
    assert any("left stopped" in remark for remark in engine.remarks)


def test_leave_stopped():
    engine, host = attached(exception(HIT))
    engine.resume(5)
    engine.detach(leave_stopped=True)
    assert host.stopped
    assert host.closed


def test_close_of_a_running_target_and_of_a_dead_link():
    engine, host = attached(1.0)
    engine.resume(1)
    engine.close()
    assert host.closed
    engine, host = attached()

    def dead(_):
        raise LinkLost("asking", "no answer")

    host.during = dead
    with engine:
        pass
    assert host.closed
    assert any("let run" in remark for remark in engine.remarks)


def test_attach_cut_off_lets_the_target_run_when_it_stops_after_all():
    host = ScriptedHost(0.2, break_in())

    def interrupted(what):
        host.during = lambda _: None
        raise KeyboardInterrupt

    host.during = interrupted
    engine = NativeEngine(host, "x", clock=lambda: host.now)
    with pytest.raises(KeyboardInterrupt):
        engine.attach(10)
    engine.close()
    assert host.log[0] == "detach"
    assert not host.stopped
    assert host.closed


def test_attach_to_nobody_closes_quietly():
    host = ScriptedHost()
    engine = NativeEngine(host, "x", clock=lambda: host.now)
    engine.close()
    assert (host.log, host.closed, engine.remarks) == ([], 1, [])


# -- Ctrl+C


def press(host, *when):
    seen = []

    def during(what):
        if what in when and not seen:
            seen.append(what)
            signal.raise_signal(signal.SIGINT)
            host.now += 0  # the handler would raise here if it were not held off

    host.during = during
    return seen


@pytest.mark.parametrize("when", ["get context", "read", "set context", "resume", "wait"])
def test_ctrl_c_waits_for_the_end_of_a_request(when):
    engine, host = attached(exception(HIT), exception(HIT))
    engine.resume(5)
    seen = press(host, when)

    def one_hit():
        engine.registers()
        engine.stack()
        engine.resume(5)

    with pytest.raises(KeyboardInterrupt):
        one_hit()
    assert seen
    # Whatever was going on is complete: the engine and the host agree on what the target does.
    assert (engine.stop.kind is not StopKind.STILL_RUNNING) == host.stopped
    engine.interrupt()
    assert engine.registers()["rip"] == HIT


def test_ctrl_c_during_a_long_wait_leaves_the_target_running():
    engine, host = attached(50.0, break_in())
    press(host, "wait")
    with pytest.raises(KeyboardInterrupt):
        engine.resume(None)
    assert engine.stop.kind is StopKind.STILL_RUNNING
    assert not host.stopped
    assert host.log.count("resume") == 1


def test_handler_that_raises_while_handlers_are_put_back():
    """SIGTERM is back first and pressed at once: SIGINT must be back all the same."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    class Terminated(Exception):
        pass

    def raises(number, frame):
        raise Terminated

    hold = HoldSignals()
    signal.signal(signal.SIGTERM, raises)
    try:
        with pytest.raises(Terminated), hold, hold:
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is raises
        assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]
        with hold:  # still works
            assert signal.getsignal(signal.SIGINT) is not before[signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signals_are_held_in_the_main_thread_only():
    seen = []

    def other():
        with HoldSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    engine, _ = attached(exception(HIT))
    engine.resume(5)
    engine.stack()
    engine.close()
    assert signal.getsignal(signal.SIGINT) is before
    assert BREAK_IN != HIT
