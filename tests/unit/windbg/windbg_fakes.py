"""A debugger's stdio, an engine behind it, and an interruption at any bytecode."""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Callable, List, Optional, Tuple

sys.path.insert(0, str(Path(__file__).parents[1] / "hunt"))

from hunt_fakes import FakeEngine, Finder, leaking

from kdleak.journal import Journal
from kdleak.windbg.hunt_entry import HuntJob
from kdleak.windbg.output import Output

PACKAGE = str(Path(__file__).parents[3] / "kdleak")


class Pane:
    """What pykd-ext puts in the place of stdout and stderr: ASCII, and next to no methods."""

    encoding = "ascii"
    closed = False

    def __init__(self, said: Optional[List[str]] = None) -> None:
        self.said: List[str] = [] if said is None else said

    def write(self, text: str) -> None:
        text.encode("ascii")
        self.said.append(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    @property
    def text(self) -> str:
        return "".join(self.said)


class ClickablePane(Pane):
    """stdout there, with DML."""

    def writedml(self, text: str) -> None:
        text.encode("ascii")
        self.said.append("<dml>" + text)


class WinDbgEngine(FakeEngine):
    """The fake target as the engine inside WinDbg: the session is not ours to end."""

    name = "dbgeng over pykd"

    def __init__(self, *events: Any, **more: Any) -> None:
        super().__init__(*events, **more)
        self.remarks: List[str] = []  # type: ignore[assignment]
        self.left: List[bool] = []

    def reload(self) -> Tuple[str, ...]:
        super().reload()
        return ()

    def detach(self, leave_stopped: bool = False) -> None:
        self.left.append(leave_stopped)


class Session:
    """A hunt in a debugger that is not there."""

    def __init__(self, folder: Path, engine: Optional[WinDbgEngine] = None, **more: Any) -> None:
        self.engine = engine if engine is not None else WinDbgEngine(leaking())
        self.said: List[str] = []
        self.out, self.err = ClickablePane(self.said), Pane(self.said)
        self.journal = Journal(folder, now=lambda: 1.0, sleep=lambda _: None)
        self.requests: List[Any] = []
        engine_clock = self.engine.clock

        def hunter(engine: Any, options: Any, **how: Any) -> Any:
            from kdleak.hunt import hunt

            how.update(clock=engine_clock, sleep=engine_clock.sleep)
            return hunt(engine, options, **how)

        self.job = HuntJob(
            Output(self.out, self.err), self.open, self.journal, Finder, hunter, **more
        )

    def open(self, request: Any, narrate: Callable[[str], None]) -> WinDbgEngine:
        self.requests.append(request)
        return self.engine

    def run(self, *arguments: str) -> int:
        return self.job.run(arguments)

    @property
    def text(self) -> str:
        return "".join(self.said)

    @property
    def last_line(self) -> str:
        return self.text.rstrip("\n").rpartition("\n")[2]


_NOT_BEFORE = {"SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH", "BEFORE_ASYNC_WITH", "YIELD_FROM"}
"""Instructions before which CPython runs no pending call, so that ``try`` follows unharmed."""


class Interruption:
    """Raises SystemExit("CTRL+BREAK") at the n-th bytecode that is executed in some files.

    Args:
        at: counted from 1; 0 only counts.
        files: ends of the paths of the files; our whole package when empty.
    """

    def __init__(self, at: int, *files: str, error: Callable[[], BaseException]) -> None:
        self.at = at
        self.count = 0
        self.where = ""
        self._error = error
        self._files = tuple(str(Path(one)) for one in files)  # as this system writes them

    def __enter__(self) -> Interruption:  # noqa: PYI034 - no Self on 3.9
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if self._files:
            ours = name.endswith(self._files)
        else:
            ours = name.startswith(PACKAGE) or name.endswith("contextlib.py")
        if not ours:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            code = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if code not in _NOT_BEFORE:
                self.count += 1
                if self.count == self.at:
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {code}"
                    raise self._error()
        return self._opcode


def ctrl_break() -> BaseException:
    return SystemExit("CTRL+BREAK")
