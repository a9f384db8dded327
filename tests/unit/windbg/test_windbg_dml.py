"""Links in a report: whole names only, nothing from the target in a command."""

from __future__ import annotations

import re

from kdleak.model import Frame, Symbolized, SymbolKind
from kdleak.result import DisarmState, DisarmStatus
from kdleak.windbg.dml import Link, escape, frame_links, linked, repair_links
from kdleak.windbg.output import Output, fitting


def frame(module: str, name: str, offset: int = 0x31, address: int = 0xFFFFF80112345678) -> Frame:
    return Frame(address, 0, Symbolized(address, module, name, offset, SymbolKind.PDB))


def commands(dml: str) -> list[str]:
    return re.findall(r'<link cmd="([^"]*)">', dml)


def test_module_function_and_address():
    links = frame_links([frame("leakdrv", "Receive")])
    dml = linked("  0 fffff801`12345678 leakdrv!Receive+0x31", links)
    assert dml == (
        '  0 <link cmd="ub 0xfffff80112345678; u 0xfffff80112345678">fffff801`12345678</link> '
        '<link cmd="lmvm leakdrv">leakdrv</link>'
        '<link cmd="ln 0xfffff80112345678">!Receive+0x31</link>'
    )


def test_the_longer_name_wins_and_only_whole_names_count():
    links = [Link("nt!Ex", "ln 0x1"), Link("nt!ExAllocate", "ln 0x2")]
    assert commands(linked("nt!ExAllocate", links)) == ["ln 0x2"]
    assert commands(linked("nt!Ex", links)) == ["ln 0x1"]
    assert commands(linked("nt!ExFree int!Ex", links)) == []


def test_a_module_with_an_odd_name_is_in_no_command():
    for module in ("a;.reboot", "*", 'x" y', "a b", "a\u0430", "n" * 65):
        dml = linked(f"{module}!Receive+0x31", frame_links([frame(module, "Receive")]))
        assert commands(dml) == ["ln 0xfffff80112345678"]


def test_no_module_and_no_name():
    assert commands(linked("fffff801`12345678", frame_links([frame("", "")]))) == [
        "ub 0xfffff80112345678; u 0xfffff80112345678"
    ]
    dml = linked("leakdrv+0x31", frame_links([frame("leakdrv", "")]))
    assert commands(dml) == ["lmvm leakdrv", "ln 0xfffff80112345678"]


def test_everything_is_escaped():
    assert escape('<&">') == "&lt;&amp;&quot;&gt;"
    assert linked("a<b>&amp;", []) == "a&lt;b&gt;&amp;amp;"
    assert linked("", [Link("", "q")]) == ""
    evil = "operator<</link>"
    dml = linked(f"drv!{evil}", frame_links([frame("drv", evil, 0)]))
    assert dml.count("</link>") == dml.count("<link ") == 2


def test_only_debugger_commands_among_the_repairs():
    state = DisarmState(
        DisarmStatus.NOT_CONFIRMED,
        repair=(
            "ed nt!PoolHitTag 0xffffff0f",
            "dd nt!PoolHitTag L1    (must show ffffff0f)",
            "kdleak restore -k <the same connection>    (does both, from the journal)",
        ),
    )
    assert [link.command for link in repair_links(state)] == [
        "ed nt!PoolHitTag 0xffffff0f",
        "dd nt!PoolHitTag L1",
    ]


def test_what_a_stream_cannot_encode_is_shown_escaped():
    class Odd:
        encoding = "no such encoding"

    assert fitting(Odd(), "a\u0142") == "a\\u0142"
    assert fitting(object(), "a\u0142") == "a\\u0142"


def test_narration_shows_no_key():
    said = []

    class Pane:
        encoding = "utf-8"

        def write(self, text):
            said.append(text)

    Output(Pane(), Pane()).narrate("waiting for net:port=50000,key=1w2e.3r4t.5y6u.7i8o")
    assert said == ["waiting for net:port=50000,key=...\n"]
