"""Reports of the code that asks for a tag: text for people, JSON valid against its schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import kdleak.report
from kdleak.blaming.pooltag_file import TagOwner
from kdleak.found import SiteKind, SiteSearch, TagSite
from kdleak.model import Architecture, Symbolized, SymbolKind, TargetInfo
from kdleak.report.palette import ANSI
from kdleak.report.sites_json import sites_json
from kdleak.report.sites_subject import SitesSubject
from kdleak.report.sites_text import render_sites, verdict
from kdleak.tags import PoolTag

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads(
    (Path(kdleak.report.__file__).parent / "schema" / "sites.schema.json").read_text("utf-8")
)
LEAK = PoolTag.parse("Leak")
BASE = 0xFFFFF80020000000


def site(kind, module, offset, **fields) -> TagSite:
    name = fields.pop("name", "Function")
    symbol = Symbolized(BASE + offset, module, name, offset, SymbolKind.PDB)
    return TagSite(kind, module, BASE + offset, symbol, **fields)


def call(module: str, offset: int, *, frees: bool = False, **fields) -> TagSite:
    routine = "nt!ExFreePoolWithTag" if frees else "nt!ExAllocatePool2"
    return site(
        SiteKind.CALL,
        module,
        offset,
        instruction="mov edx, 0x6b61654c" if frees else "mov r8d, 0x6b61654c",
        routine=routine,
        call_address=BASE + offset + 8,
        frees=frees,
        **fields,
    )


SITES = (
    call("leakydrv", 0x10),
    call("leakydrv", 0x40, frees=True),
    call("other", 0x20, frees=True),
    site(SiteKind.NEAR_CALL, "third", 0x30, instruction="mov eax, 0x6b61654c",
         routine="nt!ExAllocatePool2", call_address=BASE + 0x60),
    site(SiteKind.OCCURRENCE, "third", 0x50, instruction="cmp ecx, 0x6b61654c"),
    site(SiteKind.OCCURRENCE, "third", 0x70, name=""),
)  # fmt: skip
SEARCH = SiteSearch(LEAK, SITES, 7, ("paged: 12 of 40 pages of .PAGE cannot be read",), 3)
TARGET = TargetInfo(Architecture.X64, 8, 22621, live=False, processors=2, kernel_base=BASE)
OWNER = TagOwner("Lea?", "leaky.sys", None, Path("pooltag.txt"), 2)
SUBJECT = SitesSubject("MEMORY.DMP", TARGET, "dump")
SUBJECTS = {
    "plain": SUBJECT,
    "owner": replace(SUBJECT, owner=OWNER, tag_lists=(OWNER.source,)),
    "unknown": replace(SUBJECT, tag_lists=(OWNER.source,)),
    "limited": replace(SUBJECT, only=("leakydrv",), data_sections=False),
}
SEARCHES = {
    "found": SEARCH,
    "nothing": SiteSearch(LEAK, (), 7),
    "weak": replace(SEARCH, sites=SITES[3:]),
    "frees": replace(SEARCH, sites=SITES[1:3]),
}


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("search", SEARCHES)
def test_valid_against_the_shipped_schema(search, subject) -> None:
    text = sites_json(SEARCHES[search], SUBJECTS[subject])
    assert text.isascii()
    document = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    for part in (document, *document["sites"]):
        nulls = {name for name, value in part.items() if value is None}
        assert nulls == set(part.get("absent", {}))


def test_the_schema_describes_every_property() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    document = json.loads(sites_json(SEARCH, SUBJECTS["owner"]))
    assert set(document) - {"absent"} == set(SCHEMA["required"])
    assert set(document["owner"]) - {"absent"} == set(SCHEMA["$defs"]["owner"]["required"])
    assert set(document["sites"][0]) - {"absent"} == set(SCHEMA["$defs"]["site"]["required"])


def test_json_says_what_was_found() -> None:
    document = json.loads(sites_json(SEARCH, SUBJECTS["owner"]))
    assert document["drivers"] == ["leakydrv", "other"]
    assert document["occurrences_left_out"] == 3
    first, _, _, near, compare, data = document["sites"]
    assert (first["kind"], first["address"], first["call_address"], first["frees"]) == (
        "call", "0xfffff80020000010", "0xfffff80020000018", False,
    )  # fmt: skip
    assert (near["kind"], near["routine"]) == ("near_call", "nt!ExAllocatePool2")
    assert (compare["routine"], compare["instruction"]) == (None, "cmp ecx, 0x6b61654c")
    assert (data["instruction"], data["symbol"]) == (None, None)
    assert document["owner"]["wildcard"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_text_fits_the_width(width) -> None:
    text = render_sites(SEARCH, SUBJECTS["owner"], width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.endswith("\n")


def test_text_shows_the_strongest_first() -> None:
    text = render_sites(SEARCH, SUBJECTS["owner"])
    order = [
        "Calls with this tag are in leakydrv (1 allocates, 1 frees), other (1 frees).",
        "Known owner: leaky.sys (the list has 'Lea?')",
        "leakydrv!Function+0x10  fffff800`20000010",
        "mov r8d, 0x6b61654c -> nt!ExAllocatePool2 at +0x18",
        "nt!ExFreePoolWithTag at +0x48 (frees)",
        "Near a call",
        "Occurrences",
        "cmp ecx, 0x6b61654c",
        "third+0x70",
        "      data\n",
        "... 3 more",
        "Looked through 7 images",
        "missing: paged: 12 of 40 pages of .PAGE cannot be read.",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_verdicts() -> None:
    assert verdict(SEARCHES["nothing"]) == "No code with this tag was found."
    assert verdict(SEARCHES["weak"]).endswith("its four bytes stand in third.")
    assert verdict(SEARCHES["frees"]).endswith("who allocates was not found.")
    many = tuple(call(f"driver{number}", 0x10) for number in range(9))
    assert "and 3 more modules" in verdict(replace(SEARCH, sites=many))


def test_how_the_search_was_limited_is_said() -> None:
    assert "code only" in render_sites(SEARCH, SUBJECTS["limited"])
    assert "code only" not in render_sites(SEARCH, SUBJECT)
    assert "--pooltag" in render_sites(SEARCH, SUBJECT)
    assert "does not have this tag" in render_sites(SEARCH, SUBJECTS["unknown"])


def test_only_so_many_are_shown() -> None:
    many = tuple(call("leakydrv", 0x10 * number) for number in range(50))
    text = render_sites(replace(SEARCH, sites=many), SUBJECT, top=10)
    assert text.count("-> nt!ExAllocatePool2") == 10
    assert "... 40 more" in text


def test_names_from_the_target_cannot_harm_a_terminal() -> None:
    evil = call("bad\x1b[2J\nmodule", 0x10, name="\x1b]0;x\x07")
    text = render_sites(replace(SEARCH, sites=(evil,)), SUBJECT)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\x1b[2J" in text


def test_colour_is_optional() -> None:
    assert "\x1b[" in render_sites(SEARCH, SUBJECT, style=ANSI)
    assert "\x1b" not in render_sites(SEARCH, SUBJECT)


def test_string_literals_are_called_that() -> None:
    literal = site(SiteKind.OCCURRENCE, "leakydrv", 0x6C, name="??_C@_0BM@LEAMGEFK@leaky?5?$AA@")
    text = render_sites(replace(SEARCH, sites=(literal,)), SUBJECT)
    assert "leakydrv!`string'+0x6c  fffff800`2000006c" in text
    assert "LEAMGEFK" not in text
