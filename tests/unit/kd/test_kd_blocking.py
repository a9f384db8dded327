"""The blocking drivers themselves, over a medium that carries nothing."""

from __future__ import annotations

import pytest

from kdleak.errors import LinkLost
from kdleak.kd.blocking import BlockingHost, BlockingTarget
from kdleak.kd.kdnet_crypto import KdnetKey
from kdleak.kd.kdnet_machine import KdnetHostMachine, KdnetTargetMachine
from kdleak.kd.packets import PacketType

KEY = KdnetKey.parse("1.2.3.4")


class QuietMedium:
    """Time passes, nothing arrives; what is written is kept."""

    where = "nowhere"

    def __init__(self) -> None:
        self.now = 0.0
        self.written = []
        self.waits = []
        self.closed = False

    def read(self, timeout):
        self.waits.append(timeout)
        self.now += timeout
        return []

    def write(self, data, destination) -> None:
        self.written.append((data, destination))

    def wake(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def target_over(medium: QuietMedium) -> BlockingTarget:
    machine = KdnetTargetMachine(KEY, host=("10.0.0.1", 50000), random_bytes=bytes)
    return BlockingTarget(machine, medium, where="nowhere", max_read=1024, clock=lambda: medium.now)


def host_over(medium: QuietMedium) -> BlockingHost:
    return BlockingHost(
        KdnetHostMachine(KEY, random_bytes=bytes),
        medium,
        where="nowhere",
        max_read=1024,
        clock=lambda: medium.now,
        handshakes=True,
        break_in_interval=1.0,
    )


def test_the_answer_to_a_debugger_that_is_gone_is_not_sent() -> None:
    medium = QuietMedium()
    target = target_over(medium)
    assert target.receive(0) is None
    target._machine.reliable.generation += 1
    assert target.send(PacketType.STATE_MANIPULATE, bytes(56), timeout=1.0)
    assert target._machine.reliable.idle
    assert target.receive(0) is None
    with pytest.raises(LinkLost):
        target.send(PacketType.STATE_MANIPULATE, bytes(56), timeout=1.0)


def test_a_packet_that_waits_behind_another_gives_up_in_time() -> None:
    medium = QuietMedium()
    target = target_over(medium)
    target._machine.reliable.submit(PacketType.STATE_CHANGE64, bytes(240), 0.0)
    with pytest.raises(LinkLost, match="no debugger"):
        target.send(PacketType.DEBUG_IO, b"print", timeout=2.0)
    assert medium.now == pytest.approx(2.0)


def test_a_target_looks_at_its_stop_flag_several_times_a_second() -> None:
    medium = QuietMedium()
    target = target_over(medium)
    assert not target.send(
        PacketType.STATE_CHANGE64, bytes(240), should_stop=lambda: medium.now > 60
    )
    assert max(medium.waits) <= 0.25
    # One poke every three seconds meanwhile.
    assert len(medium.written) == 21


def test_no_wait_is_longer_than_a_second() -> None:
    medium = QuietMedium()
    host = host_over(medium)
    assert host.receive(10.0) is None
    assert max(medium.waits) <= 1.0
    assert medium.now == pytest.approx(10.0)


def test_looking_without_waiting_still_looks_once() -> None:
    medium = QuietMedium()
    host = host_over(medium)
    assert host.receive(0) is None
    assert medium.waits == [0.0]
    target = target_over(medium)
    medium.waits.clear()
    assert not target.poll_break_in()
    assert medium.waits == [0.0]


def test_sending_without_a_target_ends_in_time_and_says_so() -> None:
    medium = QuietMedium()
    host = host_over(medium)
    with pytest.raises(LinkLost, match="never been heard"):
        host.send(99, b"x", 3.0)
    assert medium.now == pytest.approx(3.0)
    assert medium.written == []


def test_closing_gives_the_medium_back() -> None:
    medium = QuietMedium()
    host = host_over(medium)
    host.close()
    assert medium.closed
