"""The DbgEng engine over a debugger that answers in its words."""

from __future__ import annotations

import pytest
from dbgeng_fakes import (
    ALLOC_BREAK,
    BANNER,
    BREAK_IN,
    DRIVER,
    FINISH,
    HIT_TAG,
    NT,
    TRACK,
    FakeDebugger,
    Halt,
    hit,
)

from kdleak.engine.channels.base import DUMP, LOCAL_KERNEL, Resumed
from kdleak.engine.dbgeng import open_dbgeng
from kdleak.engine.dbgeng_stop import STATUS_ARGUMENT, BreakInPlace, classify, last_break
from kdleak.errors import (
    LinkLost,
    MemoryNotWritten,
    MemoryUnreadable,
    NotLive,
    SymbolNotFound,
    TargetError,
    TargetRestarted,
    UnsupportedTarget,
)
from kdleak.model import Architecture, StackEnd, StopKind, SymbolKind


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def engine(*halts: Halt, use_kb: bool = False, **more):
    debugger = FakeDebugger(*halts, **more)
    clock = Clock()
    opened = open_dbgeng(debugger, clock=clock, use_kb=use_kb)
    clock.now = 10.0
    return opened, debugger


def names(stack):
    return [str(frame.symbol) for frame in stack.frames]


TRACKED = [
    "nt!ExAllocateHeapPool+0x18",
    "nt!ExAllocatePool2+0x40",
    "leakdrv!TrackRequest+0x30",
    "leakdrv!HandleRequest+0x50",
    "leakdrv!Worker+0x44",
]


def test_target_and_first_stop():
    opened, debugger = engine()
    assert opened.name == "dbgeng over fake"
    assert opened.where == "net:port=50000"
    target = opened.target
    assert (target.architecture, target.pointer_size, target.build) == (Architecture.X64, 8, 22621)
    assert (target.processors, target.kernel_base, target.live) == (2, NT, True)
    assert opened.stop.kind is StopKind.BREAK_IN
    assert opened.stop.program_counter == BREAK_IN
    assert debugger.closed is None


@pytest.mark.parametrize("label", ["Built by", "Edition build lab"])
def test_the_lab_is_told_by_old_and_new_debuggers(label):
    debugger = FakeDebugger()
    debugger.answers["vertarget"] = debugger._do_vertarget("").replace("Built by", label)
    assert open_dbgeng(debugger).target.description.endswith(", 22621.1.amd64fre.fake")


def test_no_kernel_there():
    debugger = FakeDebugger()
    debugger.answers["vertarget"] = "No target. Is the machine connected?\n"
    with pytest.raises(UnsupportedTarget):
        open_dbgeng(debugger)
    assert debugger.closed is False


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("use_kb", [True, False])
def test_stacks_are_the_same_in_every_way(quick: bool, use_kb: bool):
    opened, _ = engine(hit(*TRACK), hit(*TRACK), hit(*FINISH, alloc=False), quick=quick,
                       use_kb=use_kb)  # fmt: skip
    for expected in (TRACKED, TRACKED):
        stop = opened.resume(5)
        assert stop.kind is StopKind.BREAK_INSTRUCTION
        assert stop.program_counter == ALLOC_BREAK
        stack = opened.stack()
        assert names(stack) == expected
        assert stack.end is StackEnd.COMPLETE
        assert {frame.symbol.kind for frame in stack.frames} == {SymbolKind.PDB}
        assert [frame.address for frame in stack.frames] == [ALLOC_BREAK, *TRACK]
    opened.resume(5)
    assert names(opened.stack())[:3] == [
        "nt!ExFreeHeapPool+0x18", "nt!ExFreePoolWithTag+0x40", "leakdrv!FinishRequest+0x50",
    ]  # fmt: skip


