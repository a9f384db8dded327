"""What grew between dumps: order, boots, gaps, and both reports of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import kdleak.report as reports
from kdleak.dumped import DumpMoment, compare_dumps, moment_of
from kdleak.logged.moment import Moment
from kdleak.model import (
    Architecture,
    Pool,
    PoolCounters,
    PoolSnapshot,
    TagUsage,
    TargetInfo,
)
from kdleak.report.diff_json import diff_json
from kdleak.report.diff_text import render_diff, span, wall_clock
from kdleak.result import RankBy
from kdleak.tags import PoolTag

BASE = 0xFFFFF80012340000
NOON = 1_772_366_400.0  # 2026-03-01 12:00:00 UTC
LEAK, GOOD = PoolTag.parse("Leak"), PoolTag.parse("Good")
SCHEMA = json.loads(
    (Path(reports.__file__).parent / "schema" / "diff.schema.json").read_text(encoding="utf-8")
)


def target(base: int = BASE, build: int = 22621, description: str = "Windows") -> TargetInfo:
    return TargetInfo(Architecture.X64, 8, build, False, 2, base, description)


def usage(tag: PoolTag, blocks: int, size: int, freed: int = 0) -> TagUsage:
    return TagUsage(tag, nonpaged=PoolCounters(blocks + freed, freed, blocks * size))


def dump(
    name: str,
    hours: float,
    leaked: int,
    *,
    base: int = BASE,
    gaps: tuple[str, ...] = (),
    description: str = "Windows",
    clock: float | None = 0.0,
) -> DumpMoment:
    rows = (usage(LEAK, leaked, 320), usage(GOOD, 50, 1800, freed=int(1000 * hours)))
    return DumpMoment(
        name,
        target(base, description=description),
        PoolSnapshot(0.0, rows, "tag tables of 2 processors", gaps),
        Moment(
            uptime=hours * 3600,
            target_clock=None if clock is None else NOON + hours * 3600,
            build=22621,
            kernel_base=base or None,
        ),
    )


def test_growth_between_two_dumps():
    found = compare_dumps([dump("a.dmp", 1, 100), dump("b.dmp", 3, 2100)])
    assert found.rank.by is RankBy.GROWTH
    assert found.rank.suspect is not None
    assert (found.rank.suspect.tag, found.rank.suspect.growth_bytes) == (LEAK, 2000 * 320)
    assert found.rank.seconds == 7200
    assert found.rank.suspect.bytes_per_hour == 2000 * 320 / 2
    assert found.rank.gaps == ()
    assert "'Leak' (nonpaged) grew by 640,000 bytes (+2,000 blocks) in 7,200 s" in found.rank.reason


def test_named_in_the_wrong_order():
    found = compare_dumps([dump("b.dmp", 3, 2100), dump("a.dmp", 1, 100)])
    assert [one.name for one in found.dumps] == ["a.dmp", "b.dmp"]
    assert found.rank.suspect is not None
    assert found.rank.suspect.growth_blocks == 2000
    assert found.rank.gaps == ()
    assert found.remarks == ("compared in order of time, not as they were named: a.dmp, b.dmp",)


def test_no_time_in_the_headers_keeps_the_order_given():
    found = compare_dumps([dump("x.dmp", 3, 100, clock=None), dump("y.dmp", 3.5, 200, clock=None)])
    assert [one.name for one in found.dumps] == ["x.dmp", "y.dmp"]
    assert found.rank.seconds == 1800


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (dump("b.dmp", 3, 2100, base=BASE + (1 << 21)), "nt was loaded elsewhere"),
        (
            DumpMoment(
                "b.dmp",
                target(),
                PoolSnapshot(0.0, (usage(LEAK, 2100, 320),), "tables"),
                Moment(uptime=60.0, target_clock=NOON + 9e5, build=22621, kernel_base=BASE),
            ),
            "the machine was restarted",
        ),
    ],
    ids=["another base", "shorter uptime"],
)
def test_another_boot_shows_no_growth(later: DumpMoment, words: str):
    found = compare_dumps([dump("a.dmp", 1, 100), later])
    assert found.rank.by is RankBy.USED
    assert words in found.rank.gaps[0]
    assert "by what they hold in the last dump" in found.rank.gaps[0]
    assert found.rank.rows[0].last.outstanding == 2100
    text = render_diff(found)
    assert "Growth" not in text
    assert words in " ".join(text.split())


def test_gaps_of_a_dump_leave_out_what_it_cannot_tell():
    torn = DumpMoment(
        "b.dmp",
        target(),
        PoolSnapshot(0.0, (usage(LEAK, 2100, 320),), "tables", ("40 rows are unreadable",)),
        dump("b.dmp", 3, 0).moment,
    )
    found = compare_dumps([dump("a.dmp", 1, 100), torn])
    assert [row.tag for row in found.rank.rows] == [LEAK]
    assert any("tag 'Good' left out" in gap for gap in found.rank.gaps)
    assert "b.dmp: 40 rows are unreadable" in found.rank.gaps


def test_an_unknown_kernel_base_is_told():
    found = compare_dumps([dump("a.dmp", 1, 100, base=0), dump("b.dmp", 3, 2100, base=0)])
    assert found.rank.by is RankBy.GROWTH
    assert "nothing proves that it is one boot" in found.rank.gaps[0]


def test_four_dumps_tell_steady_growth_and_three_do_not():
    dumps = [dump("a", 1, 100), dump("b", 2, 1100), dump("c", 3, 2100), dump("d", 4, 3100)]
    found = compare_dumps(dumps)
    assert found.rank.reason.endswith("steadily over 4 dumps.")
    assert found.rank.rows[0].bytes_series == (32_000, 352_000, 672_000, 992_000)
    fewer = compare_dumps(dumps[:3]).rank
    assert fewer.suspect == fewer.rows[0]
    assert fewer.reason.endswith("more dumps in between would tell growth from chance.")


def test_only_one_pool():
    found = compare_dumps([dump("a", 1, 100), dump("b", 2, 1100)], pool=Pool.PAGED)
    assert found.rank.rows == ()


def test_moment_of_a_header():
    class Facts:
        system_time = 134_168_400_000_000_000
        uptime = 36_000_000_000

    moment = moment_of(target(), Facts())
    assert moment == Moment(3600.0, 1_772_366_400.0, None, 22621, BASE)
    Facts.system_time = Facts.uptime = None
    assert moment_of(target(0), Facts()) == Moment(build=22621)


def test_json_fits_its_schema_and_says_what_is_absent():
    document = json.loads(diff_json(compare_dumps([dump("a", 1, 100), dump("b", 2, 1100)])))
    jsonschema.validate(document, SCHEMA)
    assert document["rows"][document["suspect"]]["tag"]["text"] == "Leak"
    assert document["dumps"][0]["taken_at"] == NOON + 3600
    restarted = [dump("a", 1, 100, base=0, clock=None), dump("b", 0.5, 100, base=0, clock=None)]
    document = json.loads(diff_json(compare_dumps(restarted)))
    jsonschema.validate(document, SCHEMA)
    assert document["seconds"] is None
    assert document["absent"]["seconds"] == "growth could not be measured, see gaps"
    assert document["dumps"][0]["absent"] == {
        "kernel_base": "nt was not found",
        "taken_at": "the header does not tell",
    }


def test_text_shows_both_moments_and_harmless_names():
    found = compare_dumps(
        [dump("a.dmp", 1, 100, description="Win\x1b[31mdows"), dump("b.dmp", 100, 1100)]
    )
    text = render_diff(found)
    assert "\x1b" not in text
    assert "a.dmp -> b.dmp" in text
    assert "up for 4 d 04:00:00" in text
    assert "4 d 03:00:00 between, by the target's uptime." in text
    assert "+320,000" in text
    assert "  1 holds as much as before." in text
    assert "Next" in text
    assert "  kdleak sites Leak -z b.dmp" in text
    assert "  kdleak find Leak -z b.dmp" in text


def test_text_leaves_out_what_did_not_change():
    before = PoolSnapshot(0.0, (usage(LEAK, 100, 320), usage(GOOD, 5, 64)), "tables")
    after = PoolSnapshot(0.0, (usage(LEAK, 900, 320), usage(GOOD, 5, 64)), "tables")
    found = compare_dumps(
        [
            replace(dump("a.dmp", 1, 100), snapshot=before),
            replace(dump("b.dmp", 2, 100), snapshot=after),
        ]
    )
    text = render_diff(found, files={"b.dmp": "my dumps/b.dmp"})
    assert "Good" not in text
    assert "  1 holds as much as before." in text
    assert '-z "my dumps/b.dmp"' in text


def test_why_it_is_no_comparison_is_told_first():
    text = render_diff(compare_dumps([dump("a.dmp", 1, 100), dump("b.dmp", 0.5, 90, base=4096)]))
    assert text.index("note: ") < text.index("holds most")


def test_times_for_people():
    assert wall_clock(NOON) == "2026-03-01 12:00:00 UTC"
    assert "impossible" in wall_clock(1e30)
    assert (span(5.25), span(3600), span(90_061)) == ("5.25 s", "01:00:00", "1 d 01:01:01")
