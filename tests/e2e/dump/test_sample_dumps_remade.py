"""The sample dumps are what today's practice machine writes, and their README says how."""

from __future__ import annotations

import re

from scripts.make_sample_dumps import DUMPS, FOLDER, SMALL, main


def test_made_again_they_are_the_same(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_readme_gives_the_commands():
    text = (FOLDER / "README.md").read_text("utf-8")
    joined = re.sub(r"\\\n\s*", "", text)
    small = re.search(r'SMALL="([^"]+)"', text)
    assert small is not None
    assert small[1].split() == list(SMALL)
    commands = re.findall(r"^kdleak practice --dump (\S+) (.+)$", joined, re.MULTILINE)
    given = {name: rest.replace("$SMALL", " ".join(SMALL)).split() for name, rest in commands}
    assert given == {name: list(options) for name, options in DUMPS.items()}
    for name in DUMPS:
        assert f"`{name}`" in text


def test_readme_gives_the_leak(all_truth):
    text = (FOLDER / "README.md").read_text("utf-8")
    for name, truth in all_truth.items():
        (leak,) = [site for site in truth["sites"] if site["function"] == "TrackRequest"]
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert f"{leak['outstanding']:,} blocks, {leak['bytes']:,} bytes" in row
        assert f"| {truth['ticks']} |" in row
        assert f"| {truth['build']} |" in row


def test_they_stay_small():
    sizes = [(FOLDER / name).stat().st_size for name in DUMPS]
    assert max(sizes) < 2_500_000
    assert sum(sizes) < 10_000_000