def test_the_debugger_is_asked_about_new_addresses_only():
    halts = [hit(*TRACK) for _ in range(5)]
    opened, debugger = engine(*halts, hit(*FINISH, alloc=False), quick=True)
    for _ in halts:
        opened.resume(5)
        opened.stack()
        opened.stack()
    assert sum(command.startswith("k") for command in debugger.asked) == 1
    asked = len(debugger.asked)
    opened.resume(5)
    opened.stack()
    assert [command for command in debugger.asked[asked:] if command.startswith("k")] == ["kn 0x20"]


def test_one_read_of_the_stack_from_the_return_address_on():
    opened, debugger = engine(*(hit(*TRACK) for _ in range(3)), quick=True)
    for _ in range(2):
        opened.resume(5)
        opened.stack()
    opened.resume(5)
    debugger.quick.reads.clear()
    opened.stack()
    ((address, size),) = debugger.quick.reads
    assert address == debugger.halt.rsp + 0x28
    assert address + size <= (address | 0xFFF) + 1
    start, data = opened.stack_memory()
    assert (start, len(data)) == (address, size)


def test_a_walk_that_differs_from_the_debuggers_is_given_up():
    opened, debugger = engine(hit(*TRACK), hit(*TRACK))
    opened.resume(5)
    wrong = debugger._do_kn("")
    debugger.answers["kn 0x20"] = wrong.replace(f"{DRIVER + 0x1130:x}"[8:], "c1f11abc")
    stack = opened.stack()
    assert [frame.address for frame in stack.frames][2] != TRACK[1]
    assert any("differed from the debugger's" in remark for remark in opened.remarks)
    opened.resume(5)
    opened.stack()
    assert debugger.asked[-1] == "kb 0x20"


def test_a_driver_in_the_place_of_another_gets_its_own_name():
    opened, debugger = engine(*(hit(*TRACK) for _ in range(4)), quick=True)
    opened.resume(5)
    assert names(opened.stack()) == TRACKED
    debugger.driver = "another"
    debugger.put(DRIVER + 0x1800, b"new")
    opened.resume(5)
    opened.stack()  # nobody has looked at the list since
    opened._clock.now += 10
    asked = debugger.asked.count("lm")
    for _ in range(2):
        opened.resume(5)
        assert names(opened.stack())[2:] == [
            name.replace("leakdrv", "another") for name in TRACKED[2:]
        ]
    assert debugger.asked.count("lm") <= asked + 2  # one for the list, one for the new symbols
    assert any("leakdrv was unloaded" in remark for remark in opened.remarks)
    assert opened._symbols._cache.constant.read(DRIVER + 0x1800, 3) == b"new"


def test_the_list_is_read_anew_now_and_then_only():
    opened, debugger = engine(*(hit(*TRACK) for _ in range(5)), quick=True)
    opened.resume(5)
    opened.stack()
    asked = debugger.asked.count("lm")
    for _ in range(4):
        opened._clock.now += 4
        opened.resume(5)
        opened.stack()
    assert debugger.asked.count("lm") == asked + 1
    assert not opened.remarks
    debugger.answers["lm"] = "Unable to enumerate modules\n"
    opened._symbols.list_again()
    assert [module.name for module in opened.modules()] == ["nt", "leakdrv"]


def test_memory_by_text_and_what_is_absent():
    opened, debugger = engine()
    assert opened.read(HIT_TAG, 4) == bytes.fromhex("0fffffff")
    assert debugger.asked[-1] == f"db 0x{HIT_TAG:x} L0x4"
    whole = opened.read(NT + 3, 0x7000)
    assert whole[:2] == bytes(debugger.bytes_at(NT + 3, 2))
    assert len(whole) == 0x7000
    with pytest.raises(MemoryUnreadable) as caught:
        opened.read(NT + 0x7FF0, 0x40)
    assert caught.value.address == NT + 0x8000
    with pytest.raises(MemoryUnreadable):
        opened.read(0, 8)
    assert opened.read(HIT_TAG, 0) == b""


