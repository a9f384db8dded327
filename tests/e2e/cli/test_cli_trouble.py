"""Targets that are not there, go away, freeze, or talk nonsense; symbols that do not fit."""

from __future__ import annotations

import random
import re
import signal
import socket
import threading
import time

import pytest
from cli_rig import KEY, PROJECT, free_port

SAFE = "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."
IMAGES = PROJECT / "kdleak" / "practice" / "images"
NO_PRACTICE = {"KDLEAK_NO_PRACTICE_SYMBOLS": "1"}


def hunting(target, *more):
    return ["hunt", "-k", target.connection, "--tag", "Leak", *more]


# --- nobody there


@pytest.mark.parametrize("command", ["hunt", "rank", "restore"])
def test_no_target_over_kdnet(start, command):
    port = free_port(socket.SOCK_DGRAM)
    gone = start(command, "-k", f"net:port={port},key={KEY}", "--timeout", 1).ends(3, timeout=10)
    assert gone.out == ""
    assert "nothing arrived" in gone.complaint
    assert "Next: " in gone.complaint


def test_nobody_listens_on_the_tcp_port(start):
    gone = start("hunt", "-k", f"com:ipport={free_port()},port=127.0.0.1").ends(3, timeout=10)
    assert "refused" in gone.complaint
    assert "start the target first" in gone.complaint


def test_nobody_connects_to_our_tcp_port(start):
    gone = start("hunt", "-k", f"com:listen={free_port()}", "--timeout", 1).ends(3, timeout=10)
    assert "Next: " in gone.complaint


def test_no_such_serial_device(start):
    gone = start("rank", "-k", "com:port=/dev/ttyNone9,baud=115200").ends(3, timeout=10)
    assert "/dev/ttyNone9" in gone.complaint
    assert "Next: " in gone.complaint


def test_no_such_socket(start, tmp_path):
    gone = start("rank", "-k", f"com:pipe,port={tmp_path}/vm.sock").ends(3, timeout=10)
    assert "vm.sock" in gone.complaint
    assert "start the target first" in gone.complaint


