"""A live session of one command: attach, hand out the engine, and always leave properly."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterator

from kdleak.cli.target_options import TargetChoice, attach
from kdleak.errors import ForeignStop
from kdleak.interrupt_guard import InterruptGuard
from kdleak.model import StopKind

if TYPE_CHECKING:
    from kdleak.engine.native import NativeEngine


@dataclass
class Session:
    """An attached engine and how to leave it.

    Attributes:
        engine: attached; the target is stopped.
        leave_stopped: set when the target stopped for a reason of its own and its user must
            find it as it is.
    """

    engine: NativeEngine
    leave_stopped: bool = False


@contextlib.contextmanager
def attached(choice: TargetChoice, narrate: Callable[[str], None]) -> Iterator[Session]:
    """Attach for the body; afterwards the target runs, unless it waits for its user."""
    session = Session(attach(choice, narrate))
    engine = session.engine
    try:
        narrate(f"attached: {engine.target.description}")
        if choice.verbose:
            for remark in engine.remarks:
                narrate(remark)
        yield session
    except ForeignStop:
        session.leave_stopped = True
        raise
    finally:
        _leave(session, narrate)
        if choice.verbose:
            counters = engine.host.link.statistics
            narrate(
                f"{engine.requests} requests, target stopped {engine.seconds_stopped:.2f} s; link: "
                + ", ".join(f"{value} {name}" for name, value in vars(counters).items())
            )


def _leave(session: Session, narrate: Callable[[str], None]) -> None:
    """Let go of the target. Ctrl+C waits: half-way it would leave the machine standing."""
    engine = session.engine
    said = len(engine.remarks)
    # Not removed again: what is left to do is to print the result, and an impatient second
    # Ctrl+C must not cost the user the line that says whether the target is disarmed.
    InterruptGuard().install()
    # Windows goes on from a bug check by restarting: what there is to see would be gone.
    crashed = engine.stop.kind is StopKind.BUG_CHECK
    engine.detach(leave_stopped=session.leave_stopped or crashed)
    if crashed:
        narrate(f"The target is in a bug check ({engine.stop.detail}); it is left stopped.")
    for remark in engine.remarks[said:]:
        narrate(remark)
