"""Ids, acknowledging and resynchronising, step by step."""

from __future__ import annotations

import pytest

from kdleak.kd.numbering import INITIAL_ID, KDNET_HOST_ID, SYNC, KdnetReliable, SerialReliable
from kdleak.kd.packets import (
    Api,
    Continue2,
    Packet,
    PacketType,
    build_manipulate,
    continue2_union,
    memory_union,
)
from kdleak.kd.reliable import Frame, Role

ACK, RESEND, RESET = PacketType.ACKNOWLEDGE, PacketType.RESEND, PacketType.RESET
STOP, IO, ASK = PacketType.STATE_CHANGE64, PacketType.DEBUG_IO, PacketType.STATE_MANIPULATE
READ = build_manipulate(Api.READ_VIRTUAL, 0, memory_union(0x1000, 4))
GO = build_manipulate(Api.CONTINUE2, 0, continue2_union(Continue2()))


def serial_host_in_step() -> SerialReliable:
    host = SerialReliable(Role.HOST)
    host.on_frame(Frame(STOP, INITIAL_ID | SYNC, b"stop"), 0.0)
    assert host.take_frames() == [Frame(ACK, INITIAL_ID)]
    assert host.inbox.popleft() == Packet(STOP, b"stop")
    return host


def test_first_ids_of_a_serial_target_and_host() -> None:
    target = SerialReliable(Role.TARGET)
    target.submit(STOP, b"stop", 0.0)
    assert target.take_frames() == [Frame(STOP, INITIAL_ID | SYNC, b"stop")]
    target.on_frame(Frame(ACK, INITIAL_ID), 0.1)
    assert target.idle
    target.on_frame(Frame(ASK, INITIAL_ID, READ), 0.2)
    assert target.take_frames() == [Frame(ACK, INITIAL_ID)]
    target.submit(ASK, READ, 0.3)
    assert target.take_frames() == [Frame(ASK, INITIAL_ID | 1, READ)]


def test_serial_ids_alternate_and_repeats_are_only_acknowledged() -> None:
    host = serial_host_in_step()
    for turn in range(1, 5):
        packet_id = INITIAL_ID | (turn & 1)
        for _ in range(2):
            host.on_frame(Frame(IO, packet_id, b"%d" % turn), 0.0)
            assert host.take_frames() == [Frame(ACK, packet_id)]
    assert [packet.payload for packet in host.inbox] == [b"1", b"2", b"3", b"4"]


def test_an_ack_with_another_id_is_ignored() -> None:
    host = serial_host_in_step()
    host.submit(ASK, READ, 0.0)
    host.on_frame(Frame(ACK, INITIAL_ID | 1), 0.1)
    assert not host.idle
    host.on_frame(Frame(ACK, INITIAL_ID), 0.1)
    assert host.idle


def test_a_repeated_sync_packet_is_not_delivered_twice() -> None:
    host = serial_host_in_step()
    host.on_frame(Frame(STOP, INITIAL_ID | SYNC, b"stop"), 0.1)
    assert host.take_frames() == [Frame(ACK, INITIAL_ID)]
    assert not host.inbox


def test_sync_restarts_both_directions() -> None:
    host = serial_host_in_step()
    host.submit(ASK, READ, 0.0)
    host.on_frame(Frame(ACK, INITIAL_ID), 0.1)
    host.on_frame(Frame(STOP, INITIAL_ID | SYNC, b"stop"), 0.2)
    assert host.inbox.popleft() == Packet(STOP, b"stop")
    assert host.generation == 2
    host.take_frames()
    host.submit(ASK, READ, 0.3)
    assert host.take_frames() == [Frame(ASK, INITIAL_ID, READ)]


def test_resend_repeats_the_packet_with_its_id() -> None:
    for reliable in (serial_host_in_step(), KdnetReliable(Role.HOST)):
        reliable.submit(ASK, READ, 0.0)
        first = reliable.take_frames()
        reliable.on_frame(Frame(RESEND, 0), 0.1)
        assert reliable.take_frames() == first
        reliable.on_frame(Frame(ACK, first[0].id), 0.2)
        reliable.on_frame(Frame(RESEND, 0), 0.3)
        assert reliable.take_frames() == []


def test_retransmission_by_the_clock() -> None:
    host = KdnetReliable(Role.HOST, retry=0.5)
    host.submit(ASK, READ, 10.0)
    first = host.take_frames()
    assert host.next_deadline() == 10.5
    host.tick(10.49)
    assert host.take_frames() == []
    host.tick(10.5)
    assert host.take_frames() == first
    assert host.resends == 1


