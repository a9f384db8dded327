"""Hunts and rankings of logs: what they show comes out, and what they do not show stays unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdleak.dialect.log import parse_log
from kdleak.dialect.source import decode
from kdleak.logged import (
    Moment,
    TagState,
    contents_of_log,
    hunt_of_log,
    hunts_of_log,
    rank_of_snapshots,
    seconds_between,
    snapshots_of_log,
)
from kdleak.model import HitKind, Pool
from kdleak.result import Judgement, RankBy, Trend
from kdleak.tags import PoolTag

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
CORPUS = Path(__file__).parents[2] / "corpus"
LEAK = PoolTag.parse("Leak")


def transcript(name):
    return parse_log(decode((TRANSCRIPTS / f"dbgeng-poolhittag-{name}.txt").read_bytes()))


def sites_of(hunt):
    return [(str(site.frame.symbol), site.allocs, site.frees) for site in hunt.sites]


# --- the two recorded sessions as hunts


def test_amd64_session():
    hunt = hunt_of_log(transcript("amd64"))
    assert str(hunt.tag) == "File"
    # Twelve hits were looked at; at the thirteenth the tag was taken back.
    assert "".join(hit.kind.value[0] if hit.kind else "?" for hit in hunt.hits) == "afaf?fafafaf?"
    assert (hunt.allocs, hunt.frees, hunt.unknown_kind, hunt.without_site) == (5, 6, 2, 1)
    assert sites_of(hunt) == [
        ("nt!ObpAllocateObject+0xf9", 3, 0),
        ("nt!ObpAllocateObject", 1, 0),  # kc: no address, so not the same for certain
        ("nt!ObpDeallocateObject+0x14e", 0, 6),
    ]
    assert [str(site.blame.symbol) for site in hunt.sites[:1]] == ["nt!NtOpenFile+0x62"]
    assert hunt.sites[0].frame.address == 0xFFFFF80000515FB4
    assert hunt.sites[1].frame.address == 0


def test_i386_session():
    hunt = hunt_of_log(transcript("i386"))
    assert "".join(hit.kind.value[0] if hit.kind else "?" for hit in hunt.hits) == "afaf?fafafaa?"
    assert sites_of(hunt) == [
        ("nt!ObpAllocateObject+0xf5", 4, 0),
        ("nt!ObpAllocateObject", 1, 0),
        ("nt!ObpDeallocateObject+0x157", 0, 5),
    ]
    # Arguments are on the stack of a 32-bit machine, and the tag among them says they are right.
    assert [hit.block for hit in hunt.hits if hit.block] == [0xB0ECB210] * 3
    assert {hit.kind for hit in hunt.hits if hit.block} == {HitKind.FREE}
    assert [hit.requested for hit in hunt.hits if hit.requested] == [160] * 3
    assert {hit.pool for hit in hunt.hits if hit.requested} == {Pool.NONPAGED}


@pytest.mark.parametrize("name", ["amd64", "i386"])
def test_pool_hit_tag_of_the_sessions(name):
    value = hunt_of_log(transcript(name)).tag_value
    assert (value.before, value.after, value.last_written) == (0, 0, 0)
    assert [str(tag) for tag in value.armed] == ["File"]
    assert value.state is TagState.RESTORED
    assert value.sentence == "nt!PoolHitTag is back at 0x00000000 (read back in this log)."


@pytest.mark.parametrize("name", ["amd64", "i386"])
def test_what_a_session_does_not_tell_is_unknown(name):
    hunt = hunt_of_log(transcript(name))
    for hit in (hunt.hits[4], hunt.hits[12]):  # registers only; nothing at all
        assert (hit.kind, hit.site, hit.evidence) == (None, None, "")
        assert not hit.stack
    assert hunt.hits[8].evidence == "return address"
    assert hunt.hits[8].site is None
    assert {hit.processor for hit in hunt.hits} == {None}  # "kd>> " names none
    assert all(site.judgement is not Judgement.ACCUSED for site in hunt.sites)


# --- made-up logs

START = """0: kd> dd nt!PoolHitTag L1
fffff801`2c65f0a8  ffffff0f
0: kd> ed nt!PoolHitTag 'kaeL'
0: kd> g
"""
ALLOC = """Break instruction exception - code 80000003 (first chance)
nt!ExAllocateHeapPool+0xb52:
fffff801`2c3d5b92 cc              int     3
{cpu}: kd> {command}
 # Child-SP          RetAddr           Call Site
