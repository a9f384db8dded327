"""The journal on disk: written before, removed after, never trusted blindly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hunt_fakes import ADDRESS, IDLE, KERNEL_BASE, LEAK, FakeEngine

from kdleak.errors import JournalError, TargetBusy
from kdleak.journal import (
    DamagedFile,
    Journal,
    parse_entry,
    state_directory,
    without_secrets,
)
from kdleak.model import Architecture

TARGET = FakeEngine().target


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state", now=lambda: 1700000000.5, sleep=lambda _: None, pid=77)


def entry(journal: Journal, where: str = "net:port=50000"):
    return journal.entry(where, TARGET, ADDRESS, IDLE, LEAK.raw)


def test_an_entry_comes_back_as_it_was_written(journal: Journal) -> None:
    with journal.claim("net:port=50000", ADDRESS) as claim:
        assert claim.stale is None
        claim.record(entry(journal))
        (found,) = journal.scan().files
    assert found.entry == entry(journal)
    assert found.entry.tag == LEAK
    assert found.entry.kernel_base == KERNEL_BASE
    assert found.entry.architecture is Architecture.X64
    assert (found.entry.pid, found.entry.written_at) == (77, 1700000000.5)
    with journal.claim("net:port=50000", ADDRESS) as claim:
        assert claim.stale == found.entry
        claim.close()
    assert journal.scan().files == ()
    assert list(journal.directory.iterdir()) == []


def test_closing_twice_does_no_harm(journal: Journal) -> None:
    with journal.claim("w", ADDRESS) as claim:
        claim.record(entry(journal))
        claim.close()
        claim.close()


def test_a_key_never_reaches_the_disk(journal: Journal) -> None:
    where = "net:port=50000,key=1.2.3.4,target=10.0.0.1"
    with journal.claim(where, ADDRESS) as claim:
        claim.record(entry(journal, where))
        for path in journal.directory.iterdir():
            assert "1.2.3.4" not in path.name
            assert b"1.2.3.4" not in path.read_bytes()
    assert without_secrets("KEY = 1.2.3.4;x") == "KEY=...;x"


def test_two_claims_of_one_target_exclude_each_other(journal: Journal) -> None:
    with journal.claim("w", ADDRESS):
        with pytest.raises(TargetBusy, match="another kdleak"):
            journal.claim("w", ADDRESS)
        journal.claim("w", ADDRESS + 4).release()
        journal.claim("other", ADDRESS).release()
    journal.claim("w", ADDRESS).release()


def test_another_process_is_refused_and_its_death_frees_the_target(journal: Journal) -> None:
    code = (
        "import sys, pathlib\n"
        "from kdleak.journal import Journal\n"
        f"claim = Journal(pathlib.Path({str(journal.directory)!r})).claim('w', {ADDRESS})\n"
        "print('have it', flush=True)\n"
        "sys.stdin.read()\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"have it"
        with pytest.raises(TargetBusy):
            journal.claim("w", ADDRESS)
        other.kill()
        other.wait(10)
        journal.claim("w", ADDRESS).release()


GOOD = {
    "format": "kdleak.journal",
    "format_version": 1,
    "where": "w",
    "target": {"build": 1, "kernel_base": "0x1", "architecture": "x64"},
    "address": "0x10",
    "original": "0fffffff",
    "armed": "4c65616b",
    "pid": 1,
    "written_at": 1,
}


def test_the_good_document_is_good() -> None:
    assert parse_entry(json.dumps(GOOD).encode()).armed == b"Leak"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "other"}, "not a kdleak journal"),
        ({"format_version": 2}, "format version 2"),
        ({"where": 1}, "'where'"),
        ({"target": []}, "target"),
        ({"target": {**GOOD["target"], "architecture": "mips"}}, "mips"),
        ({"target": {**GOOD["target"], "build": True}}, "'build'"),
        ({"target": {**GOOD["target"], "build": -1}}, "'build'"),
        ({"target": {**GOOD["target"], "kernel_base": "0x" + "f" * 17}}, "kernel_base"),
        ({"address": "10"}, "'address'"),
        ({"original": "0fffff"}, "'original'"),
        ({"armed": "zzzzzzzz"}, "'armed'"),
        ({"written_at": float("inf")}, "'written_at'"),
        ({"pid": None}, "'pid'"),
    ],
)
def test_each_wrong_field_is_named(change, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_entry(json.dumps({**GOOD, **change}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 600,
        json.dumps(GOOD).encode()[:-9],
        b"[" * 60000,
        b"\xff\xfe\x00",
        b"{}",
        b"null",
        b" " * 70000,
    ],
    ids=["empty", "zeros", "cut", "deep", "utf", "object", "null", "large"],
)
def test_garbage_is_reported_and_kept(journal: Journal, data: bytes) -> None:
    journal.directory.mkdir()
    path = journal.directory / "x.json"
    path.write_bytes(data)
    scan = journal.scan()
    assert scan.files == ()
    assert [damaged.path for damaged in scan.damaged] == [path]
    assert scan.damaged[0].why
    assert path.read_bytes() == data


def test_a_damaged_file_in_our_place_is_moved_aside_not_lost(journal: Journal) -> None:
    with journal.claim("w", ADDRESS) as claim:
        claim.record(entry(journal, "w"))
        path = journal.directory / claim.file_name
    path.write_bytes(b"garbage")
    with journal.claim("w", ADDRESS) as claim:
        assert claim.stale is None
        claim.record(entry(journal, "w"))
        assert claim.moved_aside is not None
        assert claim.moved_aside.read_bytes() == b"garbage"
    assert len(journal.scan().files) == 1


def test_no_folder_is_an_empty_journal(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none").scan().files == ()


def test_a_folder_that_cannot_be_made_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(JournalError, match="KDLEAK_STATE_DIR"):
        Journal(tmp_path / "file" / "state").claim("w", ADDRESS)


def test_a_failed_write_leaves_no_temporary_file(journal: Journal, monkeypatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with journal.claim("w", ADDRESS) as claim:
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(JournalError, match="No space left"):
            claim.record(entry(journal, "w"))
        assert [path.suffix for path in journal.directory.iterdir()] == [".lock"]


def test_a_virus_scanner_holding_the_file_is_waited_for(journal: Journal, monkeypatch) -> None:
    real, failures, waits = __import__("os").replace, [1, 2], []

    def busy(source, destination) -> None:
        if failures:
            failures.pop()
            raise PermissionError(13, "in use")
        real(source, destination)

    journal.sleep = waits.append
    monkeypatch.setattr("os.replace", busy)
    with journal.claim("w", ADDRESS) as claim:
        claim.record(entry(journal, "w"))
        assert len(waits) == 2
        assert len(journal.scan().files) == 1
        failures.extend(range(99))
        with pytest.raises(JournalError, match="in use"):
            claim.record(entry(journal, "w"))


def test_an_unreadable_file_is_damaged_not_fatal(journal: Journal) -> None:
    (journal.directory / "x.json").mkdir(parents=True)
    (damaged,) = journal.scan().damaged
    assert isinstance(damaged, DamagedFile)


def test_where_the_state_lives() -> None:
    def of(environ, platform="linux"):
        return state_directory(environ, platform).as_posix()

    # Where these tests run on Windows a path without a drive is not absolute.
    root = "C:" if os.name == "nt" else ""
    state, home = f"{root}/s", {"HOME": f"{root}/h"}
    assert of({"KDLEAK_STATE_DIR": "/x", **home}) == "/x"
    assert of({"XDG_STATE_HOME": state, **home}) == f"{state}/kdleak"
    assert of({"XDG_STATE_HOME": "relative", **home}) == f"{root}/h/.local/state/kdleak"
    assert of(home) == f"{root}/h/.local/state/kdleak"
    assert of({"LOCALAPPDATA": f"{root}/c/Local"}, "win32") == f"{root}/c/Local/kdleak"
    assert of({"USERPROFILE": "/c/u"}, "win32") == "/c/u/AppData/Local/kdleak"
