"""The user's own tag lists: found where debuggers keep them, asked in the right order."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdleak.blaming.pooltag_file import POOLTAG_VARIABLE, load_tag_lists, owner_of
from kdleak.errors import UsageError
from kdleak.tags import PoolTag

LIST = """\
// a list made for this test
Leak - leaky.sys   - Records of the test driver
Lea? - other.sys   - Anything that starts with Lea
Q??? - <unknown>   - One of many
Qab* - wild.sys    - A narrower one
Twic - one.sys     - First line
Twic - two.sys     - Second line
"""


def put(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_bytes(text.encode().replace(b"\n", b"\r\n"))
    return file


def owner(lists, tag: str) -> str:
    found = lists.owner_of(PoolTag.parse(tag))
    return "" if found is None else str(found)


@pytest.fixture
def given(tmp_path):
    return load_tag_lists(put(tmp_path, "pooltag.txt", LIST), environ={})


def test_owner_in_one_line(given) -> None:
    assert owner(given, "Leak") == "leaky.sys - Records of the test driver"
    assert owner(given, "Nope") == ""


def test_best_wildcard(given) -> None:
    assert owner(given, "Leaf") == (
        "other.sys - Anything that starts with Lea (the list has 'Lea?')"
    )
    assert owner(given, "Qabc").startswith("wild.sys - ")
    assert owner(given, "Qxyz").startswith("<unknown> - ")
    assert given.owner_of(PoolTag.parse("Qabc")).wildcard
    assert not given.owner_of(PoolTag.parse("Leak")).wildcard


def test_more_lines_are_counted(given) -> None:
    assert owner(given, "Twic") == "one.sys - First line (and 1 more line)"


def test_protected_bit_and_short_tags(tmp_path) -> None:
    lists = load_tag_lists(put(tmp_path, "pooltag.txt", "Ab   - a.sys - Short\n" * 3), environ={})
    assert owner(lists, "Ab") == "a.sys - Short (and 2 more lines)"
    assert lists.owner_of(PoolTag.from_bytes(b"Ab \xa0")) is not None


def test_bytes_that_do_not_print_are_never_guessed(tmp_path) -> None:
    lists = load_tag_lists(put(tmp_path, "pooltag.txt", "A.b. - a.sys - Dots\n"), environ={})
    assert lists.owner_of(PoolTag.from_bytes(b"A\x01b\x02")) is None
    assert lists.owner_of(PoolTag.parse("A.b.")) is not None


def test_local_list_beside_is_asked_first(tmp_path) -> None:
    file = put(tmp_path, "pooltag.txt", LIST)
    local = put(tmp_path, "localtag.txt", "Leak - mine.sys - My own\nTw?? - x.sys - Wild\n")
    lists = load_tag_lists(file, environ={})
    assert lists.files == (local, file)
    found = lists.owner_of(PoolTag.parse("Leak"))
    assert (found.binary, found.source) == ("mine.sys", local)
    # A wildcard there does not hide what the other list says of this very tag.
    assert lists.owner_of(PoolTag.parse("Twic")).binary == "one.sys"


def test_folder_may_be_named(tmp_path) -> None:
    put(tmp_path, "pooltag.txt", LIST)
    assert owner(load_tag_lists(tmp_path, environ={}), "Leak")


def test_environment_variable(tmp_path) -> None:
    file = put(tmp_path, "my.txt", LIST)
    lists = load_tag_lists(environ={POOLTAG_VARIABLE: str(file)}, windows=False)
    assert lists.files == (file,)


def test_utf_16_as_an_editor_saves_it(tmp_path) -> None:
    file = tmp_path / "pooltag.txt"
    file.write_bytes(LIST.encode("utf-16"))
    assert owner(load_tag_lists(file, environ={}), "Leak")


@pytest.mark.parametrize("architecture", ["x64", "x86", "arm64"])
def test_where_the_windows_kits_put_it(tmp_path, architecture) -> None:
    folder = tmp_path / "pf86" / "Windows Kits" / "10" / "Debuggers" / architecture / "triage"
    file = put(folder, "pooltag.txt", LIST)
    environ = {"ProgramFiles(x86)": str(tmp_path / "pf86"), "ProgramFiles": str(tmp_path / "pf")}
    assert load_tag_lists(environ=environ, windows=True).files == (file,)
    assert load_tag_lists(environ=environ, windows=False).files == ()


def test_where_the_store_puts_windbg_newest_first(tmp_path) -> None:
    apps = tmp_path / "WindowsApps"
    for version in ("1.2306.1401.0", "1.2402.24001.0"):
        package = apps / f"Microsoft.WinDbg_{version}_x64__8wekyb3d8bbwe"
        put(package / "amd64" / "triage", "pooltag.txt", LIST)
    lists = load_tag_lists(environ={"ProgramFiles": str(tmp_path)}, windows=True)
    assert ["1.2402" in str(file) for file in lists.files] == [True]


def test_beside_the_debugger_in_use(tmp_path) -> None:
    put(tmp_path / "other" / "Windows Kits/10/Debuggers/x64/triage", "pooltag.txt", LIST)
    file = put(tmp_path / "mine" / "triage", "pooltag.txt", LIST)
    environ = {"ProgramFiles": str(tmp_path / "other")}
    debugger = tmp_path / "mine" / "kd.exe"
    assert load_tag_lists(debugger=debugger, environ=environ, windows=True).files == (file,)


def test_nothing_anywhere(tmp_path) -> None:
    lists = load_tag_lists(environ={"ProgramFiles": str(tmp_path)}, windows=True)
    assert (lists.files, lists.remarks) == ((), ())
    assert lists.owner_of(PoolTag.parse("Leak")) is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.txt", None, "No such file|File not found|cannot find"),
        ("empty.txt", b"", "no line of it"),
        ("binary.txt", bytes(range(256)) * 20, "no line of it"),
        ("huge.txt", b" " * ((16 << 20) + 1), "larger than 16 MB"),
    ],
)
def test_a_file_that_is_no_list_is_refused(tmp_path, name, content, said) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        load_tag_lists(file, environ={})


def test_unreadable_list_that_was_only_found_is_a_remark(tmp_path) -> None:
    file = tmp_path / "triage" / "pooltag.txt"
    file.parent.mkdir()
    file.write_bytes(b" " * ((16 << 20) + 1))
    lists = load_tag_lists(debugger=tmp_path / "kd.exe", environ={}, windows=False)
    assert lists.files == ()
    assert len(lists.remarks) == 1


def test_one_function_for_others(tmp_path, monkeypatch) -> None:
    from kdleak.blaming import pooltag_file

    monkeypatch.setenv(POOLTAG_VARIABLE, str(put(tmp_path, "pooltag.txt", LIST)))
    pooltag_file._default_lists.cache_clear()
    try:
        assert owner_of(PoolTag.parse("Leak")).binary == "leaky.sys"
        assert owner_of(PoolTag.parse("Nope")) is None
    finally:
        pooltag_file._default_lists.cache_clear()