00 fffff88f`0542c7d0 fffff801`2c8e1170 nt!ExAllocateHeapPool+0xb52
01 fffff88f`0542c8c0 fffff88e`04c1b3d5 nt!ExAllocatePool2+0x40
02 fffff88f`0542c900 fffff801`2c3b2f0c leakdrv!Receive+0x31
03 fffff88f`0542c9e0 00000000`00000000 nt!KiSpanTrackRow+0x16
{cpu}: kd> g
"""
FREE = """Break instruction exception - code 80000003 (first chance)
nt!ExFreeHeapPool+0xa3f:
fffff801`2c3d7a1f cc              int     3
0: kd> k
Child-SP          RetAddr           Call Site
fffff801`2dc0e6b0 fffff88e`04c1c04e nt!ExFreeHeapPool+0xa3f
fffff801`2dc0e760 fffff801`2c3b7714 leakdrv!Done+0x2e
fffff801`2dc0e790 00000000`00000000 nt!KiDrainTimers+0x1d4
0: kd> g
"""
BARE = """Break instruction exception - code 80000003 (first chance)
nt!DbgBreakPoint:
fffff801`2c3d7a1f cc              int     3
0: kd> g
"""
CUT = """Break instruction exception - code 80000003 (first chance)
nt!ExAllocateHeapPool+0xb52:
fffff801`2c3d5b92 cc              int     3
0: kd> kn 2
 # Child-SP          RetAddr           Call Site
00 fffff88f`0542c7d0 fffff801`2c8e1170 nt!ExAllocateHeapPool+0xb52
01 fffff88f`0542c8c0 fffff88e`04c1b3d5 nt!ExAllocatePool2+0x40
0: kd> g
"""
END = """0: kd> ed nt!PoolHitTag ffffff0f
0: kd> dd nt!PoolHitTag L1
fffff801`2c65f0a8  ffffff0f
"""


def alloc(cpu=2, command="kn"):
    return ALLOC.format(cpu=cpu, command=command)


def test_many_allocations_and_hardly_a_free_make_a_suspect_not_an_accused():
    hunt = hunt_of_log(parse_log(START + alloc() * 8 + FREE + END))
    site = hunt.sites[0]
    assert (site.allocs, site.judgement) == (8, Judgement.SUSPECTED)
    assert "at least 7 stayed" in site.sentence
    assert "Most suspicious: leakdrv!Receive+0x31" in hunt.verdict[1]
    assert {hit.processor for hit in hunt.hits} == {2, 0}


def test_hits_of_unknown_kind_may_have_been_frees():
    hunt = hunt_of_log(parse_log(START + alloc() * 8 + BARE * 5 + END))
    assert (hunt.allocs, hunt.frees, hunt.unknown_kind) == (8, 0, 5)
    assert hunt.sites[0].judgement is Judgement.TOO_FEW
    assert "13 hits of tag 'Leak': 8 allocations, 0 frees, 5 of which" in hunt.verdict[0]


def test_a_stack_cut_inside_the_allocator_is_named_by_another_one():
    hunt = hunt_of_log(parse_log(START + alloc() + CUT + END))
    assert sites_of(hunt) == [("leakdrv!Receive+0x31", 2, 0)]
    alone = hunt_of_log(parse_log(START + CUT + END))
    assert sites_of(alone) == [("fffff88e`04c1b3d5", 1, 0)]


def test_a_module_list_names_the_driver_of_a_bare_address():
    modules = (
        "0: kd> lm\nstart             end                 module name\n"
        "fffff88e`04c10000 fffff88e`04c2f000   leakdrv    (no symbols)\n"
    )
    hunt = hunt_of_log(parse_log(modules + START + CUT + END))
    assert sites_of(hunt) == [("leakdrv+0xb3d5", 1, 0)]


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        (END, TagState.RESTORED, "is back at 0xffffff0f (read back"),
        ("0: kd> ed nt!PoolHitTag ffffff0f\n", TagState.NOT_CONFIRMED, "not confirmed by this log"),
        (
            "0: kd> ed nt!PoolHitTag 0\n0: kd> dd nt!PoolHitTag L1\nfffff801`2c65f0a8  00000000\n",
            TagState.NOT_CONFIRMED,
            "before it held 0xffffff0f",
        ),
        ("", TagState.LEFT_ARMED, "0x6b61654c ('Leak')"),
        (
            "0: kd> ed nt!PoolHitTag 0\n0: kd> dd nt!PoolHitTag L1\nfffff801`2c65f0a8  6b61654c\n",
            TagState.LEFT_ARMED,
            "0x6b61654c ('Leak')",
        ),
    ],
)
def test_how_the_tag_was_left(end, state, words):
    value = hunt_of_log(parse_log(START + alloc() + end)).tag_value
    assert value.state is state
    assert words in value.sentence
    assert value.safe is (state is TagState.RESTORED)


def test_cleared_where_the_value_before_is_not_shown():
    start = START.partition("0: kd> ed")[1] + START.partition("0: kd> ed")[2]
    value = hunt_of_log(parse_log(start + alloc() + END)).tag_value
    assert (value.before, value.state) == (None, TagState.CLEARED)
    assert "not in this log" in value.sentence


def test_two_tags_one_after_the_other_are_two_hunts():
    other = START.replace("'kaeL'", "'dooG'")
    hunts = hunts_of_log(parse_log(START + alloc() * 2 + END + other + FREE * 3 + END))
    assert [(str(hunt.tag), len(hunt.hits)) for hunt in hunts] == [("Leak", 2), ("Good", 3)]
    assert hunt_of_log(parse_log(START + alloc() + END), PoolTag.parse("Nope")) is None


def test_armed_and_nothing_came():
    hunt = hunt_of_log(parse_log(START + END))
    assert hunt.hits == ()
    assert hunt.verdict == ("No hit of tag 'Leak' is in this log.",)


def test_no_hunt_in_a_list():
    assert hunts_of_log(parse_log("hello\n0: kd> k\n")) == ()
    assert hunt_of_log(parse_log("")) is None


def test_breakpoint_that_compares_the_tag():
    text = decode(next(CORPUS.glob("49-*.txt")).read_bytes())
    hunt = hunt_of_log(parse_log(text))
    assert hunt.by_breakpoint
    assert hunt.tag_value.state is TagState.NOT_WRITTEN
    assert [str(site.frame.symbol) for site in hunt.sites] == ["Wdf01000!FxRowMake+0x97"]


# --- snapshots

HEADER = (
    "   Sorting by {sort} Pool Consumed\n\n"
    "               NonPaged                  Paged\n"
    " Tag     Allocs         Used     Allocs         Used\n\n"
)
ROW = " {:4} {:>9} {:>12} {:>10} {:>12}\tdescribed , Binary: {}.sys\n"


def poolused(rows, flag=2, total=True, prompt="0: kd> "):
    sort = {2: "NonPaged", 4: "Paged"}[flag]
    text = f"{prompt}!poolused {flag}\n" + HEADER.format(sort=sort)
    for tag, figures in rows.items():
        text += ROW.format(tag, *figures, tag.strip().lower())
    if total:
        sums = [sum(figures[i] for figures in rows.values()) for i in range(4)]
        text += "TOTAL    {:>7} {:>12} {:>10} {:>12}\n".format(*sums)
    return text


def uptime(seconds, base="fffff801`2c000000"):
    hours, rest = divmod(seconds, 3600)
    return (
        "0: kd> vertarget\n"
        "Windows 10 Kernel Version 19041 MP (4 procs) Free x64\n"
        f"Kernel base = 0x{base} PsLoadedModuleList = 0x{base[:-4]}a2b0\n"
        f"System Uptime: 0 days {hours}:{rest // 60:02}:{rest % 60:02}.000\n"
    )


FIRST = {"Leak": (10, 1000, 0, 0), "Good": (50, 90000, 2, 64)}
LATER = {"Leak": (110, 11000, 0, 0), "Good": (50, 90000, 2, 64), "New ": (4, 400, 0, 0)}


def snapshots(*texts):
    return [
        one
        for number, text in enumerate(texts, start=1)
        for one in snapshots_of_log(parse_log(text), f"log{number}")
    ]


def test_both_lists_of_one_stop_are_one_moment():
    (one,) = snapshots(poolused(FIRST, 2) + poolused(FIRST, 4) + "0: kd> g\n")
    assert one.complete
    assert one.snapshot.outstanding_only
    assert one.snapshot.source == "!poolused 2 and !poolused 4"
    assert one.lines == (1, 10)
    row = one.snapshot.find(LEAK)
    assert (row.nonpaged.outstanding, row.nonpaged.bytes) == (10, 1000)
    assert one.descriptions[LEAK] == "described, leak.sys"


def test_the_target_ran_in_between():
    found = snapshots(poolused(FIRST) + "0: kd> g\n" + poolused(LATER, 4))
    assert [len(one.snapshot.rows) for one in found] == [2, 3]


def test_two_outputs_run_together_with_other_figures_are_two_moments():
    found = snapshots(poolused(FIRST, prompt="") + poolused(LATER, prompt=""))
    assert [len(one.snapshot.rows) for one in found] == [2, 3]


def test_a_list_whose_rows_do_not_add_up_is_a_part():
    text = poolused(FIRST)
    lines = [line for line in text.splitlines(True) if not line.startswith(" Good")]
    (one,) = snapshots("".join(lines))
    assert not one.complete
    assert "does not add up" in one.snapshot.gaps[0]
    assert one.tells(LEAK, Pool.PAGED)
    assert not one.tells(PoolTag.parse("Good"), Pool.NONPAGED)


def test_growth_with_a_rate_where_the_logs_tell_the_time():
    found = snapshots(uptime(3600) + poolused(FIRST), uptime(7200) + poolused(LATER))
    rank = rank_of_snapshots(found)
    assert (rank.by, rank.logs) == (RankBy.GROWTH, ("log1", "log2"))
    assert (rank.seconds, rank.seconds_rest_on) == (3600.0, "the target's uptime")
    row = rank.suspect
    assert (row.tag, row.growth_bytes, row.growth_blocks) == (LEAK, 10000, 100)
    assert row.bytes_per_hour == pytest.approx(10000)
    assert row.trend is Trend.UNCERTAIN  # two moments, and no traffic: never steady
    assert rank.gaps == ()
    # Both lists are whole, so a new tag began at nothing.
    assert {str(row.tag): row.growth_bytes for row in rank.rows}["New "] == 400


def test_growth_without_a_rate_where_they_do_not():
    rank = rank_of_snapshots(snapshots(poolused(FIRST), poolused(LATER)))
    assert rank.seconds is None
    assert rank.suspect.bytes_per_hour is None
    assert "in an unknown time" in rank.reason


def test_a_tag_missing_from_a_part_did_not_begin_at_nothing():
    rank = rank_of_snapshots(snapshots(poolused(FIRST, total=False), poolused(LATER)))
    assert "New " not in {str(row.tag) for row in rank.rows}
    assert any("'New ' left out" in gap for gap in rank.gaps)


def test_a_mail_that_quotes_two_logs_holds_two_times():
    text = uptime(3600) + poolused(FIRST, 2) + uptime(7200) + poolused(FIRST, 4)
    found = snapshots(text)
    assert [one.moment.uptime for one in found] == [3600.0, 7200.0]
    assert rank_of_snapshots(found).seconds == 3600.0


def test_the_same_time_printed_twice_is_one_moment():
    text = uptime(3600) + poolused(FIRST, 2) + uptime(3600) + poolused(FIRST, 4)
    assert len(snapshots(text)) == 1


def test_restarted_by_uptime():
    rank = rank_of_snapshots(
        snapshots(uptime(7200) + poolused(FIRST), uptime(60) + poolused(LATER))
    )
    assert rank.by is RankBy.USED
    assert "restarted between line 5 of log1 and line 5 of log2" in rank.gaps[0]
    assert "wrong order" in rank.gaps[0]
    assert str(rank.suspect.tag) == "Good"


def test_restarted_by_where_nt_is():
    other = uptime(7200, base="fffff806`11000000")
    rank = rank_of_snapshots(snapshots(uptime(60) + poolused(FIRST), other + poolused(LATER)))
    assert rank.by is RankBy.USED
    assert "nt was loaded elsewhere" in rank.gaps[0]


POOLMON = """ Memory: 8288016K Avail: 3904128K  PageFlts:     0   InRam Krnl:    0K P:    0K
 Commit:       0K Limit:       0K Peak:       0K            Pool N:    0K P:    0K
 System pool information
 Tag  Type     Allocs     Frees     Diff     Bytes   Per Alloc

