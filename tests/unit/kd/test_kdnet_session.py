"""KDNET handshake and channel: replay, rebooting, takeover, floods, calls, lost responses."""

from __future__ import annotations

import random

import pytest
from kd_simulation import HOST, TARGET, Network, Weather
from test_kd_simulation import HostScript, TargetScript, check_exactly_once, kdnet_pair

from kdleak.kd.kdnet_crypto import CHANNEL_CONTROL, KdnetKey, open_datagram
from kdleak.kd.kdnet_machine import KdnetHostMachine, KdnetTargetMachine
from kdleak.kd.kdnet_session import pack_address
from kdleak.kd.packets import PacketType
from kdleak.kd.reliable import INBOX_LIMIT
from kdleak.kd.structures import POKE

KEY = KdnetKey.parse("1.2.3.4")
STRANGER = ("10.0.0.66", 4444)


@pytest.fixture
def network() -> Network:
    return Network(3)


def joined(network: Network, seed: int = 3):
    host, target = kdnet_pair(seed)
    network.attach(HOST, host)
    network.attach(TARGET, target)
    assert network.run(lambda: host.connected and not network._queue, seconds=1)
    return host, target


def new_target(seed: int, **options) -> KdnetTargetMachine:
    return KdnetTargetMachine(
        KEY, host=HOST, own=TARGET, random_bytes=random.Random(seed).randbytes, **options
    )


def deliver_print(network: Network, target, host, text: bytes) -> None:
    target.reliable.submit(PacketType.DEBUG_IO, text, network.now)
    assert network.run(lambda: target.reliable.idle, seconds=5)
    assert host.reliable.inbox.popleft().payload == text


def test_pokes_every_three_seconds(network) -> None:
    target = new_target(1)
    network.attach(TARGET, target)
    network.attach(HOST, _Sink())
    network.run(lambda: False, seconds=10)
    opened = [open_datagram(KEY, KEY.control, data) for data, _, _ in network.recorded]
    assert [datagram.sequence for datagram in opened] == [3, 6, 9, 12]
    nonces = [int.from_bytes(POKE.parse(datagram.payload).nonce, "little") for datagram in opened]
    assert [nonce - nonces[0] for nonce in nonces] == [0, 1, 2, 3]


class _Sink:
    """A peer that never answers."""

    def start(self, now) -> None: ...

    def tick(self, now) -> None: ...

    def next_deadline(self) -> None: ...

    def receive(self, data, source, now) -> None: ...

    def take_output(self):
        return []


def test_the_version_byte_of_the_poke_is_echoed(network) -> None:
    host, _ = kdnet_pair(3)
    target = new_target(2, version=2)
    network.attach(HOST, host)
    network.attach(TARGET, target)
    assert network.run(lambda: host.connected, seconds=1)
    deliver_print(network, target, host, b"x")
    assert {data[4] for data, _, _ in network.recorded} == {2}


def test_a_replayed_datagram_is_dropped_in_both_directions(network) -> None:
    host, target = joined(network)
    deliver_print(network, target, host, b"once")
    recorded = list(network.recorded)
    rejected = host.statistics.rejected, target.statistics.rejected
    for data, source, destination in recorded:
        network.inject(data, source, destination)
    network.run(lambda: not network._queue, seconds=1)
    assert not host.reliable.inbox
    to_host = [entry for entry in recorded if entry[2] == HOST and entry[0][5] != CHANNEL_CONTROL]
    to_target = [entry for entry in recorded if entry[2] == TARGET]
    assert host.statistics.rejected - rejected[0] == len(to_host)
    assert target.statistics.rejected - rejected[1] == len(to_target)
    # And it goes on.
    deliver_print(network, target, host, b"twice")
    assert host.reliable.generation == 1


def test_a_replayed_first_poke_does_not_break_the_session(network) -> None:
    host, target = joined(network)
    poke = next(data for data, source, _ in network.recorded if source == TARGET)
    for source in (TARGET, STRANGER):
        network.inject(poke, source, HOST)
        network.run(lambda: False, seconds=7)
        deliver_print(network, target, host, b"still here")
    assert host.reboots == 0


def test_old_pokes_of_an_earlier_boot_do_not_break_the_session(network) -> None:
    earlier = new_target(77)
    network.attach(HOST, _Sink())
    network.attach(TARGET, earlier)
    network.run(lambda: False, seconds=20)
    old_pokes = [data for data, source, _ in network.recorded if source == TARGET]
    network.detach(TARGET)
    network.detach(HOST)
    host, target = joined(network)
    for poke in old_pokes:
        network.inject(poke, STRANGER, HOST)
        network.inject(poke, TARGET, HOST)
    deliver_print(network, target, host, b"still here")
    network.run(lambda: False, seconds=7)
    deliver_print(network, target, host, b"and later")
    assert host.reboots == 0