def test_somebody_who_does_not_speak_kd(start):
    """A TCP port where another kind of server is: garbage, then silence."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve():
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"220 mail.example.com ESMTP ready\r\n" * 50)
                peer.settimeout(20)
                try:
                    while peer.recv(4096):
                        pass
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        where = f"com:ipport={port},port=127.0.0.1"
        gone = start("hunt", "-k", where, "--timeout", 1.5).ends(3, timeout=15)
        thread.join(20)
    assert "Next: " in gone.complaint


def test_port_in_use(practice, start):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", 0))
        port = other.getsockname()[1]
        refused = start("hunt", "-k", f"net:port={port},key={KEY}").ends(3, timeout=10)
    assert f"UDP port {port}" in refused.complaint
    assert "close the other debugger" in refused.complaint


def test_wrong_key(practice, start):
    target = practice("kdnet")
    other = KEY.replace("zz9", "zz8")
    refused = start(
        "hunt", "-k", f"net:port={target.port},key={other}", "--timeout", 8, "-vv", trace=True
    ).ends(3, timeout=20)
    assert "key" in refused.complaint
    assert other not in refused.err
    assert "bcdedit /dbgsettings" in refused.complaint
    target.assert_unharmed()


# --- two at once


def test_two_hunts_over_kdnet(practice, start):
    target = practice("kdnet")
    first = start(*hunting(target, "--hits", 150)).says("Armed")
    second = start(*hunting(target)).ends(3, timeout=20)
    assert "UDP port" in second.complaint
    first.hunted()
    assert first.out.splitlines()[-1] == SAFE
    target.assert_unharmed()


# --- noise


class Noise:
    """Another sender on the same port: garbage, and frames that look like KDNET."""

    def __init__(self, port, seed):
        self._stop = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._send, args=(port, random.Random(seed)))

    def _send(self, port, rng):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not self._stop.wait(0.002) and self.sent < 20000:
                size = rng.choice([0, 1, 5, 6, 22, 38, 150, 1400, 9000])
                data = rng.randbytes(size)
                if rng.random() < 0.5:
                    data = b"MDBG" + bytes([rng.randrange(4), rng.randrange(3)]) + data
                try:
                    sender.sendto(data, ("127.0.0.1", port))
                except OSError:  # nobody there at the moment
                    continue
                self.sent += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(10)


def test_garbage_datagrams(practice, start):
    target = practice("kdnet")
    with Noise(target.port, 11) as noise:
        hunt = start(*hunting(target, "--hits", 80)).hunted()
        assert hunt.out.splitlines()[-1] == SAFE
    assert noise.sent > 100
    target.assert_unharmed()


def test_only_garbage_datagrams(start):
    port = free_port(socket.SOCK_DGRAM)
    with Noise(port, 12) as noise:
        gone = start("hunt", "-k", f"net:port={port},key={KEY}", "--timeout", 2).ends(3, timeout=15)
    assert noise.sent > 100
    assert "Next: " in gone.complaint


def test_wrong_key_datagrams_meanwhile(practice, start):
    """A second machine with another key is set up for the same port."""
    target = practice("kdnet")
    other = practice("kdnet", port=target.port, key="8.7.6.5", seed=3)
    hunt = start(*hunting(target, "--hits", 60)).hunted()
    assert hunt.out.splitlines()[-1] == SAFE
    target.assert_unharmed()
    other.assert_unharmed()


# --- gone in the middle


@pytest.mark.parametrize("link", ["kdnet", "serial"])
def test_target_killed_while_armed(practice, start, journal, link):
    """kdleak cannot know that its memory is gone, too: it must not claim a disarm."""
    target = practice(link)
    hunt = start(
        *hunting(target, "--hits", 100000, "--full-speed", "--seconds", 3, "--timeout", 4),
        "--grace",
        2,
    ).says("watching '")
    target.kill()
    hunt.ends(5)
    assert "DISARM NOT CONFIRMED" in hunt.out.splitlines()[-1] or (
        "DISARM NOT CONFIRMED" in hunt.out.split("\n\n")[-1]
    )
    assert "kdleak restore" in hunt.out
    assert "ed nt!PoolHitTag" in hunt.out
    assert len(journal()) == 1
    # The machine comes back: restore finds that it was started anew.
    if link == "kdnet":
        again = practice(link, port=target.port, seed=8)
        restored = start("restore", "-k", again.connection).ends(0)
        assert "restarted" in restored.out
        assert journal() == []


@pytest.mark.parametrize("link", ["kdnet", "serial"])
def test_target_killed_while_ranking(practice, start, journal, link):
    target = practice(link)
    hunt = start(
        "hunt", "-k", target.connection, "--interval", 2, "--snapshots", 2, "--timeout", 4
    ).says("Snapshot 1")
    target.kill()
    hunt.ends(3)
    assert "Next: " in hunt.complaint
    assert journal() == []


@pytest.mark.parametrize("link", ["kdnet", "serial"])
def test_target_frozen_while_armed(practice, start, journal, link):
    """It stops answering and comes back within the grace time: disarmed."""
    target = practice(link)
    hunt = start(
        *hunting(target, "--hits", 100000, "--full-speed", "--seconds", 2, "--timeout", 4),
        "--grace",
        40,
    ).says("watching '")
    target.process.send_signal(signal.SIGSTOP)
    hunt.says("The link is lost", timeout=40)
    target.process.send_signal(signal.SIGCONT)
    hunt.process.wait(60)
    hunt.check()
    # 0 when the last thing asked for came through after all.
    assert hunt.process.returncode in (0, 4), hunt.err + hunt.out
    assert hunt.out.splitlines()[-1] == SAFE
    assert journal() == []
    target.assert_unharmed(hunt.err + hunt.out)


def test_target_frozen_and_given_up(practice, start, journal):
    """Ctrl+C twice while waiting for the link: exit at once, unconfirmed, restore later."""
    target = practice("serial")
    hunt = start(
        *hunting(target, "--hits", 100000, "--full-speed", "--seconds", 1, "--timeout", 4)
    ).says("watching '")
    target.process.send_signal(signal.SIGSTOP)
    hunt.says("The link is lost", timeout=40)
    hunt.send(signal.SIGINT)
    time.sleep(0.3)
    hunt.send(signal.SIGINT)
    hunt.ends(5, timeout=30)
    assert "kdleak restore" in hunt.out
    target.process.send_signal(signal.SIGCONT)
    start("restore", "-k", target.connection).ends(0)
    assert journal() == []
    target.assert_unharmed()


# --- symbols


def pdb_folder(tmp_path, source, change=None):
    folder = tmp_path / "symbols"
    folder.mkdir()
    data = bytearray(source.read_bytes())
    if change is not None:
        change(data)
    (folder / "ntkrnlmp.pdb").write_bytes(data)
    return folder


def damage_middle(data):
    rng = random.Random(5)
    for _ in range(4000):
        data[rng.randrange(0x2000, len(data))] = rng.randrange(256)


def cut(data):
    del data[len(data) // 3 :]


def not_a_pdb(data):
    data[:] = b"MZ" + bytes(100)


@pytest.mark.parametrize(
    ("source", "change"),
    [
        (None, None),
        (IMAGES / "15063" / "ntkrnlmp.pdb", None),
        (IMAGES / "ntkrnlmp.pdb", cut),
        (IMAGES / "ntkrnlmp.pdb", not_a_pdb),
        (IMAGES / "ntkrnlmp.pdb", damage_middle),
    ],
    ids=["none", "another build", "cut short", "no PDB", "damaged"],
)
def test_symbols(practice, start, tmp_path, source, change):
    target = practice("serial")
    folder = tmp_path / "empty" if source is None else pdb_folder(tmp_path, source, change)
    hunt = start(*hunting(target, "-y", folder, "-vv"), env=NO_PRACTICE, trace=True).ends(3)
    assert "nt!PoolHitTag" in hunt.complaint or "PDB" in hunt.complaint
    assert "Next: " in hunt.complaint
    assert "WRITE_VIRTUAL" not in target.assert_unharmed()["requests"]


def test_rank_without_symbols_is_incomplete(practice, start, tmp_path):
    target = practice("serial")
    ranked = start(
        "rank", "-k", target.connection, "--by", "used", "-y", tmp_path, env=NO_PRACTICE
    ).ends(4)
    assert "missing: " in ranked.out
    target.assert_unharmed()


def test_symbol_path_in_the_environment(practice, start, tmp_path):
    target = practice("serial")
    folder = pdb_folder(tmp_path, IMAGES / "ntkrnlmp.pdb")
    hunt = start(
        *hunting(target, "--hits", 20), env={**NO_PRACTICE, "_NT_SYMBOL_PATH": str(folder)}
    ).hunted()
    # The drivers' PDBs are not there: module and offset name the place.
    assert re.search(r"leakydrv\+0x[0-9a-f]+", hunt.out)
    target.assert_unharmed()


def test_tag_nobody_uses(practice, start):
    target = practice("serial")
    hunt = start(
        "hunt", "-k", target.connection, "--tag", "Zzz9", "--seconds", 1, "--hits", 5
    ).ends(4)
    assert hunt.out.splitlines()[-1] == SAFE
    target.assert_unharmed()


def test_two_hunts_over_serial(practice, start, journal):
    """The newer one gets the line, but not the target: a living hunt has armed it."""
    target = practice("serial")
    first = start(
        *hunting(target, "--hits", 100000, "--seconds", 30, "--timeout", 2), "--grace", 1
    ).says("watching '")
    first.send(signal.SIGSTOP)  # so that it cannot end meanwhile
    second = start(*hunting(target, "--hits", 20)).ends(3)
    assert "another kdleak process is at work" in second.complaint
    assert len(journal()) == 1
    first.send(signal.SIGCONT).ends(5)  # its line is gone
    assert "kdleak restore" in first.out
    start("restore", "-k", target.connection).ends(0)
    assert journal() == []
    target.assert_unharmed()
