"""The channel to a binding that lives in a child process, where a wait can be ended for good.

DbgEng's wait for a target that is gone never ends, and nothing inside the process can end it
(measured: neither SetInterrupt nor an exit interrupt). So the binding lives in a Python of its
own, every request has a time limit, and a child that does not answer is killed with all it
started. After a lost link ``interrupt`` starts a new child and attaches again.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Optional, Sequence, Tuple, Type, Union

from kdleak.engine.channels.base import LIVE_KERNEL, QuickAccess, Resumed
from kdleak.engine.channels.child_main import Message
from kdleak.engine.channels.child_process import ChildEnded, ChildProcess
from kdleak.engine.channels.kd_text import says_connected
from kdleak.engine.channels.link_watch import WatchedText
from kdleak.engine.channels.patience import QUICK_SECONDS, seconds_for, seconds_to_read
from kdleak.engine.channels.secrecy import where_of, without_key
from kdleak.errors import (
    KdleakError,
    LinkLost,
    MemoryUnreadable,
    MissingDependency,
    NoTarget,
    NotLive,
    TargetError,
    TargetRestarted,
    UnsupportedTarget,
    UsageError,
)

BINDINGS = ("pykd", "pybag")
IMPORT_SECONDS = 120.0
_AGAIN_SECONDS = 30.0  # at least, for a target to answer a new child: it must have noticed first
_INTERRUPT_SECONDS = 3.0
_LOOK_SECONDS = 1.0  # between looks at whether the debugger has given its link up
_LOST_SECONDS = 10.0  # for a link that the debugger calls lost to come back
_LEAVE_SECONDS = 5.0
_CLOSE_SECONDS = 12.0

_KINDS: Dict[str, Type[KdleakError]] = {
    kind.__name__: kind
    for kind in (LinkLost, MissingDependency, NoTarget, NotLive, TargetError, UnsupportedTarget)
}
_CHECK = "check the target and its link"
_KERNEL_BASE = re.compile(r"Kernel base = (\S+)")
_UPTIME = re.compile(r"System Uptime: (\d+) days? (\d+):(\d+):(\d+(?:\.\d+)?)")


class ChildChannel:
    """A DbgEng session in a child process.

    Args:
        binding: "pykd" or "pybag".
        connection: WinDbg's ``-k`` string (kept to attach again, never shown), or a dump's path.
        symbol_path: WinDbg's ``-y``.
        dump: whether ``connection`` is a dump.
        timeout: seconds for the target to answer an attach.
        python: the interpreter's command.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        binding: str,
        connection: str,
        *,
        symbol_path: str,
        dump: bool,
        timeout: float,
        python: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = binding
        self.where = Path(connection).name if dump else where_of(connection)
        self.session = ""
        self._connection = connection
        self._attach_request: Message = {
            "do": "attach",
            "binding": binding,
            "connection": connection,
            "symbol_path": symbol_path,
            "dump": dump,
        }
        self._timeout = timeout
        self._python = python
        self._clock = clock
        self._text = WatchedText(clock)
        self._child: Optional[ChildProcess] = None
        self._ids = 0
        self._resuming: Optional[int] = None
        self._attaching: Optional[int] = None
        self._give_up_at = 0.0
        self._lost = ""
        self._closed = False
        self._patience = timeout
        self._started_at = 0.0
        self._import_patience = IMPORT_SECONDS
        self._boot: Tuple[str, float] = ("", 0.0)
        self._quick = ChildAccess(self)

    @property
    def quick(self) -> QuickAccess:
        """Memory and registers: both bindings have them."""
        return self._quick

    @property
    def running(self) -> bool:
        """Whether a resume has not come to its end, or the session is lost: stop it anew then."""
        return not self._closed and (self._resuming is not None or bool(self._lost))

    def open(self) -> None:
        """Start the child and attach.

        Raises:
            MissingDependency: no Python, or the binding does not load in it.
            NoTarget: refused, or no answer in time.
        """
        verb = "opening" if self._attach_request["dump"] else "attaching to"
        doing = f"{verb} {self.where} over {self.name}"
        try:
            self._start()
            answer = self._attached(None)
        except ChildEnded:
            words = self._end_child()
            raise NoTarget(doing, f"its process ended: {words}") from None
        except KdleakError:
            self._end_child()
            raise
        if answer is None:
            self._end_child()
            if self._attach_request["dump"]:
                raise TargetError(
                    doing,
                    f"the debugger was not done within {self._timeout:.0f} s",
                    "give it more time (--timeout), or a local symbol path if symbols are being "
                    "downloaded",
                )
            raise NoTarget(
                doing,
                f"no answer within {self._timeout:.0f} s",
                "check that the target is up with kernel debugging on, the port and the key, "
                "and that no other debugger is attached",
            )
        self._boot = _boot(self._text.take())
        self.session = str(answer.get("session", LIVE_KERNEL))

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        """Run one command line; see ``Channel.execute``."""
        doing = f"running `{without_key(command, self._connection)}` on {self.where}"
        limit = seconds_for(command) if timeout is None else timeout
        return str(self.ask(doing, {"do": "execute", "command": command}, limit))

    def ask(self, doing: str, request: Message, timeout: float) -> object:
        """Have the stopped target asked something.

        Raises:
            LinkLost: no answer in time, or the child ended.
            KdleakError: what the child answered.
        """
        if self._closed or self._child is None or self._lost:
            raise LinkLost(doing, self._lost or "the session is closed")
        if self._resuming is not None:
            raise TargetError(doing, "the target runs", "stop it first")
        try:
            answer = self._request(request, timeout)
            if answer is not None:
                return answer["ok"]
            # Interrupted, the engine may be of use still: a slow command is no lost link.
            self._child.send({"do": "interrupt"})
            late = self._answer(self._ids, _INTERRUPT_SECONDS)
        except ChildEnded:
            raise self._ended(doing) from None
        why = f"no answer within {timeout:.0f} s, then it was interrupted"
        if late is None:
            self._lost = why = f"no answer within {timeout:.0f} s, and it cannot be interrupted"
            self._end_child()
        raise LinkLost(doing, why, "check that the link to the target still works")

    def resume(self, timeout: Optional[float]) -> Resumed:
        """Let it run and wait; see ``Channel.resume``. The target runs on when the time is over."""
        doing = f"letting {self.where} run"
        if self.session != LIVE_KERNEL:
            raise NotLive(doing, f"it is a {self.session}")
        if self._closed or self._child is None or self._lost:
            raise LinkLost(doing, self._lost or "the session is closed")
        try:
            if self._resuming is None:
                self._resuming = self._post({"do": "resume"})
            return self._wait(timeout)
        except ChildEnded:
            raise self._ended(doing) from None

    def interrupt(self, timeout: float) -> Resumed:
        """Stop a running target; see ``Channel.interrupt``.

        After a lost link each call goes on attaching anew, with a new child when the last one
        had its time.
        """
        doing = f"stopping {self.where} over {self.name}"
        if self._closed:
            raise LinkLost(doing, self._lost)
        if self._child is None or self._lost:
            return self._again(timeout)
        if self._resuming is None:
            return Resumed(text=self._taken())
        try:
            self._child.send({"do": "interrupt"})
            resumed = self._wait(timeout)
        except ChildEnded:
            raise self._ended(doing) from None
        if resumed.running:
            self._text.write(resumed.text)
            self._lost = f"it did not stop within {timeout:.0f} s"
            raise LinkLost(doing, self._lost, _CHECK)
        return resumed

    def close(self, leave_stopped: bool = False) -> None:
        """Leave the session and end the child.

        A target that runs is broken into first: the end of a debugger at the very moment when
        the target reports something would leave it standing.
        """
        child, self._closed = self._child, True
        if child is None:
            return
        try:
            with contextlib.suppress(ChildEnded, KdleakError):
                if self._stop_to_leave():
                    self._post({"do": "close", "leave_stopped": leave_stopped})
                    child.wait(_CLOSE_SECONDS)
        finally:
            self._lost = "the session is closed"
            self._end_child()

    def _stop_to_leave(self) -> bool:
        """Whether the target stands at a stop, from where it can be left in an orderly way."""
        if self._attaching is not None:
            # One that has answered may be stopped by now.
            return says_connected(self._text.take()) and self._attached(_LEAVE_SECONDS) is not None
        if self._lost:
            return False
        if self._resuming is None or self.session != LIVE_KERNEL:
            return True
        if self._child is not None:
            self._child.send({"do": "interrupt"})
        return not self._wait(_LEAVE_SECONDS).running

    def _start(self) -> None:
        self._text.forget()
        self._child = ChildProcess(self._python, self._text, self._clock)
        self._lost = ""
        self._resuming = None
        self._started_at = self._clock()
        self._give_up_at = self._started_at + self._import_patience
        self._attaching = self._post(self._attach_request)

    def _attached(self, timeout: Optional[float]) -> Optional[Message]:
        """The answer to the attach, None when ``timeout`` or the attach's own time is over."""
        if self._attaching is None:
            return None
        until = None if timeout is None else self._clock() + timeout
        while True:
            end = self._give_up_at if until is None else min(until, self._give_up_at)
            answer = self._answer(self._attaching, max(0.0, end - self._clock()))
            if answer is None:
                # The end has moved when the import came to its end meanwhile.
                now = self._clock()
                if now >= self._give_up_at or (until is not None and now >= until):
                    return None
                continue
            self._attaching = None
            ok: Message = answer["ok"]
            return ok

    def _again(self, timeout: float) -> Resumed:
        doing = f"attaching to {self.where} again over {self.name}"
        try:
            if self._attaching is None:
                self._end_child()
                self._patience = max(self._timeout, _AGAIN_SECONDS)
                self._start()
            answer = self._attached(timeout)
        except ChildEnded:
            raise self._ended(doing) from None
        except KdleakError as error:
            self._lost = error.came_back or error.tried
            self._end_child()
            raise LinkLost(doing, self._lost, error.next_step) from None
        if answer is None:
            self._lost = "the target did not answer"
            if self._clock() >= self._give_up_at:
                self._end_child()
            raise LinkLost(doing, self._lost, _CHECK)
        self._lost = ""
        text = self._taken()
        before, self._boot = self._boot, _boot(text)
        if _is_new_boot(before, self._boot):
            raise TargetRestarted(doing, "the target was started anew meanwhile")
        return _resumed(answer, text)

    def _wait(self, timeout: Optional[float]) -> Resumed:
        if self._resuming is None:
            raise ChildEnded
        until = None if timeout is None else self._clock() + timeout
        while True:
            left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, until - self._clock())
            try:
                answer = self._answer(self._resuming, max(0.0, left))
            except KdleakError as error:
                self._resuming = None
                self._lost = error.came_back or error.tried
                raise
            if answer is not None:
                self._resuming = None
                self._text.answered()
                return _resumed(answer["ok"], self._taken())
            if self._text.lost_for() > _LOST_SECONDS:
                self._lost = "the debugger says that the link to the target is lost"
                raise LinkLost(f"waiting for {self.where} to stop", self._lost, _CHECK)
            if until is not None and self._clock() >= until:
                return Resumed(text=self._taken(), running=True)

    def _taken(self) -> str:
        return without_key(self._text.take(), self._connection)

    def _post(self, request: Message) -> int:
        if self._child is None:
            raise ChildEnded
        self._ids += 1
        self._child.send({"id": self._ids, **request})
        return self._ids

    def _request(self, request: Message, timeout: float) -> Optional[Message]:
        wanted = self._post(request)
        until = self._clock() + timeout
        while True:
            left = max(0.0, until - self._clock())
            answer = self._answer(wanted, min(_LOOK_SECONDS, left))
            if answer is not None:
                self._text.answered()
                return answer
            if left <= 0 or self._text.lost_for() > _LOST_SECONDS:
                return None

    def _answer(self, wanted: int, timeout: Optional[float]) -> Optional[Message]:
        """The answer with that number; None when the time is over. Older ones are dropped."""
        until = None if timeout is None else self._clock() + timeout
        while self._child is not None:
            left = None if until is None else max(0.0, until - self._clock())
            message = self._child.next_message(left)
            if message is None:
                return None
            if message.get("stage") == "attaching":
                now = self._clock()
                self._give_up_at = now + self._patience
                # A second child has what the first one had to read from the disk.
                self._import_patience = min(IMPORT_SECONDS, 15.0 + 3 * (now - self._started_at))
                if wanted == self._attaching:
                    return None
            elif message.get("id") == wanted:
                if "error" in message:
                    raise self._error(message["error"])
                return message
        raise ChildEnded

    def _error(self, described: Message) -> KdleakError:
        parts = [
            without_key(str(described.get(part, "")), self._connection)
            for part in ("tried", "came_back", "next_step")
        ]
        if described.get("kind") == "MemoryUnreadable":
            return MemoryUnreadable(
                int(described["address"]), int(described["size"]), parts[1], parts[2]
            )
        return _KINDS.get(str(described.get("kind")), TargetError)(*parts)

    def _ended(self, doing: str) -> LinkLost:
        words = self._end_child()
        self._lost = f"the debugger's process ended: {words}"
        return LinkLost(doing, self._lost, "check the target; attach again")

    def _end_child(self) -> str:
        """Kill it; what it said last."""
        child, self._child = self._child, None
        self._attaching = self._resuming = None
        if child is None:
            return ""
        child.kill()
        return without_key(child.last_words, self._connection) or "it said nothing"


