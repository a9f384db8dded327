"""The README is held to the code: its commands parse, its flags and files exist."""

import re
import shlex
from pathlib import Path

import click
import pytest

from kdleak.cli.main import cli
from kdleak.cli.target_options import NATIVE
from kdleak.errors import ExitCode
from kdleak.windbg import options
from kdleak.windbg.session import CHANNELS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "kdleak"
FENCES = re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)


def command_lines():
    for block in FENCES:
        for line in block.splitlines():
            words = line.split("#")[0].strip()
            match = re.match(r"(?:\.venv/bin/)?kdleak (.*)", words)
            if match:
                yield match.group(1)


def test_there_are_commands():
    assert len(list(command_lines())) >= 5


@pytest.mark.parametrize("line", sorted(set(command_lines())))
def test_commands_parse(line):
    name, *arguments = shlex.split(line)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    command.make_context(name, arguments)


def test_flags_exist():
    known = set()
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        known |= {flag for option in command.params for flag in option.opts}
    mentioned = set(re.findall(r"`(--[a-z-]+)", README))
    assert mentioned <= known
    assert len(mentioned) >= 5


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    tasks = re.search(r"^TASKS = (.*)$", makefile, flags=re.MULTILINE).group(1).split()
    for target in re.findall(r"\bmake ([a-z0-9]+)", README):
        if target not in {"and", "a"}:
            assert target in tasks, target


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_exit_codes_are_the_real_ones():
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    assert listed == {int(code) for code in ExitCode}


def test_pip_extras_exist():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r'"(?:kdleak|\.)\[([a-z]+)\]"', README):
        assert re.search(rf"^{extra} = ", project, flags=re.MULTILINE), extra


def windbg_lines():
    """What is typed at WinDbg's prompt, or to a plain Python: (command, arguments)."""
    for block in FENCES:
        for line in block.splitlines():
            match = re.match(r"(?:!py(?: -3\.9)?|python) -m kdleak\.(\w+) ?(.*)", line)
            if match:
                yield match.groups()
    yield from re.findall(r"`!py(?: -3\.9)? kdleak\.(\w+) ([^`]*)`", README)


def test_there_are_windbg_commands():
    assert {name for name, _ in windbg_lines()} == {"hunt", "rank", "restore"}
    assert len(list(windbg_lines())) >= 6


@pytest.mark.parametrize("line", sorted(set(windbg_lines())), ids=" ".join)
def test_windbg_commands_parse(line):
    name, arguments = line
    getattr(options, f"parse_{name}")(shlex.split(arguments))


def _section(title):
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


# Sentences of WinDbg, pykd-ext and Python, which we cannot hold to our code.
_OF_OTHERS = {
    "The call to LoadLibrary(pykd) failed",
    "No export py found",
    "script not found: kdleak.hunt",
    "No module named 'kdleak'",
    "No module named kdleak",
    "can not run !py command recursive",
}


def test_what_failures_say_is_what_the_code_says():
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| [^|]+ \|$", _section("In WinDbg"), re.MULTILINE)
    said = [text for cell in rows for text in re.findall(r"`([^`]+)`", cell) if " " in text]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    ours = [text for text in said if text not in _OF_OTHERS]
    assert len(ours) >= 5
    assert [text for text in ours if text not in sources] == []


def test_engines_are_the_real_ones():
    listed = re.findall(r"^\| `(\w+)` \|", _section("In WinDbg"), re.MULTILINE)
    assert sorted(listed) == sorted([NATIVE, *CHANNELS])


def test_the_file_for_py_without_m_is_shipped():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"scripts/kdleak.hunt" = "kdleak.hunt"' in project
    assert (ROOT / "scripts" / "kdleak.hunt").is_file()