def test_writing_names_pool_hit_tag_and_reads_back():
    opened, debugger = engine()
    assert opened.symbol("NT!poolhittag") == HIT_TAG
    opened.write(HIT_TAG, b"Leak")
    assert debugger.asked[-1] == "ed nt!PoolHitTag 0x6b61654c"
    assert opened.read(HIT_TAG, 4) == b"Leak"
    for place in ("nt!PoolHitTag", f"0x{HIT_TAG:x}"):
        debugger.answers[f"ed {place} 0xffffff0f"] = "Memory access error in 'ed'\n"
    with pytest.raises(MemoryNotWritten, match="Memory access error"):
        opened.write(HIT_TAG, bytes.fromhex("0fffffff"))
    assert debugger.asked.count(".expr") == 1


def test_a_write_that_worked_is_no_failure_whatever_the_debugger_says_with_it():
    opened, debugger = engine()
    opened.symbol("nt!PoolHitTag")
    debugger.noise = "DBGHELP: nt - public symbols  \n         C:\\symbols\\ntkrnlmp.pdb\n"
    opened.write(HIT_TAG, b"Leak")
    assert opened.read(HIT_TAG, 4) == b"Leak"
    assert [command for command in debugger.asked if command.startswith("ed")] == [
        "ed nt!PoolHitTag 0x6b61654c"
    ]


def test_a_name_that_no_longer_resolves_does_not_keep_the_tag_armed():
    opened, debugger = engine()
    opened.symbol("nt!PoolHitTag")
    command = "ed nt!PoolHitTag 0x6b61654c"
    debugger.answers[command] = f"Couldn't resolve error at '{command[3:]}'\n"
    opened.write(HIT_TAG, b"Leak")
    assert opened.read(HIT_TAG, 4) == b"Leak"


def test_where_names_mean_values_only_addresses_are_written():
    opened, debugger = engine()
    debugger.evaluator = "C++"
    opened.symbol("nt!PoolHitTag")
    opened.write(HIT_TAG, b"Leak")
    opened.write(HIT_TAG, bytes.fromhex("0fffffff"))
    assert opened.read(HIT_TAG, 4) == bytes.fromhex("0fffffff")
    assert debugger.bytes_at(0x6B61654C, 1) == [None]
    assert not any("PoolHitTag 0x" in command for command in debugger.asked)


def test_symbols():
    opened, _ = engine()
    with pytest.raises(SymbolNotFound, match="NoSuch"):
        opened.symbol("nt!NoSuch")
    near = opened.nearest(HIT_TAG)
    assert (near.module, near.name, near.offset, near.kind) == (
        "nt", "PoolHitTag", 0, SymbolKind.PDB,
    )  # fmt: skip
    assert [module.name for module in opened.modules()] == ["nt", "leakdrv"]


def test_pool_usage_without_kdexts_says_so():
    opened, debugger = engine()
    with pytest.raises(TargetError, match="no kdexts") as caught:
        opened.pool_usage()
    assert "PoolTrackTable" in str(caught.value)
    assert any("tag tables are read through memory" in remark for remark in opened.remarks)
    assert debugger.asked.count("!poolused 3") == 1


def verbose(*rows: str, total: str = "") -> str:
    head = (
        "....\n Sorting by NonPaged Pool Consumed\n\n"
        "               NonPaged                                         Paged\n"
        " Tag       Allocs       Frees      Diff         Used       Allocs       Frees      Diff"
        "         Used\n\n"
    )
    return head + "".join(row + "\n" for row in rows) + total


ROW = " {:<4}{:>12}{:>12}{:>10}{:>13}{:>13}{:>12}{:>10}{:>13}\tUNKNOWN pooltag, please update"
TOTAL = "TOTAL{:>11}{:>12}{:>10}{:>13}{:>13}{:>12}{:>10}{:>13}\n"


