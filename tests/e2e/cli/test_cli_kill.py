"""kdleak killed while a target is armed; what comes after puts it right."""

from __future__ import annotations

import random
import signal
import time

import pytest

SAFE = "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."


def hunt_until_killed(start, target, journal, rng):
    """A hunt that dies by SIGKILL at some moment while the tag is armed."""
    hunt = start(
        "hunt", "-k", target.connection, "--tag", "Leak", "--hits", 100000, "--full-speed"
    ).says("Armed nt!PoolHitTag")
    time.sleep(rng.uniform(0.0, 0.4))
    hunt.send(signal.SIGKILL).ends(-signal.SIGKILL)
    assert len(journal()) == 1


@pytest.mark.parametrize("link", ["kdnet", "serial"])
@pytest.mark.parametrize("seed", [1, 2])
def test_restore_after_kill(practice, start, journal, link, seed):
    rng = random.Random(seed)
    target = practice(link)
    for pause in (0.0, 0.5) if link == "serial" else (0.1 * seed,):
        hunt_until_killed(start, target, journal, rng)
        time.sleep(pause)
        restored = start("restore", "-k", target.connection).ends(0)
        assert restored.out.splitlines()[-1] == SAFE
        assert journal() == []
    target.assert_unharmed()


@pytest.mark.parametrize("link", ["kdnet", "serial"])
def test_target_frozen_at_a_hit(practice, start, journal, link):
    """Nobody answers the armed target's next hit: it stands still until it is restored."""
    target = practice(link)
    hunt_until_killed(start, target, journal, random.Random(3))
    assert not target.runs()
    restored = start("restore", "-k", target.connection).ends(0)
    assert restored.out.splitlines()[-1] == SAFE
    target.assert_unharmed()


@pytest.mark.parametrize("link", ["kdnet", "serial"])
def test_hunt_after_kill(practice, start, journal, link):
    """The next hunt repairs what the killed one left, says so, and goes on."""
    target = practice(link)
    hunt_until_killed(start, target, journal, random.Random(4))
    hunt = start("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 30).hunted()
    assert "earlier hunt" in hunt.err
    assert hunt.out.splitlines()[-1] == SAFE
    assert journal() == []
    target.assert_unharmed()


def test_hunt_after_kill_without_journal(practice, start, journal, state):
    """The journal is lost: a hunt refuses, and --value is the way out."""
    target = practice("serial")
    hunt_until_killed(start, target, journal, random.Random(5))
    for file in state.glob("*.json"):
        file.unlink()
    refused = start("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 30).ends(3)
    assert "already holds" in refused.complaint
    assert "kdleak restore --value" in refused.complaint
    refused = start("restore", "-k", target.connection).ends(5)
    assert "NOT CONFIRMED" in refused.out.splitlines()[-1]
    start("restore", "-k", target.connection, "--value", "0xffffff0f").ends(0)
    target.assert_unharmed()


def test_rank_after_kill(practice, start, journal):
    """Ranking attaches to a target frozen at a hit of an armed tag, too."""
    target = practice("serial")
    hunt_until_killed(start, target, journal, random.Random(6))
    ranked = start("rank", "-k", target.connection, "--by", "used")
    ranked.process.wait(60)
    ranked.check()
    assert ranked.process.returncode in (0, 4)
    assert "kdleak restore" in ranked.err
    assert len(journal()) == 1  # still to be restored
    start("restore", "-k", target.connection).ends(0)
    target.assert_unharmed()


def test_kill_before_arming(practice, start, journal):
    """Killed at a snapshot of the ranking: the target stands still and nothing is armed."""
    target = practice("serial")
    hunt = start("hunt", "-k", target.connection, "--interval", 20).says("Snapshot 1")
    hunt.send(signal.SIGKILL).ends(-signal.SIGKILL)
    assert journal() == []
    restored = start("restore", "-k", target.connection).ends(0)
    assert "nothing to undo" in restored.out.splitlines()[-1]
    target.assert_unharmed()


def test_target_rebooted_after_kill(practice, start, journal):
    """The machine was switched off and on meanwhile: nothing to undo, the entry is closed."""
    target = practice("kdnet")
    hunt_until_killed(start, target, journal, random.Random(7))
    target.kill()
    again = practice("kdnet", port=target.port, seed=9)
    restored = start("restore", "-k", again.connection).ends(0)
    assert "restarted" in restored.out
    assert journal() == []
    again.assert_unharmed()


def test_damaged_journal(practice, start, state, journal):
    """A journal file that was cut short does not keep anybody from working."""
    target = practice("serial")
    state.mkdir()
    (state / "com-broken.json").write_text('{"format": "kdleak.jour', encoding="utf-8")
    hunt = start("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 20).hunted()
    assert "com-broken.json" in hunt.err + hunt.out
    restored = start("restore", "-k", target.connection).ends(0)
    assert "com-broken.json" in restored.out
    assert journal() == ["com-broken.json"]
    target.assert_unharmed()


def test_journal_folder_cannot_be_made(practice, start, tmp_path):
    """Without a journal nothing is written to the target."""
    target = practice("serial")
    (tmp_path / "file").write_text("", encoding="utf-8")
    hunt = start(
        "hunt", "-k", target.connection, "--tag", "Leak", state=tmp_path / "file" / "state"
    ).ends(3)
    assert "journal" in hunt.complaint
    assert "KDLEAK_STATE_DIR" in hunt.complaint
    assert target.runs()
    assert "WRITE_VIRTUAL" not in target.assert_unharmed()["requests"]
