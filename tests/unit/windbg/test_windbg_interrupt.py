"""Ctrl+Break as pykd-ext delivers it: SystemExit at any bytecode. The tag is always put back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from windbg_fakes import Interruption, Session, ctrl_break

from hunt_fakes import IDLE  # isort: skip - found through windbg_fakes

from kdleak.restore import restore  # isort: skip

HUNT = ("--tag", "Leak", "--hits", "3", "--hits-per-second", "1")
CALM = "disarmed: "

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""A file that was being opened when the interruption came is closed by the garbage collector."""


def interrupted(folder: Path, at: int, *files: str, error=ctrl_break) -> tuple[Session, str]:
    """A hunt with an interruption at the at-th bytecode executed in some files."""
    session = Session(folder / str(at))
    with Interruption(at, *files, error=error) as interruption:
        try:
            session.run(*HUNT, "--json", str(folder / f"{at}.json"))
        except (SystemExit, KeyboardInterrupt):
            # Between the last line and the return of the exit code: nothing is left to do.
            assert session.last_line.startswith(CALM)
    return session, interruption.where


def points(folder: Path, *files: str) -> int:
    """How many bytecodes a whole hunt executes in some files."""
    session = Session(folder / "whole")
    with Interruption(0, *files, error=ctrl_break) as interruption:
        session.run(*HUNT, "--json", str(folder / "whole.json"))
    assert session.last_line.startswith(CALM + "nt!PoolHitTag is back")
    return interruption.count


def check(folder: Path, at: int, *files: str, error=ctrl_break) -> None:
    session, where = interrupted(folder, at, *files, error=error)
    assert session.engine.hit_tag == IDLE, where
    assert session.engine.violations == [], where
    assert session.last_line.startswith(CALM), (where, session.text)
    assert "internal error" not in session.text, (where, session.text)
    # The entry of a change that is undone may still be there; a restore closes it.
    assert restore(session.engine, session.journal).state.safe, where
    assert session.engine.hit_tag == IDLE, where


def test_anywhere_in_arming_and_disarming(tmp_path):
    """Every fifth bytecode of what changes the target; the start is drawn anew each time."""
    count = points(tmp_path, "kdleak/arm.py")
    assert count > 500
    for at in range(random.randrange(1, 6), count + 1, 5):
        check(tmp_path, at, "kdleak/arm.py")


@pytest.mark.parametrize("error", [ctrl_break, KeyboardInterrupt])
def test_anywhere_at_all(tmp_path, error):
    count = points(tmp_path)
    assert count > 20_000
    for at in random.sample(range(1, count + 1), 80):
        check(tmp_path, at, error=error)


def test_one_while_the_report_is_printed_costs_the_report_not_the_safety_line(tmp_path):
    session, _ = interrupted(tmp_path, 40, "report/hunt_text.py")
    assert "interrupted while the report was printed" in session.text
    assert session.last_line == "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."


def test_one_while_watching_gives_a_result(tmp_path):
    session, where = interrupted(tmp_path, 400, "kdleak/watch.py")
    assert "watch.py" in where
    assert "Changed in the target" in session.text
    assert session.job.result is not None
    assert session.job.result.interrupted