def test_one_list_is_enough_when_it_adds_up():
    opened, debugger = engine()
    leak = ROW.format("Leak", 100, 40, 60, 6000, 0, 0, 0, 0)
    busy = ROW.format("Busy", 10, 9, 1, 64, 5, 1, 4, 512)
    total = TOTAL.format(110, 49, 61, 6064, 5, 1, 4, 512)
    debugger.answers["!poolused 3"] = verbose(leak, busy, total=total)
    snapshot = opened.pool_usage()
    assert snapshot.source == "!poolused 3"
    assert not snapshot.outstanding_only
    assert not snapshot.gaps
    rows = {row.tag.text: row for row in snapshot.rows}
    assert rows["Leak"].nonpaged.allocs == 100
    assert rows["Leak"].nonpaged.frees == 40
    assert rows["Busy"].paged.bytes == 512
    assert "!poolused 5" not in debugger.asked


def test_both_lists_when_the_first_is_cut():
    opened, debugger = engine()
    leak = ROW.format("Leak", 100, 40, 60, 6000, 0, 0, 0, 0)
    busy = ROW.format("Busy", 0, 0, 0, 0, 5, 1, 4, 512)
    debugger.answers["!poolused 3"] = verbose(leak)
    debugger.answers["!poolused 5"] = verbose(busy)
    snapshot = opened.pool_usage()
    assert snapshot.source == "!poolused 3 and !poolused 5"
    assert {row.tag.text for row in snapshot.rows} == {"Leak", "Busy"}
    assert any("TOTAL" in gap for gap in snapshot.gaps)


def test_resume_interrupt_and_time_stopped():
    opened, debugger = engine()
    clock = opened._clock
    assert opened.resume(1).kind is StopKind.STILL_RUNNING
    stopped = opened.seconds_stopped
    clock.now += 5
    assert opened.seconds_stopped == stopped
    with pytest.raises(MemoryUnreadable, match="running"):
        opened.read(HIT_TAG, 4)
    stop = opened.interrupt()
    assert stop.kind is StopKind.BREAK_IN
    asked = len(debugger.asked)
    assert opened.interrupt() == stop
    assert len(debugger.asked) == asked
    clock.now += 3
    assert opened.seconds_stopped == stopped + 3


def test_wait_that_ends_with_our_own_break_in_looks_like_a_running_target():
    opened, debugger = engine()

    def time_is_over(timeout):
        debugger._stop_at(Halt(BREAK_IN, registers={"rcx": 1}))
        return Resumed(text=BANNER, broke_in=True)

    debugger.on_resume = time_is_over
    assert opened.resume(1).kind is StopKind.STILL_RUNNING
    with pytest.raises(TargetError, match="running"):
        opened.registers()
    assert opened.interrupt().kind is StopKind.BREAK_IN
    assert opened.registers()["rip"] == BREAK_IN
    assert opened.resume(1).kind is StopKind.STILL_RUNNING
    debugger.on_resume = None
    debugger.halts = [hit(*TRACK)]
    assert opened.resume(1).kind is StopKind.BREAK_INSTRUCTION


def test_hit_that_comes_before_our_own_break_in():
    opened, debugger = engine(hit(*TRACK))

    def time_is_over(timeout):
        debugger.on_resume = None
        debugger._stop_at(hit(*TRACK))
        return Resumed(text=BANNER, broke_in=True)

    debugger.on_resume = time_is_over
    assert opened.resume(1).kind is StopKind.BREAK_INSTRUCTION
    # The break-in that was overtaken stops the target right after: nobody sees it.
    debugger.halts = [Halt(BREAK_IN, registers={"rcx": 1}), hit(*TRACK)]
    assert opened.resume(5).kind is StopKind.BREAK_INSTRUCTION
    assert opened.break_ins_absorbed == 1


def test_break_in_left_over_from_the_attach_is_absorbed_and_a_later_one_is_not():
    opened, debugger = engine(Halt(BREAK_IN, registers={"rcx": 1}), hit(*TRACK))
    assert opened.resume(5).kind is StopKind.BREAK_INSTRUCTION
    assert opened.break_ins_absorbed == 1
    clock = opened._clock

    def later(timeout):
        clock.now += 3

    debugger.on_resume = later
    debugger.halts = [Halt(BREAK_IN, registers={"rcx": 1})]
    assert opened.resume(5).kind is StopKind.BREAK_IN


