"""A session of one command: attach or open, hand out the engine, and always leave properly."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Iterator, Optional

from kdleak.cli.target_options import (
    DUMP,
    NATIVE,
    TargetChoice,
    attach,
    practice_symbols,
    tell_ignored,
)
from kdleak.errors import ForeignStop
from kdleak.interrupt_guard import InterruptGuard
from kdleak.journal import Journal
from kdleak.model import StopKind
from kdleak.windbg.recording import (
    Memory,
    clock_of,
    recall,
    restore_journal,
    without_sleep,
)
from kdleak.windbg.session import LiveEngine, channel_remarks, recorded_options


@dataclass
class Session:
    """An attached engine and how to leave it.

    Attributes:
        engine: attached; a live target is stopped.
        journal: where changes of the target are written down.
        memory: what the command is asked to do; of a replay, what it was when it was recorded.
        leave_stopped: set when the target stopped for a reason of its own and its user must
            find it as it is.
        replayed: this is a recorded session.
    """

    engine: LiveEngine
    journal: Journal
    memory: Memory
    leave_stopped: bool = False
    replayed: bool = False

    @property
    def live(self) -> bool:
        """Whether there is a machine behind it (of a replay: was), and not a dump."""
        return self.engine.target.live

    @property
    def clock(self) -> Callable[[], float]:
        """What everything above the engine goes by, seconds."""
        return clock_of(self.engine)

    def wall_clock(self) -> float:
        """Seconds since 1970; of a replay, when it was recorded, where the recording says so."""
        recorded = self.memory.started_at if self.replayed else None
        return recorded if recorded is not None else time.time()

    def sleep(self, seconds: float) -> None:
        """Wait for a lost link; not in a replay."""
        (without_sleep if self.replayed else time.sleep)(seconds)


@contextlib.contextmanager
def attached(
    choice: TargetChoice, memory: Memory, narrate: Callable[[str], None]
) -> Iterator[Session]:
    """Attach for the body; afterwards the target runs, unless it waits for its user.

    A crash dump is opened, and closed afterwards.

    Args:
        choice: target and engine.
        memory: what the command is asked to do.
        narrate: takes sentences for the user.
    """
    journal = Journal.default()
    request = replace(choice.request, memory=memory, journal=journal)
    replayed = request.replay is not None
    if replayed:
        tell_ignored(narrate)
    engine = attach(replace(choice, request=request), narrate)
    session = Session(engine, journal, memory, replayed=replayed)
    temporary: Optional[Path] = None
    try:
        how = "recorded" if replayed else "attached" if session.live else "opened"
        narrate(f"{how}: {engine.target.description}")
        if choice.verbose or not session.live:  # what a dump lacks belongs to its answer
            for remark in engine.remarks:
                narrate(remark)
        if choice.engine not in (NATIVE, DUMP) and not (replayed or request.symbol_path):
            _tell_practice_symbols(engine.target.description, narrate)
        if replayed:
            # A recording is no target: what is "written" to it must not look like one to restore.
            temporary = Path(tempfile.mkdtemp(prefix="kdleak-replay-"))
            recorded = recorded_options(getattr(engine, "channel", None))
            session.journal = restore_journal(recorded, temporary)
            session.memory = recall(recorded, memory.command) or memory
        yield session
    except ForeignStop:
        session.leave_stopped = True
        raise
    finally:
        _leave(session, narrate)
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if choice.verbose and session.live:
            narrate(_statistics(engine))


def _tell_practice_symbols(description: str, narrate: Callable[[str], None]) -> None:
    """Microsoft's engine does not find the practice kernel's PDBs by itself, as ours does."""
    folders = practice_symbols()
    if description.endswith(".practice") and folders:
        narrate(
            f'This is the practice kernel; if its symbols are missing: -y "{";".join(folders)}"'
        )


def _leave(session: Session, narrate: Callable[[str], None]) -> None:
    """Let go of the target. Ctrl+C waits: half-way it would leave the machine standing."""
    engine = session.engine
    said = len(engine.remarks)
    # Not removed again: what is left to do is to print the result, and an impatient second
    # Ctrl+C must not cost the user the line that says whether the target is disarmed.
    InterruptGuard().install()
    # Windows goes on from a bug check by restarting: what there is to see would be gone.
    crashed = session.live and engine.stop.kind is StopKind.BUG_CHECK
    engine.detach(leave_stopped=session.leave_stopped or crashed)
    if crashed:
        narrate(f"The target is in a bug check ({engine.stop.detail}); it is left stopped.")
    for remark in (*channel_remarks(engine), *engine.remarks[said:]):
        narrate(remark)


def _statistics(engine: LiveEngine) -> str:
    """What the session cost; the link's own counters where the engine has a link."""
    words = f"target stopped {engine.seconds_stopped:.2f} s"
    if engine.requests:
        words = f"{engine.requests} requests, {words}"
    host = getattr(engine, "host", None)
    if host is not None:
        counters = vars(host.link.statistics)
        words += "; link: " + ", ".join(f"{value} {name}" for name, value in counters.items())
    return words
