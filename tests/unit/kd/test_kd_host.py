"""KdHost in simulated time, over KDNET and over a byte stream."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from kd_debuggee import Debuggee
from kd_scripted_target import BASE, BREAK_PLACE, HIT_PLACE, MEMORY_SIZE, RIP, VERSION
from kd_simulation import HOST, TARGET, Network, SimulatedMedium, Weather

from kdleak.errors import (
    LinkLost,
    NoTarget,
    ProtocolError,
    TargetError,
    TargetRestarted,
    WrongKey,
)
from kdleak.kd.blocking import BlockingHost
from kdleak.kd.host import KdHost
from kdleak.kd.kdnet_crypto import KdnetKey
from kdleak.kd.kdnet_machine import KdnetHostMachine, KdnetTargetMachine
from kdleak.kd.packets import Api, LoadSymbols, PacketType, parse_memory_union
from kdleak.kd.reliable import Role
from kdleak.kd.serial_machine import SerialMachine
from kdleak.kd.structures import (
    DEBUG_IO,
    FILE_IO,
    FileIoApi,
    build_file_io_refusal,
    build_get_string,
    build_print,
)

KEY = KdnetKey.parse("1.2.3.4")
FAIR = Weather()


class Bench(NamedTuple):
    network: Network
    host: KdHost
    debuggee: Debuggee
    medium: SimulatedMedium
    prints: list


def new_target(network: Network, serial: bool, key: KdnetKey = KEY):
    if serial:
        return SerialMachine(Role.TARGET)
    return KdnetTargetMachine(key, host=HOST, own=TARGET, random_bytes=network.random.randbytes)


def new_host(network: Network, serial: bool, each, **options):
    medium = SimulatedMedium(network, each, stream=serial)
    if serial:
        machine = SerialMachine(Role.HOST)
    else:
        machine = KdnetHostMachine(KEY, random_bytes=random.Random(9).randbytes)
    link = BlockingHost(
        machine,
        medium,
        where="simulated",
        max_read=0x800 if serial else 0x400,
        clock=medium.clock,
        handshakes=not serial,
        break_in_interval=2.0 if serial else 1.0,
    )
    return KdHost(link, clock=medium.clock, **options), medium


def new_bench(serial: bool, weather: Weather = FAIR, **options) -> Bench:
    network = Network(5, weather, ordered=serial)
    target = new_target(network, serial)
    debuggee = Debuggee(target)
    prints: list = []
    host, medium = new_host(
        network, serial, lambda: debuggee.step(network.now), on_print=prints.append, **options
    )
    network.attach(TARGET, target)
    return Bench(network, host, debuggee, medium, prints)


@pytest.fixture(params=[False, True], ids=["kdnet", "serial"])
def bench(request) -> Bench:
    return new_bench(request.param)


def test_attach_breaks_into_a_running_target(bench) -> None:
    before = bench.network.now
    state = bench.host.attach(10)
    assert state.program_counter == BREAK_PLACE
    assert bench.host.stopped
    assert bench.network.now - before < 1.0
    assert bench.host.requests == 0
    assert bench.host.get_version() == VERSION
    assert bench.host.requests == 1
    assert bench.debuggee.machine.break_ins == 0


def test_attach_to_a_stopped_target_sends_no_break_in(bench) -> None:
    bench.debuggee.hit()
    state = bench.host.attach(10)
    assert state.program_counter == HIT_PLACE
    assert bench.debuggee.machine.break_ins == 0
    assert state.control_report.instruction_stream[:1] == b"\xcc"


@pytest.mark.parametrize("serial", [False, True])
def test_attach_when_nothing_is_there(serial: bool) -> None:
    bench = new_bench(serial)
    bench.network.detach(TARGET)
    with pytest.raises(NoTarget):
        bench.host.attach(7)
    assert bench.network.now == pytest.approx(1007, abs=0.01)


def test_attach_with_the_wrong_key() -> None:
    bench = new_bench(serial=False)
    bench.network.detach(TARGET)
    other = KdnetKey.parse("9.9.9.9")
    bench.network.attach(TARGET, new_target(bench.network, serial=False, key=other))
    with pytest.raises(WrongKey) as caught:
        bench.host.attach(10)
    assert "9.9" not in str(caught.value)
    assert "1.2.3" not in str(caught.value)


def test_one_foreign_datagram_is_not_yet_a_wrong_key() -> None:
    bench = new_bench(serial=False)
    bench.network.detach(TARGET)
    other = KdnetKey.parse("9.9.9.9")
    bench.network.attach(TARGET, new_target(bench.network, serial=False, key=other))
    with pytest.raises(NoTarget):
        bench.host.attach(2)


def test_one_hit_costs_four_requests(bench) -> None:
    host = bench.host
    host.attach(10)
    host.step_over_break()
    bench.debuggee.hit()
    host.resume()
    state = host.wait(5)
    assert state is not None
    assert state.program_counter == HIT_PLACE
    before = host.requests
    context = bytearray(host.get_context(state.processor))
    host.read_virtual_once(BASE, 0x300)
    context[RIP] = (HIT_PLACE + 1).to_bytes(8, "little")
    host.set_context(state.processor, bytes(context))
    host.resume()
    assert host.requests - before == 4
    assert host.wait(1) is None
    assert len(bench.debuggee.continues) == 2


def test_without_stepping_over_the_same_int3_is_hit_again(bench) -> None:
    bench.host.attach(10)
    bench.debuggee.hit()
    bench.host.step_over_break()
    bench.host.resume()
    for _ in range(3):
        state = bench.host.wait(5)
        assert state is not None
        assert state.program_counter == HIT_PLACE
        bench.host.resume()


def test_step_over_break_is_done_once(bench) -> None:
    bench.host.attach(10)
    assert bench.host.step_over_break()
    requests = bench.host.requests
    assert not bench.host.step_over_break()
    assert bench.host.requests == requests
    assert int.from_bytes(bench.debuggee.context[RIP], "little") == BREAK_PLACE + 1


def test_reading_memory(bench) -> None:
    host, memory = bench.host, bench.debuggee.body.memory
    host.attach(10)
    assert host.read_virtual(BASE + 7, 0x2100) == memory[7 : 7 + 0x2100]
    # It ends at the end of memory, though the last chunk reaches beyond and fails as a whole.
    assert host.read_virtual(BASE + MEMORY_SIZE - 0x90, 0x200) == memory[-0x90:]
    assert host.read_virtual(0x10, 4) == b""
    assert host.read_virtual(BASE, 0) == b""
    assert host.read_physical(BASE, 16) == memory[:16]
    assert host.read_control_space(0, 1, 8) == (0xFFFFF78000001001).to_bytes(8, "little")


def test_a_chunk_is_no_larger_than_the_link_allows(bench) -> None:
    bench.host.attach(10)
    bench.host.read_virtual(BASE, 0x2000)
    counts = [parse_memory_union(request.union)[1] for request in bench.debuggee.body.requests]
    assert max(counts) == bench.host.max_read
    assert bench.host.requests == len(counts) == 0x2000 // bench.host.max_read


def test_writing_memory(bench) -> None:
    host, memory = bench.host, bench.debuggee.body.memory
    host.attach(10)
    assert host.write_virtual(BASE + 3, b"xyz" * 1000) == 3000
    assert memory[3:3003] == b"xyz" * 1000
    assert host.write_virtual(0x10, b"xyz") == 0
    assert host.write_virtual(BASE, b"") == 0


@pytest.mark.parametrize("plain", [True, False])
def test_registers_both_ways_and_remembered(bench, plain: bool) -> None:
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    debuggee.body.refuse_context = not plain
    first = host.get_context(0)
    assert first == bytes(debuggee.context)
    before = host.requests
    assert host.get_context(0) == first
    # 0x4D0 bytes in slices of 0x300 take two.
    assert host.requests - before == (1 if plain else 2)
    changed = first[:0x78] + b"\x11" * 8 + first[0x80:]
    host.set_context(0, changed)
    assert bytes(debuggee.context) == changed


def test_registers_refused(bench) -> None:
    bench.host.attach(10)
    bench.debuggee.body.refuse_context = True
    bench.debuggee.body.context_ex = False
    with pytest.raises(TargetError, match="0xc0000001"):
        bench.host.get_context(0)
    with pytest.raises(TargetError, match="0xc0000001"):
        bench.host.set_context(0, bytes(0x4D0))


def test_requests_to_a_running_target_are_refused_here(bench) -> None:
    bench.host.attach(10)
    bench.host.step_over_break()
    bench.host.resume()
    with pytest.raises(ProtocolError, match="running"):
        bench.host.read_virtual(BASE, 4)
    with pytest.raises(ProtocolError, match="running"):
        bench.host.resume()


def test_a_running_target_is_served(bench) -> None:
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    host.step_over_break()
    driver = LoadSymbols("\\??\\leakdrv.sys", 0xFFFFF80055500000, size=0x6000, checksum=5)
    gone = LoadSymbols("\\??\\leakdrv.sys", 0xFFFFF80055500000, unload=True)
    file_create = build_file_io_refusal(FileIoApi.CREATE, 0) + "a.sys".encode("utf-16-le")
    debuggee.plan = [
        ("send", PacketType.DEBUG_IO, build_print(b"hello \xe9")),
        ("send", PacketType.DEBUG_IO, build_get_string(b"proceed? ", 16)),
        ("send", PacketType.FILE_IO, file_create),
        ("send", PacketType.CONTROL_REQUEST, bytes(12)),
        ("send", PacketType.TRACE_IO, bytes(12)),
        ("send", PacketType.POLL_BREAKIN, b""),
        ("send", PacketType.DEBUG_IO, b"torn"),
        ("load", driver),
        ("load", gone),
        ("stop", HIT_PLACE, 0),
    ]
    host.resume()
    state = host.wait(20)
    assert state is not None
    assert state.program_counter == HIT_PLACE
    assert bench.prints == ["hello \xe9", "proceed? "]
    assert host.module_events == [driver, gone]
    assert host.unread == 1
    line, refusal = debuggee.heard
    assert DEBUG_IO.parse(line.payload).reply_length == 0
    assert FILE_IO.parse(refusal.payload).status == 0xC000000F
    assert len(refusal.payload) == 0x40
    assert [api for api, _ in debuggee.continues] == [Api.CONTINUE2] * 3


def test_unloading_everything_means_a_restart(bench) -> None:
    bench.host.attach(10)
    bench.host.step_over_break()
    bench.debuggee.plan = [("load", LoadSymbols("", 0xFFFFF80100000000, unload=True))]
    bench.host.resume()
    with pytest.raises(TargetRestarted):
        bench.host.wait(10)
    assert [api for api, _ in bench.debuggee.continues] == [Api.CONTINUE2, Api.CONTINUE]


def test_break_in_while_running(bench) -> None:
    host = bench.host
    host.attach(10)
    host.step_over_break()
    host.resume()
    before = bench.network.now
    assert host.break_in(5).program_counter == BREAK_PLACE
    assert bench.network.now - before < 0.1
    sent = host.requests
    assert host.break_in(5).program_counter == BREAK_PLACE
    assert host.requests == sent


def test_break_in_into_nothing(bench) -> None:
    host = bench.host
    host.attach(10)
    host.step_over_break()
    host.resume()
    bench.network.detach(TARGET)
    with pytest.raises(LinkLost):
        host.break_in(5)


def test_a_break_in_that_comes_late_is_absorbed() -> None:
    bench = new_bench(serial=True)
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    host.step_over_break()
    host.resume()
    host.wait(3)
    # A hit comes first; our request then waits in the target until the next resume.
    debuggee.hit()
    host.link.break_in()
    host._breaks.sent()
    debuggee.machine.break_ins = 0
    state = host.wait(5)
    assert state is not None
    assert state.program_counter == HIT_PLACE
    debuggee.machine.break_ins = 1
    host.step_over_break()
    host.resume()
    assert host.wait(1.0) is None
    assert not host.stopped
    assert debuggee.running
    # Only one: the next stop there is told, whoever asked for it.
    debuggee.machine.break_ins = 1
    assert host.wait(5) is not None


def test_a_bug_check_at_the_same_place_is_never_absorbed() -> None:
    bench = new_bench(serial=True)
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    host.step_over_break()
    host.resume()
    host._breaks.sent()
    debuggee.plan = [("stop", BREAK_PLACE, 3)]
    state = host.wait(5)
    assert state is not None
    assert state.program_counter == BREAK_PLACE


def test_no_reply_at_all_is_a_lost_link(bench) -> None:
    bench.host.attach(10)
    bench.debuggee.mute = True
    before = bench.network.now
    with pytest.raises(LinkLost, match="READ_VIRTUAL"):
        bench.host.read_virtual(BASE, 4)
    assert bench.network.now - before < 12


def test_a_target_that_vanished_is_a_lost_link(bench) -> None:
    bench.host.attach(10)
    bench.network.detach(TARGET)
    with pytest.raises(LinkLost) as caught:
        bench.host.read_virtual(BASE, 4)
    assert "acknowledge" in str(caught.value)
    assert caught.value.next_step


def test_a_lost_request_is_asked_again(bench) -> None:
    bench.host.attach(10)
    lost = []

    def drop_first(request) -> bool:
        lost.append(request)
        return len(lost) > 1

    bench.debuggee.filter = drop_first
    assert bench.host.read_virtual(BASE, 4) == bytes(bench.debuggee.body.memory[:4])
    assert len(lost) == 2
    assert bench.host.requests == 1


def test_the_link_recovers_after_it_was_lost(bench) -> None:
    host = bench.host
    host.attach(10)
    target = bench.network.machines[TARGET]
    bench.network.detach(TARGET)
    with pytest.raises(LinkLost):
        host.read_virtual(BASE, 4)
    bench.network.machines[TARGET] = target
    state = host.attach(20)
    assert state.program_counter == BREAK_PLACE
    assert host.read_virtual(BASE, 4) == bytes(bench.debuggee.body.memory[:4])


def test_detach_lets_it_run_and_closes(bench) -> None:
    bench.host.attach(10)
    bench.host.detach()
    assert bench.medium.closed
    assert len(bench.debuggee.continues) == 1
    assert int.from_bytes(bench.debuggee.context[RIP], "little") == BREAK_PLACE + 1
    handles = [
        int.from_bytes(request.union[:4], "little")
        for request in bench.debuggee.body.requests
        if request.api == Api.RESTORE_BREAKPOINT
    ]
    assert handles == list(range(1, 33))


def test_detach_from_a_dead_target_raises_nothing(bench) -> None:
    bench.host.attach(10)
    bench.network.detach(TARGET)
    bench.host.detach()
    assert bench.medium.closed


def reboot(bench: Bench, serial: bool, version=VERSION) -> Debuggee:
    target = new_target(bench.network, serial)
    bench.network.detach(TARGET)
    debuggee = Debuggee(target)
    bench.medium._each = lambda: debuggee.step(bench.network.now)
    bench.network.attach(TARGET, target)
    return debuggee


@pytest.mark.parametrize("moment", ["running", "request"])
def test_kdnet_reboot(moment: str) -> None:
    bench = new_bench(serial=False)
    host = bench.host
    host.attach(10)
    host.step_over_break()
    if moment == "running":
        host.resume()
    debuggee = reboot(bench, serial=False)
    use = {"running": lambda: host.wait(10), "request": lambda: host.read_virtual(BASE, 4)}
    with pytest.raises(TargetRestarted):
        use[moment]()
    assert not host.stopped
    assert host.attach(10).program_counter == BREAK_PLACE
    assert host.read_virtual(BASE, 4) == bytes(debuggee.body.memory[:4])
    assert host.link.reboots == 1


def test_serial_reboot_is_noticed_at_the_next_stop(monkeypatch) -> None:
    bench = new_bench(serial=True)
    host = bench.host
    host.attach(10)
    host.get_version()
    host.step_over_break()
    host.resume()
    debuggee = reboot(bench, serial=True)
    import dataclasses

    import kd_scripted_target

    moved = dataclasses.replace(VERSION, kernel_base=VERSION.kernel_base + 0x200000)
    monkeypatch.setattr(kd_scripted_target, "VERSION", moved)
    debuggee.hit()
    with pytest.raises(TargetRestarted):
        host.wait(10)


def test_serial_renumbering_of_the_same_system_is_no_reboot() -> None:
    bench = new_bench(serial=True)
    host = bench.host
    host.attach(10)
    host.get_version()
    host.step_over_break()
    host.resume()
    debuggee = reboot(bench, serial=True)
    debuggee.hit()
    state = host.wait(10)
    assert state is not None
    assert state.program_counter == HIT_PLACE


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_second_host_takes_over(serial: bool, stopped: bool) -> None:
    bench = new_bench(serial)
    bench.host.attach(10)
    bench.host.step_over_break()
    if not stopped:
        bench.host.resume()
        bench.host.wait(1)
    else:
        bench.debuggee.hit()
        bench.host.resume()
        bench.host.wait(1)
        # Killed in the middle of a request, whose answer nobody waits for.
        bench.debuggee.answers.append(bytes(56))
    bench.network.detach(HOST)
    bench.network.run(lambda: False, seconds=4, each=lambda: bench.debuggee.step(bench.network.now))
    second, _ = new_host(bench.network, serial, lambda: bench.debuggee.step(bench.network.now))
    before = bench.network.now
    state = second.attach(10)
    # KDNET waits for the next poke; a stopped serial target answers at once.
    assert bench.network.now - before < (1.0 if serial else 3.5)
    assert state.program_counter == (HIT_PLACE if stopped else BREAK_PLACE)
    assert second.read_virtual(BASE, 4) == bytes(bench.debuggee.body.memory[:4])
    second.step_over_break()
    second.resume()
    assert second.wait(1) is None


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_hunt_in_bad_weather(serial: bool, seed: int) -> None:
    weather = (
        Weather(loss=0.1, corruption=0.05)
        if serial
        else Weather(loss=0.2, duplication=0.2, reordering=0.2, corruption=0.2)
    )
    bench = new_bench(serial, weather, request_timeout=60.0)
    bench.network.random.seed(seed)
    host, debuggee = bench.host, bench.debuggee
    host.attach(120)
    host.step_over_break()
    for _ in range(20):
        debuggee.hit()
        host.resume()
        state = host.wait(60)
        assert state is not None
        assert state.program_counter == HIT_PLACE
        assert host.read_virtual(BASE + 64, 256) == bytes(debuggee.body.memory[64:320])
        host.step_over_break()


def test_the_reply_to_an_interrupted_request_is_not_taken_for_another(bench) -> None:
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    link = host.link
    receive = link.receive

    def interrupted(timeout):
        link.receive = receive
        raise KeyboardInterrupt

    link.receive = interrupted
    with pytest.raises(KeyboardInterrupt):
        host.get_context(0)
    debuggee.context[0x78] ^= 0xFF
    assert host.get_context(0) == bytes(debuggee.context)
    link.receive = interrupted
    with pytest.raises(KeyboardInterrupt):
        host.get_context(0)
    debuggee.hit()
    debuggee.context[RIP] = bytes(8)
    host.resume()
    assert host.wait(5) is not None
    assert host.get_context(0) == bytes(debuggee.context)


def test_a_state_change_told_again_is_not_taken_for_the_next_stop(bench) -> None:
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    host.step_over_break()
    host.link.reset()
    assert host.read_virtual(BASE, 4) == bytes(debuggee.body.memory[:4])
    host.resume()
    assert host.wait(3) is None
    assert debuggee.running


def test_attach_goes_on_when_the_target_boots_meanwhile() -> None:
    bench = new_bench(serial=False)
    host = bench.host
    # The loader answers nothing but the handshake; then the kernel comes up.
    kernel_up = [False]

    def each() -> None:
        if bench.network.now > 1005 and not kernel_up[0]:
            kernel_up[0] = True
            bench.medium._each = lambda: None
            kernel = reboot(bench, serial=False)
            kernel.hit()

    bench.medium._each = each
    assert host.attach(30).program_counter == HIT_PLACE
    assert host.link.reboots == 1


def test_a_32_bit_target_is_read_as_such(bench, monkeypatch) -> None:
    import dataclasses

    import kd_scripted_target

    from kdleak.kd.packets import Machine, build_exception_change

    monkeypatch.setattr(
        kd_scripted_target, "VERSION", dataclasses.replace(VERSION, machine=Machine.I386)
    )
    real_build = build_exception_change
    monkeypatch.setattr(
        "kd_debuggee.build_exception_change",
        lambda *args, **options: real_build(*args, **options, machine=Machine.I386),
    )
    host = bench.host
    host.attach(10)
    host.get_version()
    assert host.machine == Machine.I386
    assert host.state is not None
    assert host.state.control_report.instruction_stream[:2] == b"\xcc\xc3"
    bench.debuggee.body.context = bytearray(0x2CC)
    bench.debuggee.context[0xB8:0xBC] = b"\xff\xff\xff\x80"
    assert host.step_over_break()
    assert bench.debuggee.context[0xB8:0xBC] == b"\x00\x00\x00\x81"
    bench.debuggee.context[0x00:0x04] = b"\x07\x00\x01\x00"
    assert len(host.get_context(0)) == 0x2CC


def test_packets_that_cannot_be_understood_are_counted(bench) -> None:
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    host.step_over_break()
    debuggee.plan = [
        ("send", PacketType.FILE_IO, b"short"),
        ("send", PacketType.STATE_CHANGE64, b"torn"),
    ]
    host.resume()
    assert host.wait(5) is None
    assert host.unread == 2
    # It would wait for ever in the stop that nobody understood: let it go on by itself.
    debuggee.machine.reliable.stopped = False
    debuggee.running = True
    debuggee.hit()
    assert host.wait(5) is not None
    assert host.wait(5) is host.state
    assert "at=fffff800`00002000" in repr(host)
    debuggee.answers.append(b"torn reply")
    assert host.read_virtual(BASE, 4) == bytes(debuggee.body.memory[:4])
    assert host.unread == 3


def test_an_unknown_machine_has_no_context_slices(bench) -> None:
    bench.host.attach(10)
    bench.host.machine = 0x1234
    bench.debuggee.body.refuse_context = True
    with pytest.raises(TargetError, match="1234"):
        bench.host.get_context(0)


def test_registers_refused_once_the_way_is_known(bench) -> None:
    bench.host.attach(10)
    bench.host.get_context(0)
    bench.debuggee.body.refuse_context = True
    with pytest.raises(TargetError):
        bench.host.get_context(7)


def make_deaf_while_running(reliable) -> None:
    """As a real kernel: no packet is heard, nor acknowledged again, until the next stop."""
    hear = reliable.on_frame

    def on_frame(frame, now: float) -> None:
        if reliable.stopped or not reliable.idle:
            hear(frame, now)
            if not reliable.stopped:
                # The one ACK of the continue is lost.
                reliable._out.clear()

    reliable.on_frame = on_frame


def test_a_lost_ack_of_the_continue_and_a_target_that_runs_deaf() -> None:
    bench = new_bench(serial=False)
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    host.step_over_break()
    make_deaf_while_running(debuggee.machine.reliable)
    host.resume()
    assert not host.stopped
    assert len(debuggee.continues) == 1
    debuggee.hit()
    state = host.wait(10)
    assert state is not None
    assert state.program_counter == HIT_PLACE
    assert host.read_virtual(BASE, 4) == bytes(debuggee.body.memory[:4])


def test_the_next_stop_makes_up_for_a_lost_ack_of_the_continue(bench) -> None:
    host, debuggee = bench.host, bench.debuggee
    host.attach(10)
    host.step_over_break()
    make_deaf_while_running(debuggee.machine.reliable)
    debuggee.hit()
    before = bench.network.now
    host.resume()
    state = host.wait(10)
    assert bench.network.now - before < 0.5
    assert state is not None
    assert state.program_counter == HIT_PLACE
    assert host.read_virtual(BASE, 4) == bytes(debuggee.body.memory[:4])


def test_break_in_finds_a_target_that_was_stopped_all_the_time() -> None:
    bench = new_bench(serial=False)
    host = bench.host
    host.attach(10)
    # We believe it runs; it does not, and a break-in means nothing to it.
    host.stopped = False
    assert host.break_in(10).program_counter == BREAK_PLACE
    assert host.read_virtual(BASE, 4) == bytes(bench.debuggee.body.memory[:4])
    host.step_over_break()
    host.resume()
    assert host.wait(5) is None


def test_a_flood_of_resend_requests_does_not_use_up_the_tries() -> None:
    from kdleak.kd.numbering import KdnetReliable
    from kdleak.kd.reliable import Frame

    reliable = KdnetReliable(Role.HOST)
    reliable.submit(PacketType.STATE_MANIPULATE, bytes(56), 0.0)
    for _ in range(100):
        reliable.on_frame(Frame(PacketType.RESEND, 0), 0.0)
    reliable.tick(0.5)
    assert not reliable.gave_up
    assert not reliable.in_trouble
