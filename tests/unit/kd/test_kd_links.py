"""Both roles over real sockets, pseudo terminals and threads on this machine."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from kd_scripted_target import (
    BASE,
    BREAK_PLACE,
    HIT_PLACE,
    VERSION,
    ScriptedTarget,
)

from kdleak.errors import LinkLost, NoTarget, PortInUse
from kdleak.kd.connection import NetConnection, TcpConnection, open_host, open_target
from kdleak.kd.devices import PollingMedium, TerminalMedium
from kdleak.kd.host import KdHost
from kdleak.kd.kdnet_crypto import KdnetKey
from kdleak.kd.kdnet_link import KdnetHost, KdnetTarget, resolve
from kdleak.kd.media import StreamMedium, connect_tcp, listen_tcp
from kdleak.kd.packets import PacketType
from kdleak.kd.serial_link import SerialHost, SerialTarget
from kdleak.kd.structures import build_print

KEY = KdnetKey.parse("1.2.3.4")


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kdnet_links(tmp_path):
    host = KdnetHost(0, KEY, bind="127.0.0.1")
    return host, KdnetTarget("127.0.0.1", host.port, KEY)


def kdnet_links_from_strings(tmp_path):
    port = free_port(socket.SOCK_DGRAM)
    target = open_target(NetConnection(port, KEY, host="127.0.0.1"))
    return open_host(f"net:port={port},key=1.2.3.4"), target


def tcp_target_listens(tmp_path):
    port = free_port()
    target = open_target(f"tcp:{port}")
    return open_host(f"com:ipport={port},port=127.0.0.1"), target


def tcp_host_listens(tmp_path):
    port = free_port()
    host = open_host(TcpConnection(port))
    return host, open_target(f"com:ipport={port},port=127.0.0.1")


def unix_socket(tmp_path):
    path = tmp_path / "kd.sock"
    target = open_target(f"com:pipe,port={path}")
    return open_host(f"com:pipe,port={path}"), target


def pseudo_terminal(tmp_path):
    import tty

    master, slave = os.openpty()
    tty.setraw(slave)
    name = os.ttyname(slave)
    host = open_host(f"com:port={name},baud=115200")
    os.close(slave)
    return host, SerialTarget(TerminalMedium("pty", master))


LINKS = [
    kdnet_links,
    kdnet_links_from_strings,
    tcp_target_listens,
    tcp_host_listens,
    unix_socket,
    pseudo_terminal,
]


@pytest.mark.parametrize("links", LINKS)
def test_a_session(links, tmp_path) -> None:
    host_link, target_link = links(tmp_path)
    prints = []

    def script(target) -> None:
        target.send(PacketType.DEBUG_IO, build_print(b"a print"))

    with ScriptedTarget(target_link) as target:
        host = KdHost(host_link, on_print=prints.append)
        began = time.monotonic()
        assert host.attach(10).program_counter == BREAK_PLACE
        assert time.monotonic() - began < 2.0
        assert host.get_version() == VERSION
        assert host.read_virtual(BASE, 0x1800) == bytes(target.memory[:0x1800])
        assert host.write_virtual(BASE + 0x10, b"\xff" * 5000) == 5000
        host.restore_breakpoints()
        assert host.step_over_break()
        target.script = script
        target.hits_due = 2
        for _ in range(2):
            host.resume()
            state = host.wait(5)
            assert state is not None
            assert state.program_counter == HIT_PLACE
            host.step_over_break()
        host.resume()
        assert host.wait(0.1) is None
        assert prints == ["a print"]
        began = time.monotonic()
        assert host.break_in(5).program_counter == BREAK_PLACE
        assert time.monotonic() - began < 0.5
        host.detach()
        assert host_link.rejected == 0
        assert host_link.bytes_received > 0
        assert target_link.bytes_sent > 0
        assert host_link.datagrams_sent > 0
        assert host_link.alive_at is not None


@pytest.mark.parametrize("links", [kdnet_links_from_strings, tcp_target_listens, unix_socket])
def test_a_second_host_takes_over_a_stopped_target(links, tmp_path) -> None:
    host_link, target_link = links(tmp_path)
    where = host_link.where
    with ScriptedTarget(target_link) as target:
        host = KdHost(host_link)
        host.attach(10)
        host.step_over_break()
        target.hits_due = 1
        host.resume()
        assert host.wait(5) is not None
        # As kill -9 does: sockets are closed, nothing is said.
        host.close()
        if where.startswith("net:"):
            where += ",key=1.2.3.4"
        second = KdHost(open_host(where))
        began = time.monotonic()
        assert second.attach(10).program_counter == HIT_PLACE
        assert time.monotonic() - began < 4.5
        assert second.read_virtual(BASE, 16) == bytes(target.memory[:16])
        second.detach()


def test_kdnet_port_in_use() -> None:
    first = KdnetHost(0, KEY, bind="127.0.0.1")
    with pytest.raises(PortInUse) as caught:
        KdnetHost(first.port, KEY, bind="127.0.0.1")
    assert str(first.port) in str(caught.value)
    first.close()


def test_tcp_port_in_use() -> None:
    first = listen_tcp("here", 0, "127.0.0.1")
    with pytest.raises(PortInUse):
        listen_tcp("here", first.port, "127.0.0.1")
    first.close()


def test_unix_socket_in_use_and_left_over(tmp_path) -> None:
    path = tmp_path / "kd.sock"
    first = open_target(f"com:pipe,port={path}")
    with pytest.raises(PortInUse):
        open_target(f"com:pipe,port={path}")
    first.close()
    assert not path.exists()
    left_over = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left_over.bind(str(path))
    left_over.close()
    assert path.exists()
    open_target(f"com:pipe,port={path}").close()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(PortInUse):
        open_target(f"com:pipe,port={path}")
    assert path.read_text() == "data"


def test_kdnet_without_a_target() -> None:
    host = KdHost(KdnetHost(0, KEY, bind="127.0.0.1"))
    with pytest.raises(NoTarget):
        host.attach(0.2)
    host.close()


def test_a_host_that_calls_the_target() -> None:
    port = free_port(socket.SOCK_DGRAM)
    target = KdnetTarget("127.0.0.1", 9, KEY, source_port=port)
    with ScriptedTarget(target):
        # On one machine both ends cannot have the same port: call the target's own.
        link = KdnetHost(0, KEY, target="127.0.0.1")
        link._machine._session._call = ("127.0.0.1", port)
        host = KdHost(link)
        assert host.attach(5).program_counter == BREAK_PLACE
        host.detach()


def test_closing_from_another_thread_ends_a_wait() -> None:
    for link in (
        KdnetHost(0, KEY, bind="127.0.0.1"),
        SerialHost(listen_tcp("here", 0, "127.0.0.1")),
    ):
        timer = threading.Timer(0.1, link.close)
        timer.start()
        with pytest.raises(LinkLost, match="closed"):
            link.receive(10)
        timer.join()
        link.close()
        with pytest.raises(LinkLost):
            link.receive(0)


def test_a_target_that_waits_can_be_woken_and_stopped() -> None:
    target = KdnetTarget("127.0.0.1", 9, KEY)
    stop = threading.Event()

    def shut_down() -> None:
        stop.set()
        target.wake()

    threading.Timer(0.1, shut_down).start()
    began = time.monotonic()
    assert not target.send(PacketType.STATE_CHANGE64, bytes(240), should_stop=stop.is_set)
    assert time.monotonic() - began < 2
    assert not target.connected
    threading.Timer(0.1, target.wake).start()
    assert target.receive(10) is None
    assert time.monotonic() - began < 3
    target.close()


def test_a_target_may_give_up_sending() -> None:
    target = SerialTarget(listen_tcp("here", 0, "127.0.0.1"))
    with pytest.raises(LinkLost):
        target.send(PacketType.DEBUG_IO, build_print(b"nobody"), timeout=0.05)
    assert not target.poll_break_in()
    target.close()


def test_the_peer_closing_the_stream_is_a_lost_link() -> None:
    listener = listen_tcp("here", 0, "127.0.0.1")
    host = SerialHost(connect_tcp("there", "127.0.0.1", listener.port))
    listener.read(1)
    listener.close()
    with pytest.raises(LinkLost, match="closed the connection"):
        host.receive(2)
    host.close()


def test_a_listener_serves_one_peer_after_another() -> None:
    listener = listen_tcp("here", 0, "127.0.0.1")
    for text in (b"one", b"two"):
        with socket.create_connection(("127.0.0.1", listener.port)) as peer:
            peer.sendall(text)
            deadline = time.monotonic() + 5
            parcels: list = []
            while not parcels and time.monotonic() < deadline:
                parcels = listener.read(0.2)
            assert parcels == [(text, None)]
            listener.write(b"answer", None)
            assert peer.recv(10) == b"answer"
    listener.write(b"into the void", None)
    listener.close()


def test_a_stuck_peer_does_not_stop_a_writer() -> None:
    ours, theirs = socket.socketpair()
    medium = StreamMedium("pair", ours)
    began = time.monotonic()
    medium.write(bytes(10_000_000), None)
    assert time.monotonic() - began < 3
    medium.close()
    theirs.close()


def test_a_stream_that_cannot_be_waited_for() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def take() -> bytes:
        try:
            return ours.recv(100)
        except BlockingIOError:
            return b""

    medium = PollingMedium("pipe", take, ours.sendall, ours.close)
    assert medium.read(0.01) == []
    theirs.sendall(b"x")
    assert medium.read(1) == [(b"x", None)]
    medium.write(b"y", None)
    assert theirs.recv(1) == b"y"
    threading.Timer(0.05, medium.wake).start()
    assert medium.read(None) == []
    medium.close()
    medium.close()
    with pytest.raises(LinkLost):
        medium.read(0)
    with pytest.raises(LinkLost):
        medium.write(b"", None)
    theirs.close()


def test_names_are_resolved() -> None:
    assert resolve("127.0.0.1") == "127.0.0.1"
    with pytest.raises(NoTarget):
        resolve("no.such.name.invalid")


def test_an_interrupt_in_the_middle_of_a_request_leaves_the_link_usable() -> None:
    link, target_link = kdnet_links(None)
    with ScriptedTarget(target_link) as target:
        host = KdHost(link)
        host.attach(10)
        read = link.medium.read

        def interrupted(timeout):
            link.medium.read = read
            raise KeyboardInterrupt

        link.medium.read = interrupted
        with pytest.raises(KeyboardInterrupt):
            host.read_virtual(BASE, 4)
        assert host.read_virtual(BASE + 8, 4) == bytes(target.memory[8:12])
        assert host.write_virtual(BASE, b"back") == 4
        host.detach()
