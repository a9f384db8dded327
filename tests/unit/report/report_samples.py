"""Results for the report tests, each from a real hunt of the scripted target."""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Dict

sys.path.insert(0, str(Path(__file__).parents[1] / "hunt"))

from hunt_fakes import ADDRESS, IDLE, LEAK, FakeEngine, Finder, foreign, leaking

from kdleak.hunt import HuntOptions, RankOptions, hunt
from kdleak.journal import Journal
from kdleak.rank import rank
from kdleak.restore import restore
from kdleak.result import HuntResult, RankBy, RankResult, RestoreResult

GOLDEN = Path(__file__).parent / "golden"


def _hunt(engine: FakeEngine, finder=Finder, **options) -> HuntResult:
    options.setdefault("max_hits", 30)
    with tempfile.TemporaryDirectory() as folder:
        return hunt(
            engine,
            HuntOptions(**options),
            journal=Journal(Path(folder), now=lambda: 1700000000.0, sleep=lambda _: None),
            block_finder_factory=finder,
            clock=engine.clock,
            wall_clock=lambda: 1700000000.25,
            sleep=engine.clock.sleep,
        )


def accused() -> HuntResult:
    return _hunt(FakeEngine(leaking()), rank=RankOptions(seconds=6.0), max_hits=60)


def bursts() -> HuntResult:
    return _hunt(
        FakeEngine(leaking(0.001)),
        tag=LEAK,
        max_hits=90,
        burst_hits=15,
        burst_seconds=0.0,
        hits_per_second=30.0,
    )


def no_hits() -> HuntResult:
    return _hunt(FakeEngine(), tag=LEAK, max_seconds=20.0)


def nothing_grew() -> HuntResult:
    engine = FakeEngine()
    engine.counters = {LEAK: [5, 0, 500]}
    return _hunt(engine)


def foreign_stop() -> HuntResult:
    stop = foreign("otherdrv!Assert+0x10", "nt!IopLoadDriver+0x99")
    return _hunt(FakeEngine(itertools.chain(itertools.islice(leaking(), 9), [stop])), tag=LEAK)


def not_confirmed() -> HuntResult:
    def fault(engine: FakeEngine, name: str, when: str) -> None:
        engine.link_down = engine.calls.count("resume") >= 9

    return _hunt(FakeEngine(leaking(), fault=fault), tag=LEAK, grace_seconds=5.0)


def blind() -> HuntResult:
    return _hunt(FakeEngine(leaking()), finder=None, tag=LEAK)


def growth() -> RankResult:
    engine = FakeEngine(leaking())
    return rank(engine, RankOptions(seconds=9.0), clock=engine.clock)


def used() -> RankResult:
    engine = FakeEngine()
    engine.counters = {LEAK: [5, 1, 1234567]}
    return rank(engine, RankOptions(by=RankBy.USED), clock=engine.clock)


def restored() -> RestoreResult:
    engine = FakeEngine()
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), now=lambda: 1700000000.0, sleep=lambda _: None)
        with journal.claim(engine.where, ADDRESS) as claim:
            claim.record(journal.entry(engine.where, engine.target, ADDRESS, IDLE, LEAK.raw))
        engine.hit_tag = LEAK.raw
        return restore(engine, journal)


HUNTS: Dict[str, HuntResult] = {
    made.__name__: made()
    for made in (accused, bursts, no_hits, nothing_grew, foreign_stop, not_confirmed, blind)
}
RANKS: Dict[str, RankResult] = {made.__name__: made() for made in (growth, used)}
RESTORES: Dict[str, RestoreResult] = {"restored": restored()}