def test_a_host_resets_after_ten_tries_and_gives_up_after_twenty() -> None:
    host = KdnetReliable(Role.HOST, retry=0.5, tries=10)
    host.submit(ASK, READ, 0.0)
    sent = host.take_frames()
    now = 0.0
    while not host.gave_up:
        now += 0.5
        host.tick(now)
        sent += host.take_frames()
    assert [frame.type for frame in sent] == [ASK] * 10 + [RESET] + [ASK] * 10
    assert host.idle
    # The next packet goes into step with a RESET that announces its id.
    host.submit(ASK, READ, now)
    assert host.take_frames() == [
        Frame(RESET, KDNET_HOST_ID + 2),
        Frame(ASK, KDNET_HOST_ID + 2, READ),
    ]


def test_a_target_never_gives_up() -> None:
    target = KdnetReliable(Role.TARGET)
    target.submit(STOP, b"stop", 0.0)
    for turn in range(1, 500):
        target.tick(turn * 0.5)
    assert not target.gave_up
    assert len(target.take_frames()) == 500


def test_reset_as_the_capture_shows_it() -> None:
    # Host RESET 80000060; target answers RESET 62 and repeats its packet 62.
    target = KdnetReliable(Role.TARGET)
    target._next_id = 0x62
    target.stopped = True
    target.submit(ASK, b"reply" + READ, 0.0)
    target.take_frames()
    target.on_frame(Frame(RESET, 0x80000060), 0.1)
    assert target.take_frames() == [Frame(RESET, 0x62), Frame(ASK, 0x62, b"reply" + READ)]


@pytest.mark.parametrize("kind", [SerialReliable, KdnetReliable])
def test_a_stopped_target_tells_its_stop_again_after_reset(kind) -> None:
    target = kind(Role.TARGET)
    target.submit(STOP, b"stop", 0.0)
    (first,) = target.take_frames()
    target.on_frame(Frame(ACK, first.id & ~SYNC), 0.1)
    target.on_frame(Frame(RESET, 0), 0.2)
    answer, again = target.take_frames()
    assert answer.type == RESET
    assert (again.type, again.payload) == (STOP, b"stop")


@pytest.mark.parametrize("kind", [SerialReliable, KdnetReliable])
def test_a_running_target_does_not_hear_packets(kind) -> None:
    target = kind(Role.TARGET)
    host_id = INITIAL_ID if kind is SerialReliable else KDNET_HOST_ID
    target.on_frame(Frame(RESET, 0), 0.0)
    target.on_frame(Frame(ASK, host_id, READ), 0.0)
    assert target.take_frames() == []
    assert not target.inbox


@pytest.mark.parametrize("kind", [SerialReliable, KdnetReliable])
def test_a_target_that_runs_again_acknowledges_the_repeated_continue(kind) -> None:
    target = kind(Role.TARGET)
    target.submit(STOP, b"stop", 0.0)
    (stop,) = target.take_frames()
    target.on_frame(Frame(ACK, stop.id & ~SYNC), 0.0)
    go = Frame(ASK, INITIAL_ID if kind is SerialReliable else KDNET_HOST_ID, GO)
    for _ in range(3):
        target.on_frame(go, 0.1)
        assert target.take_frames() == [Frame(ACK, go.id)]
    assert len(target.inbox) == 1
    assert not target.stopped


def test_a_lost_ack_is_made_up_for_by_what_follows() -> None:
    host = KdnetReliable(Role.HOST)
    host.submit(ASK, READ, 0.0)
    host.on_frame(Frame(ASK, 4, READ), 0.1)
    assert host.idle
    host.submit(ASK, GO, 0.2)
    # Another reply is no sign that the target runs.
    host.on_frame(Frame(ASK, 6, READ), 0.3)
    assert not host.idle
    host.on_frame(Frame(STOP, 8, b"next stop"), 0.4)
    assert host.idle


def test_a_stop_told_again_after_reset_does_not_pass_for_a_new_one() -> None:
    host = KdnetReliable(Role.HOST, retry=0.5, tries=2)
    host.on_frame(Frame(STOP, 2, b"stop"), 0.0)
    host.inbox.clear()
    host.submit(ASK, GO, 0.0)
    host.tick(0.5)
    host.tick(1.0)
    assert RESET in [frame.type for frame in host.take_frames()]
    host.on_frame(Frame(RESET, 4), 1.1)
    host.on_frame(Frame(STOP, 4, b"stop"), 1.1)
    assert not host.inbox
    assert not host.idle
    host.on_frame(Frame(STOP, 6, b"another stop"), 1.2)
    assert host.inbox.popleft().payload == b"another stop"
    assert host.idle


def test_resets_do_not_go_back_and_forth() -> None:
    host = serial_host_in_step()
    # A RESET nobody asked for is answered; the kernel answers that too; then there is peace.
    host.on_frame(Frame(RESET, 0), 1.0)
    assert host.take_frames() == [Frame(RESET, 0)]
    host.on_frame(Frame(RESET, 0), 1.01)
    assert host.take_frames() == []


