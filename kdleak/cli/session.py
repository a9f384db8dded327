"""A live session of one command: attach, hand out the engine, and always leave properly."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterator

from kdleak.cli.target_options import TargetChoice, attach

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
    narrate(f"attached: {engine.target.description}")
    try:
        yield session
    finally:
        engine.detach(leave_stopped=session.leave_stopped)
