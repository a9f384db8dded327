"""Whatever goes wrong at whatever engine call, the tag never stays armed in silence."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import List, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "hunt"))

from hunt_fakes import (
    IDLE,
    LEAK,
    FakeEngine,
    Finder,
    foreign,
    leaking,
)

from kdleak.errors import (
    DisarmNotConfirmed,
    KdleakError,
    LinkLost,
    MemoryNotWritten,
    MemoryUnreadable,
    ProtocolError,
)
from kdleak.hunt import HuntOptions, hunt
from kdleak.hunt_options import RankOptions
from kdleak.journal import Journal
from kdleak.model import StopKind
from kdleak.restore import restore
from kdleak.result import DisarmStatus


class Boom(RuntimeError):
    """A bug somewhere."""


ERRORS = {
    "link": lambda: LinkLost("x", "no answer"),
    "protocol": lambda: ProtocolError("x", "nonsense"),
    "unreadable": lambda: MemoryUnreadable(0x1000, 4),
    "unwritten": lambda: MemoryNotWritten("x", "refused"),
    "ctrl-c": KeyboardInterrupt,
    "ctrl-break": lambda: SystemExit("CTRL+BREAK"),
    "bug": lambda: Boom("bug"),
}
FOR_GOOD = ("link down", "refuse writes", "lie", "reboot")


class Fault:
    """One thing that goes wrong, at the n-th engine call, for a number of calls or for good."""

    def __init__(self, at: int, when: str, what: str, times: int) -> None:
        self.at, self.when, self.what, self.times = at, when, what, times

    def __repr__(self) -> str:
        return f"Fault({self.at}, {self.when!r}, {self.what!r}, {self.times})"


faults = st.builds(
    Fault,
    st.integers(1, 90),
    st.sampled_from(("before", "after")),
    st.sampled_from((*ERRORS, *FOR_GOOD)),
    st.integers(1, 6),
)


def injector(plan: List[Fault]):
    def inject(engine: FakeEngine, name: str, when: str) -> None:
        number = len(engine.calls)
        for fault in plan:
            if when != fault.when or not fault.at <= number < fault.at + fault.times:
                continue
            if fault.what == "link down":
                engine.link_down = True
            elif fault.what == "refuse writes":
                engine.refuse_writes = True
            elif fault.what == "lie" and engine.writes:
                # A target that lies about the original value from the start cannot be found out.
                engine.lie = lambda value: bytes(byte ^ 0x55 for byte in value)
            elif fault.what == "reboot":
                engine.reboot()
            elif fault.what in ERRORS:
                error = ERRORS[fault.what]()
                raise error

    return inject


def heal(engine: FakeEngine) -> None:
    """The link is back, the target behaves; a restarted one was attached to again."""
    engine.fault = None
    engine.link_down = engine.refuse_writes = engine.restarted = False
    engine.lie = None


def run(engine: FakeEngine, journal: Journal, *, bursts: bool, rank: bool, seconds: float = 20.0):
    """(result, error) of a hunt."""
    options = HuntOptions(
        tag=None if rank else LEAK,
        rank=RankOptions(seconds=2.0, snapshots=3),
        max_hits=12,
        max_seconds=seconds,
        burst_hits=4 if bursts else 50,
        burst_seconds=0.0,
        hits_per_second=10.0 if bursts else None,
        max_stopped_share=None,
        grace_seconds=5.0,
    )
    try:
        result = hunt(
            engine,
            options,
            journal=journal,
            block_finder_factory=Finder,
            clock=engine.clock,
            sleep=engine.clock.sleep,
        )
    except (KdleakError, KeyboardInterrupt, SystemExit, Boom) as error:
        return None, error
    return result, None


def check_never_silent(engine: FakeEngine, journal: Journal, result, error) -> None:
    not_confirmed = isinstance(error, DisarmNotConfirmed) or (
        result is not None and result.disarm.status is DisarmStatus.NOT_CONFIRMED
    )
    if engine.hit_tag != IDLE:
        assert not_confirmed, f"armed in silence: {result and result.disarm} {error!r}"
    if result is not None and result.disarm.status is DisarmStatus.CONFIRMED:
        assert engine.hit_tag == IDLE
    if not_confirmed:
        assert len(journal.scan().files) == 1
        entry = journal.scan().files[0].entry
        assert (entry.original, entry.armed) == (IDLE, LEAK.raw)
        heal(engine)
        restored = restore(engine, journal)
        assert restored.state.safe
        assert engine.hit_tag == IDLE
    heal(engine)
    if engine.stop.kind is StopKind.STILL_RUNNING:
        engine.interrupt()
    # Whatever happened, a later restore leaves nothing armed and nothing in the journal.
    assert restore(engine, journal).state.safe
    assert journal.scan().files == ()
    assert engine.hit_tag == IDLE


@settings(max_examples=300, deadline=None)
@given(
    plan=st.lists(faults, min_size=1, max_size=3),
    bursts=st.booleans(),
    rank=st.booleans(),
    foreign_at=st.one_of(st.none(), st.integers(0, 20)),
    event_on_interrupt=st.booleans(),
    seconds=st.sampled_from((20.0, 0.42)),
)
def test_never_armed_in_silence(
    plan: List[Fault],
    bursts: bool,
    rank: bool,
    foreign_at: Optional[int],
    event_on_interrupt: bool,
    seconds: float,
) -> None:
    def events():
        for number, event in enumerate(leaking()):
            if number == foreign_at:
                yield foreign("otherdrv!Assert+0x10", "nt!KeBugCheck2+0x4")
            yield event

    engine = FakeEngine(events(), fault=injector(plan))
    engine.event_on_interrupt = event_on_interrupt
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), now=lambda: 1.0, sleep=lambda _: None)
        result, error = run(engine, journal, bursts=bursts, rank=rank, seconds=seconds)
        check_never_silent(engine, journal, result, error)


@pytest.mark.parametrize("what", [*ERRORS, *FOR_GOOD])
@pytest.mark.parametrize("when", ["before", "after"])
def test_each_fault_at_each_call(what: str, when: str, tmp_path: Path) -> None:
    """The same without chance: one fault at every single call of a short hunt with bursts."""
    clean = FakeEngine(leaking())
    run(clean, Journal(tmp_path / "clean"), bursts=True, rank=False)
    assert len(clean.calls) > 50
    for at in range(1, len(clean.calls) + 1):
        engine = FakeEngine(leaking(), fault=injector([Fault(at, when, what, 1)]))
        journal = Journal(tmp_path / str(at), now=lambda: 1.0, sleep=lambda _: None)
        result, error = run(engine, journal, bursts=True, rank=False)
        check_never_silent(engine, journal, result, error)
        transient = what in ("link", "protocol", "ctrl-c", "ctrl-break")
        if transient and result is not None and result.change is not None:
            assert result.disarm.status is DisarmStatus.CONFIRMED


def test_killed_hunt_is_repaired_by_restore(tmp_path: Path) -> None:
    """kill -9 at any call: nothing of ours runs any more, only the journal is left."""

    class Killed(BaseException):
        pass

    clean = FakeEngine(leaking())
    run(clean, Journal(tmp_path / "clean"), bursts=True, rank=False)
    armed_somewhere = 0
    for at in range(1, len(clean.calls) + 1):
        state = {}

        def kill(engine: FakeEngine, name: str, when: str, at=at, state=state) -> None:
            if len(engine.calls) >= at:
                state.setdefault("tag", engine.hit_tag)
                state.setdefault("stop", engine.stop)
                raise Killed

        engine = FakeEngine(leaking(), fault=kill)
        folder = tmp_path / str(at)
        journal = Journal(folder, now=lambda: 1.0, sleep=lambda _: None)
        options = HuntOptions(
            tag=LEAK, max_hits=12, burst_hits=4, burst_seconds=0.0, hits_per_second=10.0
        )
        with pytest.raises((Killed, DisarmNotConfirmed)):
            hunt(engine, options, journal=journal, clock=engine.clock, sleep=engine.clock.sleep)
        engine.fault = None
        engine.hit_tag, engine.stop = state["tag"], state["stop"]
        armed_somewhere += engine.hit_tag != IDLE
        result = restore(engine, Journal(folder))
        assert result.state.safe
        assert engine.hit_tag == IDLE
    assert armed_somewhere > 30