def test_attaching_in_the_middle_of_the_targets_numbering() -> None:
    host = SerialReliable(Role.HOST)
    host.on_frame(Frame(STOP, INITIAL_ID | 1, b"stop"), 0.0)
    assert host.take_frames() == [Frame(ACK, INITIAL_ID | 1), Frame(RESET, 0)]
    assert not host.inbox
    host.on_frame(Frame(RESET, 0), 0.1)
    host.on_frame(Frame(STOP, INITIAL_ID, b"stop"), 0.1)
    assert host.inbox.popleft().payload == b"stop"
    assert host.take_frames() == [Frame(ACK, INITIAL_ID)]


def test_a_target_that_knows_no_reset_is_taken_as_it_is() -> None:
    host = SerialReliable(Role.HOST)
    for turn in range(4):
        host.on_frame(Frame(STOP, INITIAL_ID | 1, b"stop"), float(turn))
    assert host.inbox.popleft().payload == b"stop"


def test_a_damaged_serial_id_is_neither_delivered_nor_acknowledged() -> None:
    host = serial_host_in_step()
    host.on_frame(Frame(IO, 0x80801001, b"x"), 0.0)
    assert host.take_frames() == []
    assert not host.inbox


def test_a_serial_target_that_gave_up_starts_anew_with_sync() -> None:
    target = SerialReliable(Role.TARGET)
    target.submit(IO, b"print", 0.0)
    target.cancel()
    target.take_frames()
    target.submit(STOP, b"stop", 1.0)
    assert target.take_frames() == [Frame(STOP, INITIAL_ID | SYNC, b"stop")]


def test_only_one_packet_at_a_time() -> None:
    host = KdnetReliable(Role.HOST)
    host.submit(ASK, READ, 0.0)
    with pytest.raises(RuntimeError):
        host.submit(ASK, READ, 0.0)


def test_kdnet_ids_wrap() -> None:
    target = KdnetReliable(Role.TARGET)
    target._next_id = 0xFFFFFFFE
    target.submit(IO, b"x", 0.0)
    target.on_frame(Frame(ACK, 0xFFFFFFFE), 0.0)
    target.submit(IO, b"y", 0.0)
    assert target.take_frames()[-1].id == 0


@pytest.mark.parametrize("kind", [SerialReliable, KdnetReliable])
def test_on_a_fresh_channel_a_target_tells_its_stop_and_drops_old_answers(kind) -> None:
    target = kind(Role.TARGET)
    target.submit(STOP, b"stop", 0.0)
    (stop,) = target.take_frames()
    target.on_frame(Frame(ACK, stop.id & ~SYNC), 0.0)
    ticket = target.submit(ASK, READ, 0.0)
    target.take_frames()
    target.resynchronise(1.0)
    assert not target.under_way(ticket)
    (again,) = target.take_frames()
    assert (again.type, again.payload) == (STOP, b"stop")


def test_on_a_fresh_channel_a_host_counts_anew_and_repeats_its_packet() -> None:
    host = KdnetReliable(Role.HOST)
    host.submit(ASK, READ, 0.0)
    host.on_frame(Frame(ACK, KDNET_HOST_ID), 0.0)
    host.submit(ASK, GO, 0.0)
    assert host.take_frames()[-1].id == KDNET_HOST_ID + 2
    host.resynchronise(1.0)
    assert host.take_frames() == [Frame(ASK, KDNET_HOST_ID, GO)]
    assert host.generation == 1


def test_nothing_goes_out_while_there_is_no_channel() -> None:
    host = KdnetReliable(Role.HOST)
    host.suspended = True
    host.submit(ASK, READ, 0.0)
    host.reset(0.0)
    host.tick(100.0)
    assert host.next_deadline() is None
    assert host.take_frames() == []
    host.suspended = False
    host.resynchronise(101.0)
    assert host.take_frames() == [Frame(ASK, KDNET_HOST_ID, READ)]


def test_sync_while_a_packet_is_under_way() -> None:
    host = serial_host_in_step()
    host.submit(ASK, READ, 0.0)
    host.on_frame(Frame(ACK, INITIAL_ID), 0.0)
    # A request that the restarted target has not seen is repeated with the first id.
    host.submit(ASK, READ, 0.0)
    host.take_frames()
    host.on_frame(Frame(STOP, INITIAL_ID | SYNC, b"another"), 0.1)
    host.tick(1.0)
    assert host.take_frames()[-1] == Frame(ASK, INITIAL_ID, READ)
    host.on_frame(Frame(ACK, INITIAL_ID), 1.1)
    assert host.idle
    # A continue is done with: the target has run. What follows starts with the first id.
    host.submit(ASK, GO, 2.0)
    host.on_frame(Frame(STOP, INITIAL_ID | SYNC, b"a third"), 2.1)
    assert host.idle
    host.take_frames()
    host.submit(ASK, READ, 2.2)
    assert host.take_frames() == [Frame(ASK, INITIAL_ID, READ)]
