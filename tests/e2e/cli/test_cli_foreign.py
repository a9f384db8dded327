"""The target stops for reasons of its own, or starts again: kdleak makes way for its user."""

from __future__ import annotations

import json

import pytest
from cli_rig import SECONDS

from kdleak.errors import TargetRestarted
from kdleak.kd.connection import open_host, parse_connection
from kdleak.kd.host import KdHost
from kdleak.kd.packets import Api, PacketType, build_manipulate

SAFE = "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."
SLOW = 40
"""Ticks per second: the hunt is at work when the fault comes."""

FAULTS = {
    "break": ("break_at_tick", "leakydrv!"),
    "assertion": ("assert_at_tick", "leakydrv!"),
    "bug check": ("bug_check_at_tick", "bug check"),
}


def program_counter(connection):
    """Attach as the next debugger would, look where it stands, and leave it there."""
    host = KdHost(open_host(parse_connection(connection)))
    try:
        return host.attach(15.0).program_counter
    finally:
        host.close()


@pytest.mark.parametrize(
    ("link", "fault"), [("kdnet", "break"), *(("serial", fault) for fault in FAULTS)]
)
def test_stop_while_watching(practice, start, journal, link, fault):
    option, text = FAULTS[fault]
    # Over KDNET the attach alone takes up to 3 seconds, in which the machine runs.
    tick = 400 if link == "kdnet" else 120
    target = practice(link, rate=SLOW, **{option: tick})
    hunt = start(
        "hunt", "-k", target.connection, "--tag", "Leak", "--hits", 100000, "--full-speed", "--json"
    ).ends(4)
    document = json.loads(hunt.out)
    assert document["disarm"]["status"] == "confirmed"
    assert document["leave_stopped"] is True
    assert document["stop_reason"] == "foreign_stop"
    assert SAFE in hunt.err.splitlines()
    assert text in json.dumps(document["stop"])
    assert journal() == []
    counter = program_counter(target.connection)
    assert counter == int(document["stop"]["program_counter"], 16)
    target.assert_waiting()


@pytest.mark.parametrize("command", ["hunt", "rank"])
def test_stop_while_ranking(practice, start, journal, command):
    target = practice("serial", rate=SLOW, break_at_tick=100)
    ranking = start(command, "-k", target.connection, "--interval", 30)
    ranking.ends({"hunt": 3, "rank": 4}[command])
    assert "leakydrv!" in ranking.out
    assert journal() == []
    program_counter(target.connection)
    assert "WRITE_VIRTUAL" not in target.assert_waiting()["requests"]


def test_hunt_in_a_bug_check_is_refused(practice, start, journal):
    target = practice("serial", rate=SLOW, bug_check_at_tick=1)
    assert not target.runs()
    refused = start("hunt", "-k", target.connection, "--tag", "Leak").ends(3)
    assert "bug check" in refused.complaint
    assert "!analyze -v" in refused.complaint
    assert journal() == []
    requests = target.assert_waiting()["requests"]
    assert "WRITE_VIRTUAL" not in requests
    assert "CONTINUE2" not in requests  # Windows would restart


@pytest.mark.parametrize(
    ("command", "code"), [(["rank"], 4), (["rank", "--by", "used"], 0), (["restore"], 0)]
)
def test_others_leave_a_bug_check_as_it_is(practice, start, command, code):
    """It is somebody's crash to debug: attaching to look must not let it go on."""
    target = practice("serial", rate=SLOW, bug_check_at_tick=1)
    assert not target.runs()
    done = start(*command, "-k", target.connection).ends(code)
    assert "bug check" in done.out + done.err
    assert "CONTINUE2" not in target.assert_waiting()["requests"]


def reboot(connection):
    host = KdHost(open_host(parse_connection(connection)))
    try:
        host.attach(15.0)
        host.link.send(PacketType.STATE_MANIPULATE, build_manipulate(Api.REBOOT), 5.0)
        if connection.startswith("net"):
            with pytest.raises(TargetRestarted):
                host.link.receive(10.0)
    finally:
        host.close()


def test_reboot_between_two_hunts(practice, start, journal):
    """Killed, rebooted: the journal entry is about a boot that is gone."""
    target = practice("serial")
    hunt = start(
        "hunt", "-k", target.connection, "--tag", "Leak", "--hits", 100000, "--full-speed"
    ).says("watching '")
    hunt.kill()
    assert len(journal()) == 1
    reboot(target.connection)
    again = start("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 20).hunted()
    assert "restarted" in again.err
    assert again.out.splitlines()[-1] == SAFE
    assert journal() == []
    assert target.assert_unharmed()["reboots"] == 1


def test_reboot_while_armed(practice, start, journal):
    """Over serial a second debugger takes the line and reboots the machine under our hands."""
    target = practice("serial")
    hunt = start(
        "hunt", "-k", target.connection, "--tag", "Leak", "--hits", 100000, "--full-speed",
        "--seconds", 5, "--timeout", 4, "--grace", 4,
    ).says("watching '")  # fmt: skip
    reboot(target.connection)
    hunt.process.wait(SECONDS)
    hunt.check()
    # Its line is gone, so it cannot know; what it left is about a boot that is gone.
    assert hunt.process.returncode == 5
    assert "kdleak restore" in hunt.out
    start("restore", "-k", target.connection).ends(0)
    assert journal() == []
    target.assert_unharmed()


def test_reboot_while_armed_over_kdnet(practice, start, journal):
    """The machine is reset while armed and comes back: seen, nothing to undo, entry closed."""
    target = practice("kdnet")
    hunt = start(
        "hunt", "-k", target.connection, "--tag", "Leak", "--hits", 100000, "--full-speed",
        "--seconds", 20, "--timeout", 8, "--grace", 20, "--json",
    ).says("watching '")  # fmt: skip
    target.kill()
    again = practice("kdnet", port=target.port, seed=12)
    hunt.process.wait(SECONDS)
    hunt.check()
    document = json.loads(hunt.out)
    # A machine that is slow to come back is lost first, and seen to have restarted after.
    assert document["stop_reason"] in ("restarted", "link_lost")
    assert document["disarm"]["status"] == "not_needed", document["disarm"]
    assert hunt.process.returncode == 4
    assert journal() == []
    again.assert_unharmed()


def test_images_loaded_meanwhile(practice, start):
    """A driver is loaded while the tag is armed: that is no foreign stop."""
    target = practice("serial", rate=SLOW, late_driver_at_tick=100)
    hunt = start("hunt", "-k", target.connection, "--tag", "Busy", "--hits", 30).hunted()
    assert "busydrv!" in hunt.out
    target.assert_unharmed()


def test_prints_meanwhile(practice, start):
    target = practice("serial", print_every_ticks=2)
    hunt = start("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 60).hunted()
    assert hunt.out.splitlines()[-1] == SAFE
    assert target.assert_unharmed()["prints"] > 5