@pytest.mark.parametrize(
    ("halt", "kind", "detail"),
    [
        (Halt(BREAK_IN, registers={"rcx": 4}), StopKind.BUG_CHECK, "bug check"),
        (
            Halt(
                BREAK_IN,
                registers={"rcx": 1},
                text="\n*** Fatal System Error: 0x000000d1\n"
                "                       (0x0000000000000028,0x0000000000000002,"
                "0x0000000000000000,0xFFFFF80012345678)\n\n" + BANNER,
            ),
            StopKind.BUG_CHECK,
            "0xd1",
        ),
        (Halt(NT + 0x1250, text="Breakpoint 0 hit\n"), StopKind.EXCEPTION, "breakpoint 0"),
        (
            Halt(NT + 0x1250, text="Access violation - code c0000005 (!!! second chance !!!)\n"),
            StopKind.EXCEPTION,
            "0xc0000005",
        ),
        (Halt(NT + 0x1250, text=""), StopKind.EXCEPTION, "did not say why"),
        (
            Halt(NT + 0x1250, text="Single step exception - code 80000004 (first chance)\n"),
            StopKind.SINGLE_STEP,
            "",
        ),
    ],
)
def test_other_stops(halt, kind, detail):
    opened, _ = engine(halt)
    opened._surplus.ran(10.0)
    stop = opened.resume(5)
    assert stop.kind is kind
    assert detail in stop.detail


def test_a_stop_without_a_word_is_explained_by_the_last_event():
    opened, debugger = engine(Halt(NT + 0x1250, text=""))
    debugger.silent_event = "Hit breakpoint 3"
    stop = opened.resume(5)
    assert (stop.kind, stop.detail) == (StopKind.EXCEPTION, "breakpoint 3 of the debugger")


def test_attached_at_a_hit_that_somebody_left():
    debugger = FakeDebugger()
    debugger._stop_at(hit(*TRACK))
    opened = open_dbgeng(debugger)
    assert opened.stop.kind is StopKind.BREAK_INSTRUCTION
    assert opened.stop.program_counter == ALLOC_BREAK
    assert names(opened.stack()) == TRACKED


def test_cut_off_between_the_stop_and_the_note_of_it():
    opened, debugger = engine(hit(*TRACK), quick=True)
    registers = debugger.quick.registers

    def press():
        debugger.quick.registers = registers
        raise KeyboardInterrupt

    debugger.quick.registers = press
    with pytest.raises(KeyboardInterrupt):
        opened.resume(5)
    stop = opened.interrupt()
    assert stop.kind is StopKind.BREAK_INSTRUCTION
    assert stop.program_counter == ALLOC_BREAK


def test_places_of_a_32_bit_target_are_sign_extended():
    place = BreakInPlace(frozenset({0xFFFFFFFF80521500}), "")
    resumed = Resumed(text=BANNER)
    stop = classify(resumed, last_break(BANNER), {"eip": 0x80521500}, place, 0.0)
    assert (stop.kind, stop.program_counter) == (StopKind.BREAK_IN, 0xFFFFFFFF80521500)
    user = classify(resumed, last_break(BANNER), {"eip": 0x401000}, place, 0.0)
    assert (user.kind, user.program_counter) == (StopKind.BREAK_INSTRUCTION, 0x401000)


def test_the_status_of_a_break_in_has_32_bits():
    place = BreakInPlace(frozenset({BREAK_IN}), STATUS_ARGUMENT[Architecture.ARM64])
    for status, kind in ((1, StopKind.BREAK_IN), (4, StopKind.BUG_CHECK)):
        registers = {"pc": BREAK_IN, "x0": status | 0xABCD << 32}
        assert classify(Resumed(text=BANNER), None, registers, place, 0.0).kind is kind


