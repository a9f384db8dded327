"""Marks, prompts and bounded memory: the text logic behind kd.exe's pipes."""

import pytest

from kdleak.engine.channels.kd_text import (
    Capture,
    find_mark,
    last_lines,
    new_mark,
    output_of,
    says_break_in,
    says_connected,
    says_lost,
    with_notice,
)
from kdleak.engine.channels.secrecy import secrets_of, where_of, without

MARK = "kdleak0123456789abcdef"


def between(text, command="r"):
    found = find_mark(text, MARK)
    return output_of(text, found, command), found.processor


@pytest.mark.parametrize(
    ("text", "output", "processor"),
    [
        (f"rax=1\n0: kd> {MARK}\n0: kd> ", "rax=1\n", 0),
        (f"rax=1\n11: kd> {MARK}\n11: kd> ", "rax=1\n", 11),
        (f"kd> {MARK}\nkd> ", "", None),
        (f"lkd> {MARK}\nlkd> ", "", None),
        (f"0: kd> rax=1\n0: kd> {MARK}\n0: kd> ", "rax=1\n", 0),
        (f"16.0: kd:x86> Built\n16.0: kd:x86> {MARK}\n16.0: kd:x86> ", "Built\n", 0),
        (f"16.0: kd> 16.0\n16.0: kd> {MARK}\n16.0: kd> ", "16.0\n", 0),
        (f"0: kd:x86> eax=1\n0: kd:x86> {MARK}\n0: kd:x86> ", "eax=1\n", 0),
        (f"0:000> {MARK}\n0:000> ", "", None),
        # a digit without a line end in front of the prompt is the target's
        (f"value 10: kd> {MARK}\n0: kd> ", "value 1", 0),
        # the debugger repeats what it reads
        (f"r\nrax=1\n0: kd> .echo {MARK}\n{MARK}\n0: kd> ", "rax=1\n", 0),
        # the prompt behind has not come
        (f"rax=1\n0: kd> {MARK}\n", "rax=1\n", None),
        (f"rax=1\n0: kd> {MARK}", "rax=1\n", None),
        # what looks like a prompt inside stays
        (f"a\n1: kd> b\n0: kd> {MARK}\n0: kd> ", "a\n1: kd> b\n", 0),
        (f"\n\n0: kd> {MARK}\n0: kd> ", "\n\n", 0),
    ],
)
def test_output_before_a_mark(text, output, processor):
    assert between(text) == (output, processor)


@pytest.mark.parametrize("text", ["", "rax=1\n0: kd> ", MARK[:-1], f".echo {MARK}\n", "\n"])
def test_no_mark(text):
    assert find_mark(text, MARK) is None


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_mark_cut_anywhere_is_found_once_whole(cut):
    text = f"rax=1\n0: kd> {MARK}\n0: kd> "
    found = find_mark(text[:cut], MARK)
    assert (found is not None) == (cut >= text.index(MARK) + len(MARK))
    if found is not None:
        assert found.prompt in ("", "0: kd> ")


def test_marks_differ_and_need_no_quoting():
    marks = {new_mark() for _ in range(100)}
    assert len(marks) == 100
    assert all(mark.isalnum() for mark in marks)


def test_capture_keeps_the_newest():
    capture = Capture(10)
    for piece in ("abc", "defgh", "ijklm"):
        capture.add(piece)
    assert capture.take() == ("defghijklm", 3)
    assert capture.take() == ("", 0)
    capture.add(25 * "x" + "0123456789")
    assert capture.take() == ("0123456789", 25)
    capture.add("abcdefghij")
    capture.add("Z")
    assert capture.take() == ("bcdefghijZ", 1)


def test_what_was_dropped_is_said():
    assert with_notice("whole\n", 0) == "whole\n"
    text = with_notice("rest of a line\nwhole\n", 100)
    assert text == "[kdleak: 115 characters dropped here]\nwhole\n"


def test_last_words():
    text = f"a\n0: kd> b\x1b[31m\n*****\n\n0: kd> {MARK}\n0: kd> .echo {MARK}\n0: kd> c\n0: kd> "
    assert last_lines(text) == "a / b?[31m / c"
    assert last_lines("") == ""
    assert last_lines(100 * "long ", width=9) == "long long"


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("Retry sending the same data packet for 64 times.\n", True),
        ("0: kd> Retry sending the same data packet for 64 times.\n", True),
        (
            "x\nThe transport connection between host kernel debugger and target Windows seems "
            "lost. please try resync with target",
            True,
        ),
        ("a driver says: Retry sending the same data packet for 64 times", False),
        ("rax=1\n", False),
    ],
)
def test_lost_links(text, lost):
    assert says_lost(text) is lost


def test_kinds_of_stops():
    assert says_break_in("*   You are seeing this message because you pressed either  *")
    assert not says_break_in("Break instruction exception - code 80000003 (first chance)")
    assert says_connected("Waiting to reconnect...\nConnected to target 10.0.0.1 on port 50000")
    assert not says_connected("Waiting to reconnect...\nnot Connected to anything")


@pytest.mark.parametrize(
    ("connection", "where", "secrets"),
    [
        ("net:port=50000,key=1a.2b.3c.4d", "net:port=50000", ("1a.2b.3c.4d",)),
        ("NET:port=5, KEY = 1a.2b.3c.4d ,target=pc", "net:port=5,target=pc", ("1a.2b.3c.4d",)),
        ("net:key=1a.2b.3c.4d", "net:port=50000", ("1a.2b.3c.4d",)),
        ("com:port=COM1,baud=115200", "com:port=COM1", ()),
        ("com:pipe,port=\\\\.\\pipe\\x,resets=0", "com:pipe,port=\\\\.\\pipe\\x", ()),
        ("com:ipport=4555,port=10.0.0.1", "com:ipport=4555,port=10.0.0.1", ()),
        ("usb:targetname=x", "usb:targetname=x", ()),
        ("", "", ()),
    ],
)
def test_a_key_is_never_where_of(connection, where, secrets):
    assert where_of(connection) == where
    assert secrets_of(connection) == secrets
    assert without(secrets, f"<{connection}>").count("1a.2b") == 0


def test_the_native_engine_shows_the_same():
    connection = pytest.importorskip("kdleak.kd.connection", exc_type=ImportError)
    for text in (
        "net:port=50000,key=1a.2b.3c.4d",
        "net:key=1a.2b.3c.4d,target=10.0.0.1",
        "com:port=COM1,baud=115200",
        "com:pipe,port=\\\\.\\pipe\\x,resets=0,reconnect",
        "com:ipport=4555,port=10.0.0.1",
    ):
        assert where_of(text) == connection.parse_connection(text).where