"""


def poolmon(rows):
    text = POOLMON
    for tag, (allocs, frees, size) in rows.items():
        diff = allocs - frees
        text += f" {tag} Nonp {allocs:>10} {frees:>10} {diff:>8} {size:>9} {size // diff:>8}\n"
    return text


def test_restarted_by_counters_that_went_back():
    before = {f"Tag{i}": (1000 + i, 900, 5000) for i in range(6)}
    after = {f"Tag{i}": (100 + i, 50, 9000) for i in range(6)}
    rank = rank_of_snapshots(snapshots(poolmon(before), poolmon(after)))
    assert rank.by is RankBy.USED
    assert "6 of 6 allocation counters went back" in rank.gaps[0]
    same = rank_of_snapshots(snapshots(poolmon(after), poolmon(before)))
    assert same.by is RankBy.GROWTH


def test_one_counter_that_went_back_is_said_and_no_more():
    before = {f"Tag{i}": (1000, 900, 5000) for i in range(8)}
    after = {**dict.fromkeys(before, (1100, 950, 9000)), "Tag0": (5, 1, 9000)}
    rank = rank_of_snapshots(snapshots(poolmon(before), poolmon(after)))
    assert rank.by is RankBy.GROWTH
    assert any("1 allocation counter went back" in gap for gap in rank.gaps)


def test_four_poolmon_files_can_show_steady_growth():
    logs = [poolmon({"Leak": (1000 * i, 10, 990000 * i), "Idle": (5, 1, 80)}) for i in range(1, 5)]
    three = rank_of_snapshots(snapshots(*logs[:3]))
    assert (three.suspect.tag, three.suspect.trend) == (LEAK, Trend.UNCERTAIN)
    rank = rank_of_snapshots(snapshots(*logs))
    assert (rank.suspect.tag, rank.suspect.trend) == (LEAK, Trend.STEADY)
    assert not rank.outstanding_only
    assert "steadily over 4 lists" in rank.reason


def test_nothing_grew_and_growth_of_one_list():
    rank = rank_of_snapshots(snapshots(poolused(FIRST), poolused(FIRST)))
    assert rank.suspect is None
    assert rank.reason.startswith("No tag grew between the lists")
    one = rank_of_snapshots(snapshots(poolused(FIRST)), by=RankBy.GROWTH)
    assert one.by is RankBy.USED
    assert "growth takes two lists" in one.gaps[0]
    with pytest.raises(ValueError, match="no snapshots"):
        rank_of_snapshots([])


def test_one_pool_only():
    rank = rank_of_snapshots(snapshots(poolused(FIRST)), pool=Pool.PAGED)
    assert [(str(row.tag), row.pool) for row in rank.rows] == [("Good", Pool.PAGED)]


# --- times


def clock_of(line):
    (one,) = snapshots(f"0: kd> vertarget\n{line}\n" + poolused(FIRST))
    return one.moment


def test_times_as_the_debugger_prints_them():
    utc = clock_of("Debug session time: Mon Nov 30 18:35:40.500 2026 (UTC + 0:00)")
    east = clock_of("Debug session time: Mon Nov 30 20:35:40.500 2026 (UTC + 2:00)")
    west = clock_of("Debug session time: Mon Nov 30 13:05:40.500 2026 (UTC - 5:30)")
    old = clock_of("Debug session time: Mon Nov 30 20:35:40 2026 (GMT+2)")
    assert utc.target_clock == east.target_clock == west.target_clock
    assert old.target_clock == utc.target_clock - 0.5
    host = clock_of("Debugger (not debuggee) time: Mon Nov 30 18:35:41.500 2026 (UTC + 0:00)")
    assert host.host_clock == utc.target_clock + 1
    for bad in ("Mon Foo 30 18:35:40 2026", "Mon Feb 31 18:35:40 2026", "***** invalid"):
        assert clock_of(f"Debug session time: {bad}").target_clock is None


def test_seconds_between_never_run_backwards():
    assert seconds_between(Moment(uptime=5), Moment(uptime=3)) == (None, "")
    assert seconds_between(Moment(host_clock=5), Moment(uptime=3, host_clock=9)) == (
        4,
        "the debugger's clock",
    )
    assert seconds_between(Moment(), Moment(uptime=3)) == (None, "")


# --- contents


def test_contents_of_a_mail():
    mail = "Hello,\nsee below\n\n" + poolused(FIRST) + "0: kd> dt foo\n   +0x000 Bar : 1\n"
    contents = contents_of_log(parse_log(mail), "mail.txt")
    assert {kind.name: len(kind.lines) for kind in contents.found} == {"!poolused": 1, "prompts": 2}
    assert [entry.line for entry in contents.not_understood] == [1, 2]
    assert len(contents.unread) == 1
    assert not contents.complete
    assert not contents.empty
    assert contents.rank.by is RankBy.USED


def test_equal_stacks_stand_once():
    contents = contents_of_log(transcript("amd64"), "x")
    assert contents.complete
    assert len(contents.stacks) < 10
    assert sum(len(one.lines) for one in contents.stacks) == 10
    assert sum(one.at_hits for one in contents.stacks) == 10
    hits, others = (
        {kind.name: len(kind.lines) for kind in contents.found}[name]
        for name in ("hits", "other stops")
    )
    assert (hits, others) == (13, 1)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.txt")), ids=lambda path: path.stem)
def test_every_sample_has_contents(path):
    contents = contents_of_log(parse_log(decode(path.read_bytes())), path.name)
    assert not contents.empty
    for hunt in contents.hunts:
        counted = sum(site.allocs + site.frees for site in hunt.sites) + hunt.without_site
        assert counted + hunt.unknown_kind == len(hunt.hits)
