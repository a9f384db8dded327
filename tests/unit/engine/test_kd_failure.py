"""One clear error for every way in which kd.exe does not get a target."""

import pytest

from kdleak import errors
from kdleak.engine.channels.kd_failure import link_lost, no_answer, why_it_ended

INIT = "Kernel debugger failed initialization"


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            f"Opened WinSock 2.0\nFailed to initialize socket.  Error 0n-2147467259\n{INIT}, "
            'HRESULT 0x80004005\n    "Call failed."\n',
            errors.PortInUse,
            "UDP port",
        ),
        (f"{INIT}, Win32 error 0n10048\n", errors.PortInUse, "UDP port"),
        (f"{INIT}, HRESULT 0x80072740\n", errors.PortInUse, "UDP port"),
        (
            f'{INIT}, Win32 error 0n87\n    "Invalid parameter."\n{INIT}, HRESULT 0x80070057\n',
            errors.BadConnection,
            "connection string",
        ),
        (
            f"Failed to open \\\\.\\COM9\n{INIT}, Win32 error 0n2\n",
            errors.NoTarget,
            "\\\\.\\COM9 (nothing is there)",
        ),
        (
            f"Failed to open \\\\.\\COM1\n{INIT}, Win32 error 0n5\n",
            errors.PortInUse,
            "another program has it open",
        ),
        (f"Failed to open 127.0.0.1\n{INIT}, HRESULT 0x80004005\n", errors.NoTarget, "127.0.0.1"),
        ("kd: cannot use argument '-b'\n", errors.TargetError, "cannot use argument"),
        ("kd: unable to attach\n", errors.NoTarget, "kd: unable to attach"),
        ("", errors.NoTarget, "it printed nothing"),
    ],
)
def test_the_debugger_ended(text, kind, words):
    error = why_it_ended(text, where="net:port=50000", live=True, exit_code=1)
    assert type(error) is kind
    assert words in str(error)
    assert "net:port=50000" in error.tried
    assert error.next_step


def test_a_dump_that_is_none():
    text = (
        "Could not match Dump File signature - invalid file format\n"
        f"Could not open dump file [C:\\x.dmp], Win32 error 0n87\n{INIT}, HRESULT 0x80070057\n"
    )
    error = why_it_ended(text, where="x.dmp", live=False, exit_code=1)
    assert type(error) is errors.TargetError
    assert "signature" in str(error)


def test_nobody_answers():
    error = no_answer("Waiting to reconnect...\n", where="net:port=5", live=True, seconds=30)
    assert isinstance(error, errors.NoTarget)
    assert "30 s" in str(error)
    assert "key" in error.next_step
    serial = no_answer("", where="com:port=COM1", live=True, seconds=30)
    assert "key" not in serial.next_step
    connected = no_answer("Connected to target\n", where="net:port=5", live=True, seconds=30)
    assert "did not stop" in str(connected)
    dump = no_answer("Loading Dump File\n", where="x.dmp", live=False, seconds=30)
    assert type(dump) is errors.TargetError


def test_no_secret_is_quoted():
    text = "Failed to open net:key=1a.2b.3c.4d\nnet:key=1a.2b.3c.4d\n"
    for error in (
        why_it_ended(text, where="net", live=True, exit_code=1, secrets=("1a.2b.3c.4d",)),
        no_answer(text, where="net", live=True, seconds=1, secrets=("1a.2b.3c.4d",)),
        link_lost("stopping net", "no answer", text, secrets=("1a.2b.3c.4d",)),
    ):
        assert "1a.2b" not in str(error)
        assert "net:key=..." in str(error)
