"""Recording a debugger session, so that it can be replayed without the debugger.

One JSON object a line: a header, then one event for each thing asked of the debugger, written
and flushed as it happens, so that what a crash leaves behind can still be read. The engine and
the hunt above take their time from ``RecordingChannel.clock``, which stands still between
events: a replay then decides exactly as the recorded hunt did.

The KDNET key never reaches the file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import IO, Callable, Dict, List, Mapping, Optional

from kdleak import __version__
from kdleak.engine.channels.base import Channel, QuickAccess, Resumed
from kdleak.engine.channels.secrecy import without_key
from kdleak.errors import KdleakError, MemoryUnreadable, UsageError

FORMAT = "kdleak.recording"
FORMAT_VERSION = "1.0"


def check_new_file(path: Path, *, force: bool = False) -> None:
    """Refuse to record over a file that is there, before a target is touched.

    Raises:
        UsageError: the file exists, or its folder does not.
    """
    if path.exists() and not force:
        raise UsageError(
            f"recording to {path}", "the file exists", "name another one, or remove it first"
        )
    if not path.absolute().parent.is_dir():
        raise UsageError(
            f"recording to {path}", "its folder does not exist", "make the folder first"
        )


class RecordingChannel:
    """A channel that writes down what passes through it.

    Args:
        channel: the session.
        path: file to write.
        clock: seconds, monotonic.
        options: what a replay needs to know to ask the same again.
        force: write over an existing file.

    Attributes:
        incomplete: why the recording stopped early, "" while it goes on.

    Raises:
        UsageError: the file cannot be made.
    """

    def __init__(
        self,
        channel: Channel,
        path: Path,
        *,
        clock: Callable[[], float] = time.perf_counter,
        options: Optional[Mapping[str, object]] = None,
        force: bool = False,
    ) -> None:
        check_new_file(path, force=force)
        self._channel = channel
        self._real_clock = clock
        self._began = clock()
        self._at = 0.0
        self._path = path
        self.incomplete = ""
        try:
            self._file: Optional[IO[str]] = path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(
                f"recording to {path}", error.strerror or str(error), "name another file"
            ) from error
        quick = channel.quick
        self._quick = _RecordingQuick(quick, self._note, self._failed) if quick else None
        self._write(
            {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "generator": f"kdleak {__version__}",
                "channel": channel.name,
                "where": channel.where,
                "session": channel.session,
                "quick": quick is not None,
                "running": channel.running,
                "options": dict(options or {}),
            }
        )

    # -- what is passed through

    @property
    def name(self) -> str:
        """The session's."""
        return self._channel.name

    @property
    def where(self) -> str:
        """The session's."""
        return self._channel.where

    @property
    def session(self) -> str:
        """The session's."""
        return self._channel.session

    @property
    def running(self) -> bool:
        """The session's."""
        return self._channel.running

    @property
    def quick(self) -> Optional[QuickAccess]:
        """The session's, recorded too."""
        return self._quick

    @property
    def remarks(self) -> List[str]:
        """What is worth telling: an incomplete recording, and what the session has to say."""
        inner = list(getattr(self._channel, "remarks", []))
        if self.incomplete:
            inner.append(f"the recording {self._path.name} is incomplete: {self.incomplete}")
        return inner

    def clock(self) -> float:
        """Seconds of the last event since the recording began."""
        return self._at

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        """See ``Channel``."""
        try:
            text = self._channel.execute(command, timeout)
        except BaseException as error:
            self._failed("execute", error, command=command)
            raise
        self._note("execute", command=command, text=text)
        return text

    def resume(self, timeout: Optional[float]) -> Resumed:
        """See ``Channel``."""
        try:
            resumed = self._channel.resume(timeout)
        except BaseException as error:
            self._failed("resume", error)
            raise
        self._note("resume", **_resumed(resumed))
        return resumed

    def interrupt(self, timeout: float) -> Resumed:
        """See ``Channel``."""
        try:
            resumed = self._channel.interrupt(timeout)
        except BaseException as error:
            self._failed("interrupt", error)
            raise
        self._note("interrupt", **_resumed(resumed))
        return resumed

    def close(self, leave_stopped: bool = False) -> None:
        """Close the session and the file."""
        try:
            self._channel.close(leave_stopped)
        finally:
            self._note("close", leave_stopped=leave_stopped)
            self._close_file()

    # -- the file

    def _note(self, operation: str, **fields: object) -> None:
        self._at = max(self._at, self._real_clock() - self._began)
        event: Dict[str, object] = {"op": operation, "at": round(self._at, 6), **fields}
        self._at = round(self._at, 6)
        if self._channel.running:
            event["target_runs"] = True
        self._write(event)

    def _failed(self, operation: str, error: BaseException, **fields: object) -> None:
        if isinstance(error, KdleakError):
            what: Dict[str, object] = {
                "type": type(error).__name__,
                "tried": error.tried,
                "came_back": error.came_back,
                "next_step": error.next_step,
            }
            if isinstance(error, MemoryUnreadable):
                what.update(address=f"0x{error.address:x}", size=error.size)
        else:
            what = {"type": type(error).__name__}
        self._note(operation, **fields, error=what)

    def _write(self, event: Mapping[str, object]) -> None:
        if self._file is None or self.incomplete:
            return
        try:
            self._file.write(without_key(json.dumps(event, ensure_ascii=True)) + "\n")
            self._file.flush()
        except OSError as error:  # a full disk must not end a hunt with the tag armed
            self.incomplete = error.strerror or str(error)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self.incomplete = self.incomplete or error.strerror or str(error)


class _RecordingQuick:
    """Quick access, written down."""

    def __init__(
        self,
        quick: QuickAccess,
        note: Callable[..., None],
        failed: Callable[..., None],
    ) -> None:
        self._quick = quick
        self._note = note
        self._failed = failed

    def read(self, address: int, size: int) -> bytes:
        """See ``QuickAccess``."""
        try:
            data = self._quick.read(address, size)
        except BaseException as error:
            self._failed("read", error, address=f"0x{address:x}", size=size)
            raise
        self._note("read", address=f"0x{address:x}", size=size, bytes=data.hex())
        return data

    def registers(self) -> Dict[str, int]:
        """See ``QuickAccess``."""
        try:
            values = self._quick.registers()
        except BaseException as error:
            self._failed("registers", error)
            raise
        self._note("registers", values={name: f"0x{value:x}" for name, value in values.items()})
        return values


def _resumed(resumed: Resumed) -> Dict[str, object]:
    fields: Dict[str, object] = {"text": resumed.text}
    if resumed.running:
        fields["running"] = True
    if resumed.broke_in:
        fields["broke_in"] = True
    if resumed.processor is not None:
        fields["processor"] = resumed.processor
    if resumed.code is not None:
        fields["code"] = f"0x{resumed.code:08x}"
        fields["first_chance"] = resumed.first_chance
    return fields
