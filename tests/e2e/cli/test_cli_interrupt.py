"""Ctrl+C, SIGTERM, a closed terminal and readers that go away, at every stage of a hunt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from cli_rig import KEY, SECONDS, assert_clean, environment, free_port

SAFE = "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."


def long_hunt(target, *more):
    return ["hunt", "-k", target.connection, "--tag", "Leak", "--hits", 100000, *more]


def short_hunt(target):
    return [sys.executable, "-m", "kdleak", *long_hunt(target)[:-1], "60"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_waiting_for_the_target(start, number):
    hunt = start("hunt", "-k", f"net:port={free_port()},key={KEY}").says("waiting for the target")
    time.sleep(0.2)
    hunt.send(number).ends(130, timeout=10)
    assert hunt.complaint == "kdleak: interrupted."
    assert hunt.out == ""


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("hunt", signal.SIGINT),
        ("hunt", signal.SIGTERM),
        ("hunt", signal.SIGHUP),
        ("rank", signal.SIGINT),
        ("rank", signal.SIGTERM),
    ],
)
def test_while_ranking(practice, start, journal, command, number):
    target = practice("serial")
    ranking = start(command, "-k", target.connection, "--interval", 30).says("Snapshot 1")
    ranking.send(number).ends(130, timeout=20)
    assert "interrupted" in ranking.out + ranking.err
    assert journal() == []
    target.assert_unharmed()


@pytest.mark.parametrize(
    ("link", "number"),
    [
        ("kdnet", signal.SIGINT),
        ("serial", signal.SIGINT),
        ("serial", signal.SIGTERM),
        ("serial", signal.SIGHUP),
    ],
)
def test_while_watching(practice, start, journal, link, number):
    target = practice(link)
    hunt = start(*long_hunt(target)).says("watching '")
    time.sleep(0.3)
    hunt.send(number).ends(130, timeout=20)
    assert hunt.out.splitlines()[-1] == SAFE
    assert "leakydrv!" in hunt.out  # what was seen so far is reported
    assert journal() == []
    target.assert_unharmed()


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05])
def test_twice_while_disarming(practice, start, journal, delay):
    target = practice("serial")
    hunt = start(*long_hunt(target, "--full-speed")).says("watching '")
    hunt.send(signal.SIGINT)
    time.sleep(delay)
    hunt.send(signal.SIGINT)
    hunt.ends(130, timeout=20)
    assert hunt.out.splitlines()[-1] == SAFE
    assert journal() == []
    target.assert_unharmed()


def test_a_storm_of_signals(practice, start, journal):
    """Somebody holds Ctrl+C down from the start to the end."""
    target = practice("serial")
    hunt = start(*long_hunt(target, "--full-speed")).says("Armed")
    for _ in range(60):
        if hunt.process.poll() is not None:
            break
        hunt.send(signal.SIGINT)
        time.sleep(0.01)
    hunt.ends(130, timeout=30)
    assert journal() == []
    target.assert_unharmed()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_at_any_moment(practice, start, journal, seed):
    """Whatever it is doing: it ends soon, and the target is as it was."""
    target = practice("serial")
    hunt = start(
        "hunt", "-k", target.connection, "--interval", 0.5, "--snapshots", 2, "--hits", 200
    )
    time.sleep([0.25, 0.6, 1.3][seed - 1])
    hunt.send(signal.SIGINT)
    hunt.process.wait(SECONDS)
    hunt.check()
    # Before Python listens to it, SIGINT ends the process as any other.
    assert hunt.process.returncode in (0, 130, -signal.SIGINT)
    assert journal() == []
    target.assert_unharmed()


def test_restore_interrupted(practice, start):
    target = practice("serial")
    restore = start("restore", "-k", target.connection).says("attached")
    restore.send(signal.SIGINT)
    restore.process.wait(SECONDS)
    restore.check()
    assert restore.process.returncode in (0, 130)
    target.assert_unharmed()


def test_nohup(practice, start, state, tmp_path):
    """Under nohup a closed terminal is ignored, as its user wants."""
    target = practice("serial")
    with (tmp_path / "out.txt").open("w+") as out:
        process = subprocess.Popen(
            ["nohup", *short_hunt(target)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(state),
        )
        try:
            deadline = time.monotonic() + SECONDS
            while "Armed" not in (tmp_path / "out.txt").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGHUP)
            assert process.wait(SECONDS) in (0, 4)  # a small sample may leave it open
        finally:
            process.kill()
            process.wait()
    assert SAFE in (tmp_path / "out.txt").read_text()
    target.assert_unharmed()


@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_reader_goes_away(practice, state, journal, both):
    """`kdleak hunt ... | head -1`, and the same with 2>&1: the reader is gone while armed."""
    target = practice("serial")
    reading, writing = os.pipe()
    process = subprocess.Popen(
        short_hunt(target),
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=writing if both else subprocess.PIPE,
        text=True,
        env=environment(state),
    )
    os.close(writing)
    try:
        if both:
            os.read(reading, 1)
        os.close(reading)
        _, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (0, 4)
    if not both:
        assert_clean(err)
        assert "Exception ignored" not in err
    assert journal() == []
    target.assert_unharmed()
