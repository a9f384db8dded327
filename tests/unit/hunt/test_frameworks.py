"""The list of framework layers: its format, the users' own lists, and what it decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdleak.blaming.frameworks import (
    FRAMEWORKS_VARIABLE,
    Frameworks,
    built_in_frameworks,
    configuration_folder,
    load_frameworks,
    parse_frameworks,
)
from kdleak.errors import UsageError
from kdleak.model import Symbolized


def layer(frameworks: Frameworks, name: str) -> str | None:
    module, _, function = name.partition("!")
    rule = frameworks.layer_of(Symbolized(1, module, function))
    return None if rule is None else rule.words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Wdf01000!FxPoolAllocator", "KMDF"),
        ("WDF01000!imp_WdfMemoryCreate", "KMDF"),
        ("Wdf01000", "KMDF"),
        ("NETIO!NetioAllocateNetBuffer", "network I/O subsystem"),
        ("nt!IofCallDriver", "I/O manager"),
        ("ntkrnlmp!ObpAllocateObject", "object manager"),
        ("nt!RtlpAllocateSecondLevelDir", "run-time library"),
        ("nt!CcInitializeCacheMap", "cache manager"),
        ("nt!FsRtlAllocatePool", "file system run-time library"),
        ("nt!NtOpenFile", None),
        ("nt!SendCaptureStateNotificationsWorker", None),
        ("nt!KernelBase", None),
        ("nt", None),
        ("tcpip!IppAllocate", None),
        ("mouclass!MouseClassServiceCallback", None),
        ("ndisdrv!X", None),
        ("", None),
    ],
)
def test_what_the_built_in_list_says(name: str, words: str | None) -> None:
    assert layer(built_in_frameworks(), name) == words


def test_every_line_of_the_built_in_list_says_what_it_is() -> None:
    assert len(built_in_frameworks().rules) > 80
    assert all(rule.words for rule in built_in_frameworks().rules)


def test_the_last_rule_that_matches_decides() -> None:
    rules, wrong = parse_frameworks(
        "# a comment\nndis  network  # not more\n-ndis!ndisMyOwn*\n\nndis!ndisMyOwnX\ta b\n"
    )
    assert wrong == ()
    frameworks = Frameworks(rules)
    assert layer(frameworks, "NDIS!NdisAllocate") == "network"
    assert layer(frameworks, "ndis!ndisMyOwnQueue") is None
    assert layer(frameworks, "ndis!ndisMyOwnX") == "a b"
    assert layer(frameworks, "ndis!NDISMYOWNX") == "network"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("!Foo", "neither a module nor module!function"),
        ("ndis!", "neither a module nor module!function"),
        ("-", "neither a module nor module!function"),
        ("a" * 201, "longer than 200"),
        ("*a*b*c*d*e*f*g*h*", "more than 8 wildcards"),
        ("*", "nobody to blame"),
        ("*!*", "nobody to blame"),
        ("a\x01b", "control character"),
    ],
)
def test_bad_lines_are_told_with_their_numbers(line: str, why: str) -> None:
    rules, wrong = parse_frameworks(f"ndis\n\n{line}\nks kernel streaming\n")
    assert [rule.pattern for rule in rules] == ["ndis", "ks"]
    assert len(wrong) == 1
    assert wrong[0].startswith("line 3: ")
    assert why in wrong[0]


def test_users_lists_in_their_order(tmp_path: Path) -> None:
    folder = tmp_path / "configuration"
    folder.mkdir()
    (folder / "frameworks.txt").write_text("mylib one\nother one\nthird one\n")
    (tmp_path / "environment.txt").write_text("mylib two\nother two\n")
    (tmp_path / "given.txt").write_bytes(b"\xef\xbb\xbfmylib three\r\n-ndis\r\n")
    frameworks = load_frameworks(
        tmp_path / "given.txt",
        ["mydrv!Alloc*"],
        environ={FRAMEWORKS_VARIABLE: str(tmp_path / "environment.txt")},
        folder=folder,
    )
    assert layer(frameworks, "mylib!X") == "three"
    assert layer(frameworks, "other!X") == "two"
    assert layer(frameworks, "third!X") == "one"
    assert layer(frameworks, "ndis!X") is None
    assert layer(frameworks, "mydrv!AllocThing") == "named by the user"
    assert layer(frameworks, "mydrv!Work") is None
    assert layer(frameworks, "Wdf01000!X") == "KMDF"
    assert frameworks.sources == ("frameworks.txt", "environment.txt", "given.txt")


def test_nothing_of_the_users_is_the_built_in_list(tmp_path: Path) -> None:
    assert load_frameworks(environ={}, folder=tmp_path).rules == built_in_frameworks().rules


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("\n".join(["ndis", *["!x"] * 9]))
    with pytest.raises(UsageError, match=r"line 2: .*line 6: .*and 4 more"):
        load_frameworks(bad, environ={}, folder=tmp_path)
    with pytest.raises(UsageError, match=r"absent\.txt"):
        load_frameworks(tmp_path / "absent.txt", environ={}, folder=tmp_path)
    bad.write_bytes(b"ndis\n\xff\xfe\n")
    with pytest.raises(UsageError, match=r"bad\.txt"):
        load_frameworks(bad, environ={}, folder=tmp_path)
    bad.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(UsageError, match="larger than 1 MB"):
        load_frameworks(bad, environ={}, folder=tmp_path)


@pytest.mark.parametrize("name", ["", "!x", "*", "a!"])
def test_a_name_to_look_through_that_is_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="looking through"):
        load_frameworks(through=[name], environ={}, folder=tmp_path)


def test_the_configuration_folder() -> None:
    root = Path("/").absolute()
    assert configuration_folder({"HOME": str(root)}, "linux") == root / ".config" / "kdleak"
    assert configuration_folder({"XDG_CONFIG_HOME": str(root)}, "linux") == root / "kdleak"
    assert configuration_folder({"APPDATA": str(root)}, "win32") == root / "kdleak"
    assert configuration_folder({}, "linux") is None
    assert configuration_folder({}, "win32") is None


@given(st.text(max_size=300))
def test_any_text_gives_rules_or_complaints(text: str) -> None:
    rules, wrong = parse_frameworks(text)
    assert len(rules) + len(wrong) <= len(text.splitlines())
    frameworks = Frameworks(rules)
    frameworks.layer_of(Symbolized(1, "ndis", "NdisAllocate"))
    frameworks.layer_of(Symbolized(1, "*", "["))
