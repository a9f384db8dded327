"""Who leaks, over every engine: what a hunt says of each call site against the target's own books.

The practice target stops itself twice, at ticks of its own clock. One hunt begins at the first
stop and ends at the second, so that it sees all there is; another goes on from there in bursts.
Whenever the target stands still between them it is asked for its books.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kdleak.engine.base import Engine
from kdleak.engine.blocks import block_finder
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.result import (
    CallSite,
    DisarmStatus,
    HuntResult,
    Interval,
    Judgement,
    SiteGrowth,
    StopReason,
)
from kdleak.tags import PoolTag
from tests.rig.conftest import Practice
from tests.rig.engines import SLOW_START, opened
from tests.rig.hunt_process import Doors
from tests.rig.places import ROOT, windows_path
from tests.rig.rig import MARK, Rig
from tests.rig.test_same_hunt import TICK, at_the_moment

LEAK = "leakydrv!TrackRequest"
INNOCENT = ("leakydrv!CloneHeader", "leakydrv!BuildContext")
TICKS = 60  # over half a second of the target's time: some 350 hits
NOTHING_SAMPLED = HuntOptions(
    tag=PoolTag.parse("Leak"),
    max_hits=100_000,
    max_seconds=120.0,
    max_stopped_share=None,
    hits_per_second=None,
    settle_seconds=0.0,  # what happens after the watch is in the books, too
)
SAMPLED = replace(
    NOTHING_SAMPLED,
    max_seconds=8.0,
    max_stopped_share=0.2,
    hits_per_second=100.0,
    burst_hits=12,
    burst_seconds=0.02,
)


class Books:
    """What the call sites of the tag did since the last time the target was asked."""

    def __init__(self, practice: Practice) -> None:
        self._practice = practice
        self._before = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        return {
            f"{site['module']}!{site['function']}": site
            for site in self._practice.books()
            if site["tag"] == "Leak" and site["allocs"]
        }

    def since(self) -> dict[str, tuple[int, int, int]]:
        """Allocations, change of the outstanding blocks and of their bytes, by function."""
        now, before = self._read(), self._before
        self._before = now
        keys = ("allocs", "outstanding", "bytes")
        allocs, blocks, sizes = (
            {name: now[name][key] - before[name][key] for name in now} for key in keys
        )
        return {name: (allocs[name], blocks[name], sizes[name]) for name in now}


def sites_of(result: HuntResult) -> dict[str, CallSite]:
    """The call sites that allocate, by function."""
    allocating = [site for site in result.sites if site.allocs]
    found = {str(site.frame.symbol).split("+")[0]: site for site in allocating}
    assert len(found) == len(allocating)
    return found


def hunted(engine: Engine, options: HuntOptions, folder: Path) -> HuntResult:
    result = hunt(
        engine, options, journal=Journal(folder / "journal"), block_finder_factory=block_finder
    )
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert result.completeness.broken_stacks == 0
    return result


@pytest.mark.parametrize("name", ["native", "kd", "pykd", "pybag"])
def test_a_hunt_is_the_books(
    name: str,
    rig: Rig,
    tmp_path: Path,
    practice_over_kdnet: Callable[..., Practice],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MARK, rig.session)
    monkeypatch.delenv("_NT_SYMBOL_PATH", raising=False)
    practice = practice_over_kdnet("--seed", "7", "--break-at-tick", str(TICK), late=True)
    with opened(name, practice, rig, tmp_path) as engine:
        at_the_moment(engine)
        # It stops itself once more, between two requests: no block is half booked there.
        again = (TICK + TICKS).to_bytes(4, "little")
        engine.write(engine.symbol("leakydrv!LeakBreakAtTick"), again)
        books = Books(practice)
        whole = hunted(
            engine, replace(NOTHING_SAMPLED, min_age=0.25 if name == "native" else 0.8), tmp_path
        )
        exactly_the_books(whole, books.since())
        part = hunted(engine, SAMPLED, tmp_path)
        the_books_within_the_error(part, books.since())
    assert practice.statistics["pool_hit_tag"] == 0xFFFFFF0F


def exactly_the_books(result: HuntResult, books: dict[str, tuple[int, int, int]]) -> None:
    """Nothing was sampled."""
    assert result.stop_reason is StopReason.FOREIGN_STOP
    assert result.completeness.bursts == 1
    assert result.completeness.unaddressed == 0
    assert result.scaling is None
    sites = sites_of(result)
    assert set(sites) == set(books) == {LEAK, *INNOCENT}
    assert {name: site.allocs for name, site in sites.items()} == {
        name: allocs for name, (allocs, _, _) in books.items()
    }
    # The kernel forgets the size of a large block before a free of it is seen.
    assert not any(site.unsized for site in sites.values())
    leak = sites[LEAK]
    assert (leak.allocs, leak.outstanding, leak.outstanding_bytes) == books[LEAK]
    assert leak.outstanding > 15
    assert leak == result.accused, (leak.sentence, leak.growth, result.verdict)
    assert leak.growth is SiteGrowth.GREW
    assert leak.outstanding_old > 0
    for name in INNOCENT:
        assert (sites[name].outstanding_old, sites[name].outstanding_old_bytes) == (0, 0)
        assert sites[name].judgement is Judgement.CLEARED
    assert result.pairing.outstanding - result.pairing.frees_of_older == sum(
        blocks for _, blocks, _ in books.values()
    )


def the_books_within_the_error(result: HuntResult, books: dict[str, tuple[int, int, int]]) -> None:
    """Watched in bursts."""
    assert result.stop_reason is StopReason.SECONDS
    assert (
        result.completeness.share_stopped < 0.4
    )  # the budget is 0.2; under Wine on a busy machine stops take longer than planned
    assert result.completeness.share_watched < 0.6
    assert result.scaling is not None
    sites = sites_of(result)
    scaled = sites[LEAK].scaled
    assert scaled is not None
    _, blocks, size = books[LEAK]
    assert within(blocks, scaled.blocks_within), (blocks, scaled)
    assert within(size, scaled.bytes_within), (size, scaled)
    assert sites[LEAK] == result.accused
    for name in INNOCENT:
        assert sites[name].outstanding_old == 0
        assert sites[name].judgement is not Judgement.ACCUSED


def within(value: float, interval: Interval) -> bool:
    """Within one and a half times the error: an interval of 95 % misses one time in twenty."""
    spare = (interval.high - interval.low) / 4
    return interval.low - spare <= value <= interval.high + spare


@pytest.fixture
def doors(rig: Rig, tmp_path: Path) -> Iterator[Doors]:
    made = Doors(rig, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("channel", ["kd", "pykd", "pybag"])
def test_a_recorded_hunt_comes_to_the_same(
    channel: str,
    doors: Doors,
    practice_over_kdnet: Callable[..., Practice],
    tmp_path: Path,
) -> None:
    """Call sites, ages, verdict and series, by the options of each door."""
    record, live, again = (tmp_path / name for name in ("hunt.jsonl", "live.json", "again.json"))
    practice = practice_over_kdnet("--seed", "7", late=True)
    # Windows Python and pybag start slowly: the machine boots when they are about to listen.
    late = threading.Timer(SLOW_START if channel == "pybag" else 0.0, practice.start)
    late.start()
    options = ("--tag", "Leak", "--full-speed", "--hits", "120", "--min-age", "0.7")
    files = [str(record), str(live)]
    if channel == "pykd":  # a Windows program
        files = [windows_path(record), windows_path(live)]
    json_option = ("--json", files[1]) if channel == "pykd" else ("--json", "-o", files[1])
    started = doors.start(channel, practice, *options, "--record", files[0], *json_option)
    try:
        started.ends(0, 4, timeout=90)
    finally:
        late.cancel()
        late.join()
    done = subprocess.run(
        [sys.executable, "-m", "kdleak", "hunt", "--replay", record, "--json", "-o", again],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "KDLEAK_STATE_DIR": str(tmp_path / "another")},
    )
    assert done.returncode == started.process.returncode, done.stderr
    first, second = (json.loads(path.read_text(encoding="utf-8")) for path in (live, again))
    assert first["min_age"] == 0.7
    assert len(first["hits"]) == first["completeness"]["hits"] == 120
    assert {site["min_age"] for site in first["call_sites"]} == {0.7}
    for part in ("verdict", "accused", "pairing", "growth", "scaling", "watched", "change"):
        assert second[part] == first[part], part
    for part in ("call_sites", "stacks", "hits", "series"):
        assert first[part]
        assert second[part] == first[part], part