def test_a_datagram_turned_round_is_dropped(network) -> None:
    host, target = joined(network)
    deliver_print(network, target, host, b"x")
    rejected = host.statistics.rejected
    mine = [data for data, source, _ in network.recorded if source == HOST]
    for data in mine:
        network.inject(data, TARGET, HOST)
    assert host.statistics.rejected - rejected == len(mine)


def test_the_right_key_from_another_address_is_ignored_while_a_session_lasts(network) -> None:
    host, target = joined(network)
    other = new_target(8)
    network.attach(STRANGER, other)
    network.run(lambda: False, seconds=7)
    deliver_print(network, target, host, b"x")
    assert [entry for entry in network.recorded if entry[2] == STRANGER] == []
    assert host.reboots == 0
    data = [entry for entry in network.recorded if entry[1] == TARGET][-1]
    rejected = host.statistics.rejected
    network.inject(data[0], STRANGER, HOST)
    assert host.statistics.rejected == rejected + 1


def test_a_rebooted_target_is_taken_in_and_told(network) -> None:
    host, target = joined(network)
    deliver_print(network, target, host, b"x")
    network.detach(TARGET)
    fresh = new_target(1234)
    network.attach(TARGET, fresh)
    assert network.run(lambda: host.reboots == 1, seconds=2)
    assert host.reliable.generation == 2
    deliver_print(network, fresh, host, b"after boot")


def test_a_target_that_comes_back_with_another_address(network) -> None:
    host, target = joined(network)
    deliver_print(network, target, host, b"x")
    network.detach(TARGET)
    fresh = new_target(1234)
    network.attach(STRANGER, fresh)
    assert network.run(lambda: host.reboots == 1, seconds=14)
    fresh.reliable.submit(PacketType.DEBUG_IO, b"after boot", network.now)
    assert network.run(lambda: fresh.reliable.idle, seconds=5)
    assert host.reliable.inbox.popleft().payload == b"after boot"


def test_a_target_that_only_lost_us_is_no_reboot(network) -> None:
    host, target = joined(network)
    network.run(lambda: False, seconds=7)
    # The same boot, by its nonce, without a debugger.
    target._session._channel = None
    target.reliable.suspended = True
    assert network.run(lambda: host.reliable.generation == 2, seconds=4)
    assert host.reboots == 0
    deliver_print(network, target, host, b"again")


def test_a_new_host_answers_a_poke_that_names_another_debugger(network) -> None:
    host, target = joined(network)
    target.reliable.submit(PacketType.STATE_CHANGE64, b"stop" * 64, network.now)
    assert network.run(lambda: target.reliable.idle, seconds=1)
    network.detach(HOST)
    network.run(lambda: False, seconds=4)
    second = KdnetHostMachine(KEY, random_bytes=random.Random(55).randbytes)
    network.attach(HOST, second)
    assert network.run(lambda: bool(second.reliable.inbox), seconds=3.5)
    # The stop that the first host had taken is told again, without the owner's doing.
    assert second.reliable.inbox.popleft().payload == b"stop" * 64
    assert host.statistics.rejected == 0


def test_the_first_response_lost(network) -> None:
    host, target = kdnet_pair(3)
    network.attach(HOST, host)
    network.attach(TARGET, target)
    network.weather = Weather(loss=1.0)
    network.run(lambda: False, seconds=1)
    network.weather = Weather()
    assert network.run(lambda: host.connected, seconds=7)
    deliver_print(network, target, host, b"x")


def test_a_response_that_comes_after_the_next_poke(network) -> None:
    host, target = kdnet_pair(3)
    network.attach(HOST, host)
    network.attach(TARGET, target)
    network.weather = Weather(delay=2.0)
    network.run(lambda: False, seconds=20)
    assert host.connected
    network.weather = Weather()
    deliver_print(network, target, host, b"x")


def test_when_the_keys_differ_doubt_leads_to_a_new_handshake(network) -> None:
    host, target = joined(network)
    # The target believes in another data key, and still names us as its debugger.
    target._session._channel.cbc_key = bytes(32)
    for _ in range(5):
        host.send_break_in()
        network.run(lambda: False, seconds=1)
    network.run(lambda: False, seconds=4)
    assert host.reliable.generation == 2
    deliver_print(network, target, host, b"x")