class ChildAccess:
    """Memory and registers through the child.

    Args:
        channel: whose child.
    """

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes; see ``QuickAccess``."""
        request: Message = {"do": "read", "address": address, "size": size}
        doing = f"reading memory of {self._channel.where}"
        return bytes.fromhex(str(self._channel.ask(doing, request, seconds_to_read(size))))

    def registers(self) -> Dict[str, int]:
        """Integer registers of the processor that stopped."""
        doing = f"reading registers of {self._channel.where}"
        answer = self._channel.ask(doing, {"do": "registers"}, QUICK_SECONDS)
        if not isinstance(answer, dict):
            raise TargetError(doing, "the debugger's process answered with none", "try again")
        return {str(name): int(value) for name, value in answer.items()}


def open_child(
    binding: str,
    connection: str,
    *,
    symbol_path: str = "",
    timeout: float = 30.0,
    python: Union[str, Sequence[str], None] = None,
    dump: bool = False,
) -> ChildChannel:
    """A session over pykd or pybag in a child process, attached and stopped.

    Args:
        binding: "pykd" or "pybag".
        connection: WinDbg's ``-k`` string, or the path of a dump.
        symbol_path: WinDbg's ``-y``; "" for the engine's own.
        timeout: seconds for the target to answer.
        python: the interpreter that has the binding (a program, or its command line); this one
            by default.
        dump: whether ``connection`` is a dump's path.

    Raises:
        UsageError: no such binding.
        MissingDependency: no Python, or the binding does not load in it.
        NoTarget: refused, or no answer in time.
    """
    if binding not in BINDINGS:
        raise UsageError(f"opening a session over {binding!r}", "there is pykd and pybag")
    command = (
        [sys.executable] if python is None else [python] if isinstance(python, str) else python
    )
    channel = ChildChannel(
        binding, connection, symbol_path=symbol_path, dump=dump, timeout=timeout, python=command
    )
    channel.open()
    return channel


def _resumed(answer: Message, text: str) -> Resumed:
    return Resumed(
        text=text + str(answer.get("text") or ""),
        processor=answer.get("processor"),
        code=answer.get("code"),
        first_chance=bool(answer.get("first_chance", True)),
    )


def _boot(text: str) -> Tuple[str, float]:
    """(kernel base, uptime in seconds) as the banner of an attach has them."""
    base = _KERNEL_BASE.search(text)
    up = _UPTIME.search(text)
    seconds = 0.0
    if up:
        days, hours, minutes = (int(up.group(part)) for part in (1, 2, 3))
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + float(up.group(4))
    return base.group(1) if base else "", seconds


def _is_new_boot(before: Tuple[str, float], now: Tuple[str, float]) -> bool:
    moved = bool(before[0] and now[0]) and before[0] != now[0]
    return moved or (bool(before[1] and now[1]) and now[1] < before[1])
