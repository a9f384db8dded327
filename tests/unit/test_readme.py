"""The README is held to the code: its commands parse, its flags and files exist."""

import re
import shlex
from pathlib import Path

import click
import pytest

from kdleak.cli.main import cli
from kdleak.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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