def test_a_host_may_call_first(network) -> None:
    target = new_target(4)
    silent = _Sink()
    network.attach(HOST, silent)
    network.attach(TARGET, target)
    network.run(lambda: False, seconds=1)
    network.detach(HOST)
    host = KdnetHostMachine(KEY, random_bytes=random.Random(5).randbytes, call=TARGET)
    network.attach(HOST, host)
    began = network.now
    assert network.run(lambda: host.connected, seconds=5)
    # At once, and not at the target's next poke two seconds later.
    assert network.now - began < 0.1
    call = next(data for data, source, _ in network.recorded if source == HOST)
    assert len(call) == 38
    opened = open_datagram(KEY, KEY.control, call)
    assert opened is not None
    assert (opened.from_host, opened.payload) == (True, b"")


def test_calls_stop_once_connected_and_are_half_a_second_apart(network) -> None:
    host = KdnetHostMachine(KEY, random_bytes=random.Random(5).randbytes, call=TARGET)
    network.attach(HOST, host)
    network.attach(TARGET, _Sink())
    network.run(lambda: False, seconds=2.9)
    assert len(network.recorded) == 6
    network.detach(TARGET)
    target = new_target(4)
    network.attach(TARGET, target)
    assert network.run(lambda: host.connected, seconds=5)
    before = len(network.recorded)
    network.run(lambda: False, seconds=2)
    assert len([e for e in network.recorded[before:] if len(e[0]) == 38 and e[1] == HOST]) == 0


def test_wrong_key(network) -> None:
    host, _ = kdnet_pair(3)
    stranger = KdnetTargetMachine(
        KdnetKey.parse("4.3.2.1"), host=HOST, random_bytes=random.Random(1).randbytes
    )
    network.attach(HOST, host)
    network.attach(TARGET, stranger)
    network.run(lambda: False, seconds=1)
    assert host.find_refusal() == ""
    network.run(lambda: False, seconds=4)
    assert not host.connected
    assert "2 KDNET datagrams" in host.find_refusal()
    assert [entry for entry in network.recorded if entry[1] == HOST] == []


def test_a_flood_of_garbage_is_counted_and_takes_no_memory(network) -> None:
    host, target = joined(network)
    garbage = random.Random(1)
    for number in range(3000):
        body = garbage.randbytes(garbage.randrange(0, 200))
        if number % 2:
            size = 16 * garbage.randrange(1, 8)
            body = b"MDBG\x05" + bytes((number % 4 // 2,)) + garbage.randbytes(size + 16)
        for machine, peer in ((host, TARGET), (target, HOST)):
            machine.receive(body, peer, network.now)
            machine.receive(body, STRANGER, network.now)
            assert machine.take_output() == []
    assert host.statistics.rejected == target.statistics.rejected == 6000
    assert len(host._session._candidates) == 0
    assert len(host.reliable.inbox) == 0
    deliver_print(network, target, host, b"still here")


def test_a_reader_that_does_not_come_bounds_the_inbox(network) -> None:
    host, target = joined(network)
    for number in range(INBOX_LIMIT):
        target.reliable.submit(PacketType.DEBUG_IO, b"%d" % number, network.now)
        assert network.run(lambda: target.reliable.idle, seconds=1)
    target.reliable.submit(PacketType.DEBUG_IO, b"one too many", network.now)
    assert not network.run(lambda: target.reliable.idle, seconds=10)
    assert len(host.reliable.inbox) == INBOX_LIMIT
    host.reliable.inbox.clear()
    assert network.run(lambda: target.reliable.idle, seconds=1)
    assert host.reliable.inbox.popleft().payload == b"one too many"


def test_a_storm_with_a_handshake_again_in_the_middle() -> None:
    network = Network(11, Weather(loss=0.1, duplication=0.1, reordering=0.1))
    host, target = kdnet_pair(11)
    network.attach(HOST, host)
    network.attach(TARGET, target)
    debuggee, debugger = TargetScript(target, 30), HostScript(host, 2)
    lost = [False]

    def each() -> None:
        debuggee.step(network.now)
        debugger.step(network.now)
        if debuggee.continued == 10 and not lost[0] and not target.reliable.stopped:
            lost[0] = True
            target._session._channel = None
            target.reliable.suspended = True

    assert network.run(lambda: debuggee.continued == 30, each=each, seconds=1000)
    check_exactly_once(debuggee, debugger, 30, 2)
    assert host.reliable.generation >= 2


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        ("1.2.3.4", "00000000000000000000ffff01020304"),
        ("::1", "00000000000000000000000000000001"),
        ("", "00000000000000000000ffff00000000"),
        ("no address", "00000000000000000000ffff00000000"),
    ],
)
def test_addresses_in_pokes(text: str, packed: str) -> None:
    assert pack_address(text).hex() == packed
