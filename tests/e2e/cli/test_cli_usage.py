"""What is refused before anything is touched: every sentence, no key in any of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cli_rig import KEY, PROJECT, environment

NET = "net:port=50777,key="

BAD_CONNECTIONS = {
    "no key": "net:port=50777",
    "empty key": NET,
    "three parts": NET + KEY.rpartition(".")[0],
    "five parts": f"{NET}{KEY}.{KEY[:4]}",
    "overlong part": NET + "k3yp4rt1zzzzzzzzzzzzzzzzz." + KEY.partition(".")[2],
    "too large": NET + "zzzzzzzzzzzzz." + KEY.partition(".")[2],
    "bad characters": NET + KEY.replace("k3y", "k%y"),
    "not ascii": NET + KEY.replace("k3y", "k\u00b3y"),
    "semicolon": NET.replace(",", ";") + KEY,
    "blank": NET.replace(",", " ") + KEY,
    "mistyped option": NET.replace("key", "kex") + KEY,
    "key twice": f"{NET}{KEY},key={KEY}",
    "key alone": KEY,
    "unknown transport": f"usb:key={KEY}",
    "no transport": f"port=50777,key={KEY}",
    "port zero": f"net:port=0,key={KEY}",
    "port too large": f"net:port=65536,key={KEY}",
    "port no number": f"net:port={KEY},key={KEY}",
    "port endless": f"net:port={'9' * 5000},key={KEY}",
    "com without port": "com:baud=115200",
    "com bad baud": "com:port=COM1,baud=fast",
    "com bad ipport": "com:ipport=99999,port=127.0.0.1",
    "com unknown option": f"com:port=COM1,parity={KEY}",
    "nothing after": "net:",
}


@pytest.mark.parametrize("command", ["hunt", "rank", "restore"])
@pytest.mark.parametrize("connection", BAD_CONNECTIONS.values(), ids=BAD_CONNECTIONS)
def test_bad_connection(in_process, command, connection):
    code, out, err = in_process(command, "-k", connection)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "Next: " in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["hunt"],
        ["rank"],
        ["restore"],
        ["hunt", "-k"],
        ["hunt", "-k", ""],
        ["hunt", "-k", NET + KEY, "--tag", "Leaks"],
        ["hunt", "-k", NET + KEY, "--tag", ""],
        ["hunt", "-k", NET + KEY, "--tag", "0x0"],
        ["hunt", "-k", NET + KEY, "--tag", "0x1ffffffff"],
        ["hunt", "-k", NET + KEY, "--tag", "0x80000000"],
        ["hunt", "-k", NET + KEY, "--tag", "Le\u0142k"],
        ["hunt", "-k", NET + KEY, "--hits", "0"],
        ["hunt", "-k", NET + KEY, "--hits", "-1"],
        ["hunt", "-k", NET + KEY, "--hits", "1e3"],
        ["hunt", "-k", NET + KEY, "--seconds", "nan"],
        ["hunt", "-k", NET + KEY, "--seconds", "inf"],
        ["hunt", "-k", NET + KEY, "--seconds", "0"],
        ["hunt", "-k", NET + KEY, "--interval", "inf"],
        ["hunt", "-k", NET + KEY, "--interval", "nan"],
        ["hunt", "-k", NET + KEY, "--interval", "-3"],
        ["hunt", "-k", NET + KEY, "--snapshots", "1"],
        ["hunt", "-k", NET + KEY, "--timeout", "nan"],
        ["hunt", "-k", NET + KEY, "--timeout", "inf"],
        ["hunt", "-k", NET + KEY, "--timeout", "0"],
        ["hunt", "-k", NET + KEY, "--grace", "nan"],
        ["hunt", "-k", NET + KEY, "--grace", "-1"],
        ["hunt", "-k", NET + KEY, "--depth", "0"],
        ["hunt", "-k", NET + KEY, "--max-stop-share", "0"],
        ["hunt", "-k", NET + KEY, "--max-stop-share", "1.5"],
        ["hunt", "-k", NET + KEY, "--max-stop-share", "nan"],
        ["hunt", "-k", NET + KEY, "--hits-per-second", "nan"],
        ["hunt", "-k", NET + KEY, "--min-age", "nan"],
        ["hunt", "-k", NET + KEY, "--min-age", "-1"],
        ["hunt", "-k", NET + KEY, "--by", "luck"],
        ["hunt", "-k", NET + KEY, KEY],
        ["hunt", NET + KEY],
        ["hunt", f"--key={KEY}"],
        ["hunt", "-k", "net:port=50777", f"key={KEY}"],
        ["hunt", "-k", "net:port=50777,key=", KEY],
        ["hunt", "--top", KEY],
        ["rank", "-k", NET + KEY, "--pool", KEY],
        ["rank", "-k", NET + KEY, "--timeout", "nan", "--by", "used"],
        ["restore", "-k", NET + KEY, "--timeout", "inf"],
        ["restore", "-k", NET + KEY, "--value", "0x1ffffffff"],
        ["restore", "-k", NET + KEY, "--value", "-1"],
        ["restore", "-k", NET + KEY, "--value", KEY],
        ["practice"],
        ["practice", "--kdnet", "127.0.0.1:50777"],
        ["practice", "--kdnet", "127.0.0.1", "--key", KEY],
        ["practice", "--kdnet", "127.0.0.1:99999", "--key", KEY],
        ["practice", "--kdnet", f"127.0.0.1:{'9' * 5000}", "--key", KEY],
        ["practice", "--kdnet", f"net:host=127.0.0.1,port=50777,key={KEY}"],
        ["practice", "--kdnet", "127.0.0.1:50777", "--key", KEY.rpartition(".")[0]],
        ["practice", "--kdnet", "127.0.0.1:50777", "--serial", "tcp:4555", "--key", KEY],
        ["practice", "--serial", "4555"],
        ["practice", "--serial", "tcp:0"],
        ["practice", "--build", "7601", "--serial", "tcp:4555"],
        ["practice", "--serial", "tcp:4555", "--rate", "nan"],
        ["practice", "--serial", "tcp:4555", "--rate", "inf"],
        ["demo", "--interval", "nan"],
        ["demo", "--hits", "none"],
        ["find-it-for-me"],
        ["--verbose"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(KEY, "KEY").replace("9" * 5000, "9...")[:60],
)
def test_nonsense(in_process, arguments):
    code, out, err = in_process(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("kdleak: ")
    assert err.count("\n") == 1
    assert "Next: " in err


def test_kdleak_alone_is_help(in_process):
    code, out, err = in_process()
    assert "Commands:" in out + err
    assert code in (0, 2)


@pytest.mark.parametrize("command", ["", "hunt", "rank", "restore", "practice", "demo"])
def test_help(in_process, command):
    code, out, err = in_process(*filter(None, [command]), "--help")
    assert (code, err) == (0, "")
    assert out.startswith("Usage: kdleak")
    assert "Traceback" not in out


HEAVY = ("rich", "construct", "cryptography", "purepdb", "unicorn", "capstone", "kdleak.practice",
         "kdleak.kd", "kdleak.engine.native", "kdleak.hunt", "asyncio", "ssl")  # fmt: skip


def run_python(code, state, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(state),
        cwd=PROJECT,
    )


def test_help_imports_nothing_heavy(state):
    """Help must answer at once; what is loaded tells better than a clock on a busy machine."""
    code = (
        "import sys\n"
        "from kdleak.cli.entry import run\n"
        "code = run(['--help'])\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = run_python(code, state)
    assert done.returncode == 0
    loaded = done.stderr.splitlines()
    assert "click" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


BLOCK = (
    "import sys\n"
    "blocked = sys.argv[1]\n"
    "class Block:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.partition('.')[0] == blocked:\n"
    "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
    "sys.meta_path.insert(0, Block())\n"
    "from kdleak.cli.entry import main\n"
    "main(sys.argv[2:])\n"
)


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("click", ["--help"]),
        ("click", ["hunt", "-k", NET + KEY]),
        ("cryptography", ["hunt", "-k", NET + KEY, "--timeout", "1"]),
        ("construct", ["rank", "-k", NET + KEY, "--timeout", "1"]),
        ("unicorn", ["practice", "--serial", "tcp:45556"]),
    ],
)
def test_missing_package(state, package, arguments):
    done = run_python(BLOCK, state, package, *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"package {package}" in done.stderr
    assert "pip install" in done.stderr
    assert KEY not in done.stderr


def test_without_site_packages(state):
    """`python -S`: no third-party package at all."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "kdleak", "hunt"],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(state),
        cwd=PROJECT,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "kdleak[native]"' in done.stderr


def test_closed_standard_streams(state):
    """Started with nothing open, as some service managers do."""
    command = f"exec {sys.executable} -m kdleak hunt --tag Leak --explain <&- >&- 2>&-"
    done = subprocess.run(
        ["sh", "-c", command], check=False, timeout=30, env=environment(state), cwd=PROJECT
    )
    assert done.returncode == 0


def test_full_disk(state):
    command = f"exec {sys.executable} -m kdleak hunt --tag Leak --explain > /dev/full"
    done = subprocess.run(
        ["sh", "-c", command],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        env=environment(state),
        cwd=PROJECT,
    )
    assert done.returncode == 4
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", ["--help", "hunt --tag Leak --explain"])
def test_broken_pipe(state, arguments):
    command = f"{{ {sys.executable} -m kdleak {arguments}; echo $? >&2; }} | true"
    done = subprocess.run(
        ["sh", "-c", command],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        env=environment(state),
        cwd=PROJECT,
    )
    assert done.stderr == "0\n"
