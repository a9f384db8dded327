"""Replaying a recorded session: the same questions get the recorded answers, in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any, Dict, Mapping, NoReturn, Optional, Type

from kdleak import errors
from kdleak.engine.channels.base import DUMP, LIVE_KERNEL, LOCAL_KERNEL, QuickAccess, Resumed
from kdleak.engine.channels.record import FORMAT
from kdleak.errors import KdleakError, MemoryUnreadable, TargetError, UsageError

_LONGEST_LINE = 64 << 20
_NO_NUMBER = "a number"


class NotARecording(UsageError):
    """The file is no recording of kdleak's; a debugger's log is read with ``kdleak parse``."""


class ReplayMismatch(TargetError):
    """What is asked now was not asked when the session was recorded, or cannot be read."""


class RecordingOver(TargetError):
    """More is asked than was recorded: the session was cut there, or the file was."""


def open_replay(path: Path) -> ReplayChannel:
    """Open a recording.

    Raises:
        NotARecording: the file is something else.
        UsageError: it cannot be opened, or was written by a newer kdleak.
    """
    try:
        file = path.open(encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise UsageError(
            f"opening the recording {path}", error.strerror or str(error), "check its name"
        ) from error
    try:
        return ReplayChannel(path, file, _header(path, file))
    except BaseException:
        file.close()
        raise


def _header(path: Path, file: IO[str]) -> Mapping[str, Any]:
    try:
        header = json.loads(file.readline(1 << 20))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise NotARecording(
            f"opening the recording {path}",
            "it does not begin with kdleak's header",
            f"a log of a debugger is read with: kdleak parse {path}",
        )
    version = str(header.get("format_version", ""))
    if version.partition(".")[0] != "1":
        raise UsageError(
            f"opening the recording {path}",
            f"its format version is {version or 'missing'}, this kdleak reads 1",
            "use the kdleak that made it, or a newer one",
        )
    return header


class ReplayChannel:
    """A channel that answers from a recording.

    Args:
        path: of the recording, for messages.
        file: behind its header.
        header: its first line.

    Attributes:
        options: what the recorded command was asked to do.
    """

    def __init__(self, path: Path, file: IO[str], header: Mapping[str, Any]) -> None:
        self._path = path
        self._file = file
        self._line = 1
        self._at = 0.0
        self._running = bool(header.get("running"))
        self._quick = _ReplayQuick(self) if header.get("quick") else None
        self._name = _text(header.get("channel"))
        self._where = _text(header.get("where"))
        session = header.get("session")
        self._session = session if session in (DUMP, LOCAL_KERNEL) else LIVE_KERNEL
        options = header.get("options")
        self.options: Mapping[str, object] = options if isinstance(options, dict) else {}

    @property
    def name(self) -> str:
        """What was recorded: "kd (replayed)"."""
        return f"{self._name} (replayed)"

    @property
    def where(self) -> str:
        """The target of the recorded session."""
        return self._where

    @property
    def session(self) -> str:
        """As recorded."""
        return self._session

    @property
    def running(self) -> bool:
        """As recorded."""
        return self._running

    @property
    def quick(self) -> Optional[QuickAccess]:
        """As recorded."""
        return self._quick

    def clock(self) -> float:
        """Seconds of the last event since the recording began."""
        return self._at

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        """The recorded text.

        Raises:
            ReplayMismatch: something else was asked here.
            RecordingOver: this is where it ends.
        """
        del timeout
        return _text(self.take("execute", command=command).get("text"))

    def resume(self, timeout: Optional[float]) -> Resumed:
        """As recorded."""
        del timeout
        return self._resumed("resume")

    def interrupt(self, timeout: float) -> Resumed:
        """As recorded."""
        del timeout
        return self._resumed("interrupt")

    def close(self, leave_stopped: bool = False) -> None:
        """Close the file."""
        del leave_stopped
        self._file.close()

    # -- events

    def take(self, operation: str, **asked: object) -> Mapping[str, Any]:
        """The next event, which must be this one.

        Raises:
            ReplayMismatch: it is another one.
            RecordingOver: there is none.
            KdleakError: what was raised when it was recorded.
        """
        event = self._next(operation)
        if event.get("op") != operation or any(
            event.get(name) != value for name, value in asked.items()
        ):
            self._at += 1.0
            raise ReplayMismatch(
                f"replaying {self._path.name}",
                f"line {self._line} holds {_described(event)}, but now "
                f"{_described({'op': operation, **asked})} is asked",
                "replay it with the options and the version of kdleak it was recorded with",
            )
        at = event.get("at")
        if isinstance(at, (int, float)):
            self._at = max(self._at, float(at))
        self._running = bool(event.get("target_runs"))
        error = event.get("error")
        if isinstance(error, dict):
            _raise(error)
        return event

    def _next(self, operation: str) -> Mapping[str, Any]:
        text = "" if self._file.closed else self._file.readline(_LONGEST_LINE)
        if text.strip():
            self._line += 1
        try:
            event = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            event = None
        if text.endswith("\n") and text.strip() and not isinstance(event, dict):
            self.damaged("an event")
        if not isinstance(event, dict):
            self._at += 1.0  # so that whoever waits for a lost link comes to an end
            # No LinkLost: nobody need wait for a link to come back.
            raise RecordingOver(
                f"replaying {self._path.name}",
                f"the recording ends behind line {self._line - (1 if text.strip() else 0)}, "
                f"before the {operation} that is asked now",
                "this is all there is: the session was cut there, or the file was",
            )
        return event

    def _resumed(self, operation: str) -> Resumed:
        event = self.take(operation)
        processor = event.get("processor")
        code = event.get("code")
        return Resumed(
            text=_text(event.get("text")),
            running=bool(event.get("running")),
            broke_in=bool(event.get("broke_in")),
            processor=processor if isinstance(processor, int) else None,
            code=self.number(code) if code is not None else None,
            first_chance=bool(event.get("first_chance", True)),
        )

    def number(self, value: object) -> int:
        """A number of an event: hexadecimal text, or plain.

        Raises:
            ReplayMismatch: it is none; the recording is damaged.
        """
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        try:
            return int(str(value), 16)
        except ValueError:
            self.damaged(_NO_NUMBER)

    def damaged(self, what: str) -> NoReturn:
        """Raise for a line without what it must have."""
        self._at += 1.0
        raise ReplayMismatch(
            f"replaying {self._path.name}",
            f"line {self._line} is damaged: {what} is missing",
            "get an intact copy of the recording",
        )


class _ReplayQuick:
    """Quick access from a recording."""

    def __init__(self, channel: ReplayChannel) -> None:
        self._channel = channel

    def read(self, address: int, size: int) -> bytes:
        """The recorded bytes."""
        event = self._channel.take("read", address=f"0x{address:x}", size=size)
        try:
            data = bytes.fromhex(_text(event.get("bytes")))
        except ValueError:
            self._channel.damaged("memory")
        if len(data) != size:
            self._channel.damaged("memory")
        return data

    def registers(self) -> Dict[str, int]:
        """The recorded values."""
        values = self._channel.take("registers").get("values")
        if not isinstance(values, dict):
            self._channel.damaged("registers")
        return {str(name): self._channel.number(value) for name, value in values.items()}


def _raise(error: Mapping[str, Any]) -> NoReturn:
    """What was raised when the session was recorded."""
    name = _text(error.get("type"))
    if name in ("KeyboardInterrupt", "SystemExit"):
        raise KeyboardInterrupt
    tried, came_back = _text(error.get("tried")), _text(error.get("came_back"))
    next_step = _text(error.get("next_step"))
    if name == "MemoryUnreadable":
        try:
            address, size = int(_text(error.get("address")), 16), int(error.get("size") or 0)
        except (TypeError, ValueError):
            address, size = 0, 0
        raise MemoryUnreadable(address, size, came_back, next_step)
    kind: Type[KdleakError] = TargetError
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, KdleakError):
        kind = known
    raise kind(tried or f"replaying ({name})", came_back, next_step)


def _described(event: Mapping[str, Any]) -> str:
    detail = event.get("command") or event.get("address") or ""
    return f"{event.get('op')} {detail}".strip()[:120]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
