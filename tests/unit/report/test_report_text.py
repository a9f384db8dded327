"""Text reports: verdict first, safety line last, nothing from the target does harm."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from parse_samples import LOGRANKS, PARSED
from report_samples import GOLDEN, HUNTS, RANKS, RESTORES

from kdleak.dialect.log import parse_log
from kdleak.logged import contents_of_log
from kdleak.model import Frame, Stack, Symbolized
from kdleak.report.logged_text import render_logged_rank
from kdleak.report.page import column_widths, signed, unknown
from kdleak.report.palette import ANSI, PLAIN, Palette
from kdleak.report.parse_text import render_contents
from kdleak.report.sanitise import fit, sanitise
from kdleak.report.text import render_hunt, render_rank, render_restore
from kdleak.result import DisarmState, DisarmStatus

TEXTS = {
    **{f"hunt_{name}": (render_hunt, result) for name, result in HUNTS.items()},
    **{f"rank_{name}": (render_rank, result) for name, result in RANKS.items()},
    **{f"restore_{name}": (render_restore, result) for name, result in RESTORES.items()},
    **{f"parse_{name}": (render_contents, contents) for name, contents in PARSED.items()},
    **{f"logrank_{name}": (render_logged_rank, rank) for name, rank in LOGRANKS.items()},
}


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str, request) -> None:
    render, result = TEXTS[name]
    path = GOLDEN / f"{name}.txt"
    assert render(result) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [1, 40, 80, 100, 200])
@pytest.mark.parametrize("name", TEXTS)
def test_lines_fit_the_width(name: str, width: int) -> None:
    render, result = TEXTS[name]
    lines = render(result, width=width).splitlines()
    whole = {
        "  " + line
        for line in getattr(result, "disarm", DisarmState(DisarmStatus.NOT_NEEDED)).repair
    }
    for line in lines[:-1]:
        assert len(line) <= max(40, width) or line in whole or line.startswith("  kdleak"), line


@pytest.mark.parametrize("name", [name for name in TEXTS if name.startswith(("hunt", "restore"))])
@pytest.mark.parametrize("width", [40, 100])
def test_the_safety_line_is_the_last_and_whole(name: str, width: int) -> None:
    render, result = TEXTS[name]
    state = result.disarm if name.startswith("hunt") else result.state
    assert render(result, width=width).splitlines()[-1] == sanitise(state.sentence())


def test_the_exact_safety_line() -> None:
    last = render_hunt(HUNTS["accused"]).splitlines()[-1]
    assert last == "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."


def test_an_unconfirmed_disarm_shows_the_repair_above() -> None:
    lines = render_hunt(HUNTS["not_confirmed"]).splitlines()
    assert lines[-1].startswith("DISARM NOT CONFIRMED")
    assert "  ed nt!PoolHitTag 0xffffff0f" in lines[-5:]


@pytest.mark.parametrize("name", TEXTS)
def test_colour_changes_nothing_but_colour(name: str) -> None:
    render, result = TEXTS[name]
    plain, coloured = render(result), render(result, style=ANSI)
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert coloured != plain


EVIL = "drv\x1b]0;owned\x07\n\u202e\u200bname\x9b2J\r"


def test_names_from_the_target_are_harmless() -> None:
    result = HUNTS["accused"]
    symbol = Symbolized(0xFFFFF80000001234, EVIL, EVIL, 5)
    frame = Frame(symbol.address, 0, symbol)
    site = replace(result.sites[0], frame=frame, blame=frame, stack=Stack((frame,)))
    evil = replace(
        result,
        sites=(site,),
        accused=site,
        verdict=(f"{symbol} leaks",),
        where=EVIL,
        remarks=(EVIL,),
        error=EVIL,
    )
    text = render_hunt(evil)
    harmful = [char for char in text if char != "\n" and not char.isprintable()]
    assert harmful == []
    assert "\\x1b]0;owned" in text
    assert "\\u202e" in text
    assert len(text.splitlines()) == text.count("\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nt!ExAllocatePool2+0x6e", "nt!ExAllocatePool2+0x6e"),
        ("a\nb", "a\\x0ab"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202e", "\\u202e"),
        ("\U000e0001", "\\U000e0001"),
        ("\ud800", "\\ud800"),
        ("treiber_\u00e4", "treiber_\u00e4"),
    ],
)
def test_sanitise(text: str, shown: str) -> None:
    assert sanitise(text) == shown
    assert sanitise(sanitise(text)) == shown


def test_small_pieces() -> None:
    assert fit("abcdef", 5) == "ab..."
    assert fit("abc", 1) == "abc"
    assert (signed(0), signed(1234), signed(-5)) == ("0", "+1,234", "-5")
    assert (unknown(5, 0), unknown(5, 2), unknown(0, 2)) == ("5", "5+?", "?")
    assert column_widths(("a", "bbb"), [("xx", "y")]) == (2, 3)
    assert Palette(bad="1").paint("bad", "") == ""
    assert PLAIN.paint("bad", "x") == "x"


def test_a_narrow_ranking_drops_columns_but_not_growth() -> None:
    narrow = render_rank(RANKS["growth"], width=60)
    assert "Growth" in narrow
    assert "steady" in narrow
    assert "Bytes/h" in narrow
    assert "Allocs" not in narrow
    assert "Bytes/h" in render_rank(RANKS["growth"], width=120)


def test_more_sites_than_shown_are_counted() -> None:
    assert "(top 1 of 3)" in render_hunt(HUNTS["accused"], top=1)


def test_a_ranking_that_ended_early_says_why() -> None:
    stopped = replace(
        RANKS["growth"],
        stop=HUNTS["foreign_stop"].stop,
        stop_stack=HUNTS["foreign_stop"].stop_stack,
        gaps=("row 7 of processor 1",),
    )
    text = render_rank(stopped, top=0)
    assert "left stopped" in text
    assert "otherdrv!Assert+0x10" in text
    assert "missing: row 7 of processor 1" in text
    assert "... 1 more" in text
    assert "Interrupted" in render_rank(replace(stopped, interrupted=True))


def test_a_restore_says_what_it_did_besides() -> None:
    some = RESTORES["restored"]
    text = render_restore(replace(some, passed_hits=2, leave_stopped=True, items=()))
    assert "The journal has no entry for this target." in text
    assert "2 breaks of the armed tag let go." in text
    assert "left stopped" in text
    one = render_restore(replace(some, passed_hits=1, remarks=("bad.json is damaged",)))
    assert "1 break of" in one
    assert "- bad.json is damaged" in one


def test_what_a_log_says_is_harmless() -> None:
    frame = "fffff801`2c3d5b92 fffff88e`04c1c04e nt!Kx\x1b]0;owned\x07+0x1"
    log = f"{EVIL}\n0: kd> {EVIL}\n\u202ehidden\n0: kd> k\nChild-SP RetAddr Call Site\n{frame}\n"
    text = render_contents(contents_of_log(parse_log(log), EVIL), all_unparsed=True)
    assert [char for char in text if char != "\n" and not char.isprintable()] == []
    assert "\\u202ehidden" in text


def test_a_key_in_a_log_is_not_shown() -> None:
    text = render_contents(PARSED["mail"])
    assert "s3cr3tp4rt1" not in text
    assert "key=..." in text


def test_all_that_was_not_understood_only_when_asked_for() -> None:
    log = parse_log("".join(f"prose number {number}\n" for number in range(50)))
    contents = contents_of_log(log, "prose.txt")
    short, whole = render_contents(contents), render_contents(contents, all_unparsed=True)
    assert "prose number 19\n" in short
    assert "prose number 20\n" not in short
    assert "... 30 more (--unparsed shows all)" in short
    assert "prose number 49\n" in whole
