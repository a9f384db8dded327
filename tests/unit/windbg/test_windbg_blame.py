"""Blame in WinDbg: its options, and recordings from before drivers were asked for their version."""

from __future__ import annotations

import pytest

from kdleak.errors import UsageError
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.model import Symbolized
from kdleak.tags import PoolTag
from kdleak.windbg.options import parse_hunt
from kdleak.windbg.recording import Memory, recall


def test_lists_are_read_with_the_options(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("KDLEAK_FRAMEWORKS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "none"))
    own, tags = tmp_path / "own.txt", tmp_path / "pooltag.txt"
    own.write_text("mylib our library\n")
    tags.write_text("Leak - leakydrv.sys - Leaks\n")
    request = parse_hunt(
        ["--frameworks", str(own), "--through", "a", "--through", "b!C*", "--pooltag", str(tags)]
    )
    assert request.frameworks is not None
    assert request.frameworks.sources == ("own.txt",)
    for module, function in (("mylib", "X"), ("a", "Y"), ("b", "Calloc"), ("ndis", "Z")):
        assert request.frameworks.layer_of(Symbolized(1, module, function)) is not None
    assert request.frameworks.layer_of(Symbolized(1, "b", "Work")) is None
    owner = request.tag_lists.known_owner(PoolTag.parse("Leak"))
    assert owner is not None
    assert (owner.binary, owner.description, owner.source) == (
        "leakydrv.sys", "Leaks", "pooltag.txt",
    )  # fmt: skip
    assert request.tag_lists.known_owner(PoolTag.parse("None")) is None


@pytest.mark.parametrize("option", ["--frameworks", "--pooltag"])
def test_a_file_that_is_not_there(option: str, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"absent\.txt"):
        parse_hunt([option, str(tmp_path / "absent.txt")])


def test_they_make_a_difference_to_a_replay(tmp_path) -> None:
    request = parse_hunt(["--replay", str(tmp_path / "x.jsonl"), "--through", "a", "--hits", "5"])
    assert request.ignored == ("--hits",)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_replay_asks_for_versions_as_the_recorded_hunt_did(wanted: bool, tmp_path) -> None:
    memory = Memory("hunt", hunt=HuntOptions(read_versions=wanted))
    document = memory.document(Journal(tmp_path), "here")
    recalled = recall(document, "hunt")
    assert recalled is not None
    assert recalled.hunt is not None
    assert recalled.hunt.read_versions is wanted


def test_an_older_recording_holds_no_answer_to_that(tmp_path) -> None:
    document = Memory("hunt", hunt=HuntOptions()).document(Journal(tmp_path), "here")
    assert isinstance(document["hunt"], dict)
    del document["hunt"]["read_versions"]
    recalled = recall(document, "hunt")
    assert recalled is not None
    assert recalled.hunt is not None
    assert not recalled.hunt.read_versions