def test_restart_of_the_target():
    opened, debugger = engine()
    text = "Shutdown occurred at (Mon)...\nConnected to Windows 10 22621 x64 target at (Mon)\n"
    debugger.halts = [Halt(BREAK_IN, registers={"rcx": 1}, text=text + BANNER)]
    debugger.uptime = 0.5
    with pytest.raises(TargetRestarted):
        opened.resume(5)
    assert opened.stop.kind is StopKind.BREAK_IN


def test_restart_that_the_channel_saw_when_it_attached_anew(monkeypatch):
    opened, debugger = engine()
    opened.symbol("nt!PoolHitTag")
    assert opened.resume(1).kind is StopKind.STILL_RUNNING

    def attach_anew(timeout):
        debugger.running = False
        debugger.base = DRIVER
        raise TargetRestarted("attaching anew", "the target was started anew meanwhile")

    with monkeypatch.context() as patched:
        patched.setattr(debugger, "interrupt", attach_anew)
        with pytest.raises(TargetRestarted):
            opened.interrupt()
    assert opened.target.kernel_base == DRIVER
    opened.interrupt()
    opened.symbol("nt!PoolHitTag")
    assert debugger.asked[-1] == "? @@masm(nt!PoolHitTag)", "an old address was kept"


@pytest.mark.parametrize("seconds", [1, 10])
def test_restart_where_the_text_goes_to_the_user(seconds):
    opened, debugger = engine(quick=True)

    def back_again(timeout):
        opened._clock.now += seconds
        debugger._stop_at(hit(*TRACK))
        return Resumed(code=0x80000003)

    debugger.on_resume = back_again
    asked = debugger.asked.count("vertarget")
    assert opened.resume(20).kind is StopKind.BREAK_INSTRUCTION
    assert debugger.asked.count("vertarget") == asked + (seconds >= 5)
    if seconds >= 5:
        debugger.uptime = 3.0
        with pytest.raises(TargetRestarted):
            opened.resume(20)


def test_a_new_connection_to_the_same_boot_is_no_restart():
    opened, debugger = engine()
    text = "Waiting to reconnect...\nConnected to Windows 10 22621 x64 target at (Mon)\n"
    debugger.halts = [Halt(ALLOC_BREAK, (*TRACK, 0), text=text + BANNER)]
    debugger.uptime = 130.0
    assert opened.resume(5).kind is StopKind.BREAK_INSTRUCTION


def test_ctrl_c_while_waiting_then_a_stop_nobody_was_told_of():
    opened, debugger = engine()

    def press(timeout):
        raise KeyboardInterrupt

    debugger.on_resume = press
    with pytest.raises(KeyboardInterrupt):
        opened.resume(5)
    assert opened.stop.kind is StopKind.STILL_RUNNING
    debugger._stop_at(Halt(BREAK_IN, registers={"rcx": 1}))
    assert opened.interrupt().kind is StopKind.BREAK_IN
    assert opened.read(HIT_TAG, 4) == bytes.fromhex("0fffffff")


def test_lost_link_and_back():
    opened, debugger = engine()
    opened.resume(1)
    debugger.link_down = True
    with pytest.raises(LinkLost):
        opened.resume(1)
    with pytest.raises(LinkLost):
        opened.interrupt()
    debugger.link_down = False
    assert opened.interrupt().kind is StopKind.BREAK_IN


@pytest.mark.parametrize("session", [DUMP, LOCAL_KERNEL])
def test_nothing_runs_in_a_dump_or_a_local_session(session):
    debugger = FakeDebugger()
    debugger.session = session
    opened = open_dbgeng(debugger)
    assert opened.local_kernel is (session == LOCAL_KERNEL)
    assert opened.target.live is (session != DUMP)
    for refused in (
        lambda: opened.resume(1),
        lambda: opened.write(HIT_TAG, b"Leak"),
    ):
        with pytest.raises(NotLive, match=session):
            refused()
    assert not any(command.startswith("ed") for command in debugger.asked)


def test_leaving():
    opened, debugger = engine()
    opened.detach(leave_stopped=True)
    assert debugger.closed is True
    with engine()[0] as other:
        pass
    assert other.channel.closed is False
