"""The child's side: a Python that holds the debugger binding and does what lines on stdin ask.

One JSON object per line, each marked so that anything else which ends up on the stream is told
apart. Requests carry an ``id`` and ``do``: ``attach`` (first, with the connection: a secret that
belongs on no command line), ``execute``, ``resume``, ``read``, ``registers``, ``close``; each is
answered with ``{"id", "ok"}`` or ``{"id", "error"}``. ``interrupt`` may come at any time and is
not answered itself: what it interrupts is. ``{"text"}`` and ``{"stage"}`` come unasked.

Runs on Windows with CPython 3.9, the standard library and the binding.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO, Callable, Dict, Optional, Tuple

from kdleak.engine.channels.base import Resumed
from kdleak.engine.channels.running_text import RunningText
from kdleak.engine.channels.secrecy import without_key
from kdleak.errors import KdleakError, MemoryUnreadable, TargetError

MARK = b'{"kdleak":1,'
"""How a line of the protocol begins."""
_AGAIN_SECONDS = 5.0
"""A break-in that had no effect for so long is asked for again."""
_END_SECONDS = 10.0

Message = Dict[str, Any]


def encode(message: Message) -> bytes:
    """A message as one line of the protocol."""
    return MARK + json.dumps(message).encode("ascii")[1:] + b"\n"


def decode(line: bytes) -> Tuple[Optional[Message], bytes]:
    """(message, the rest): a line of the protocol, or None and what else the line holds."""
    at = line.find(MARK)
    if at < 0:
        return None, line
    try:
        message = json.loads(line[at:])
    except ValueError:
        return None, line
    return (message, line[:at]) if isinstance(message, dict) else (None, line)


class StreamedText(RunningText):
    """Text that goes to the parent at once.

    Args:
        send: sends a message.
    """

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._send = send
        self.connection = ""

    def write(self, text: str) -> None:
        """Send text."""
        if text:
            self._send({"text": without_key(text, self.connection)})


class Child:
    """Serves the requests of one parent.

    Args:
        requests: where they come from.
        answers: where the answers go, with nothing else on it.
    """

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._writing = threading.Lock()
        self._todo: queue.Queue[Optional[Message]] = queue.Queue()
        self._text = StreamedText(self.send)
        self._channel: Any = None
        self._busy_with: Optional[int] = None
        self._interrupt_wanted: Optional[int] = None
        self._newest = 0
        self._changed = threading.Condition()

    def send(self, message: Message) -> None:
        """Write one line, whole, from any thread. A parent that is gone ends us."""
        line = encode(message)
        try:
            with self._writing:
                self._answers.write(line)
                self._answers.flush()
        except (OSError, ValueError):
            os._exit(1)

    def serve(self) -> None:
        """Until the parent closes the session or is gone."""
        for work in (self._read, self._interrupt):
            threading.Thread(target=work, daemon=True).start()
        while True:
            request = self._todo.get()
            if request is None:
                self._leave()
                return
            with self._changed:
                self._busy_with = int(request["id"])
                self._changed.notify_all()
            answer = self._answer(request)
            with self._changed:
                self._busy_with = None
                self._changed.notify_all()
            self.send({"id": request["id"], **answer})
            if request.get("do") == "close":
                return

    def _leave(self) -> None:
        """The parent is gone: a target must not stay stopped because of that."""
        threading.Thread(target=_end_later, daemon=True).start()
        if self._channel is not None:
            self._channel.close()

    def _answer(self, request: Message) -> Message:
        try:
            return {"ok": self._do(request)}
        except KdleakError as error:
            return {"error": _described(error)}
        except Exception as error:  # noqa: BLE001 - bindings raise kinds of their own
            connection = self._text.connection
            sys.stderr.write(without_key(traceback.format_exc(), connection))
            reason = without_key(f"{type(error).__name__}: {error}", connection)
            return {"error": _described(TargetError("using the debugger", reason))}

    def _do(self, request: Message) -> object:
        what = request["do"]
        if what == "attach":
            return self._attach(request)
        channel = self._channel
        if channel is None:
            raise TargetError(f"{what} before the attach")
        if what == "execute":
            return channel.execute(request["command"])
        if what == "resume":
            return _resumed(channel.resume(None))
        if what == "read":
            return channel.quick.read(request["address"], request["size"]).hex()
        if what == "registers":
            return channel.quick.registers()
        if what == "close":
            return channel.close(leave_stopped=bool(request.get("leave_stopped")))
        raise TargetError(f"unknown request {what!r}")

    def _attach(self, request: Message) -> object:
        connection = str(request["connection"])
        dump = bool(request.get("dump"))
        self._text.connection = "" if dump else connection

        def attaching() -> None:
            self.send({"stage": "attaching"})

        symbols = str(request.get("symbol_path", ""))
        # Not before now: importing a binding takes seconds and has side effects.
        if request["binding"] == "pybag":
            from kdleak.engine.channels.pybag import attach_pybag  # noqa: PLC0415

            self._channel = attach_pybag(
                connection, symbols, dump=dump, text=self._text, attaching=attaching
            )
        else:
            from kdleak.engine.channels.pykd import attach_pykd  # noqa: PLC0415

            self._channel = attach_pykd(
                connection, symbols, dump=dump, text=self._text, attaching=attaching
            )
        return {"session": self._channel.session, **_resumed(self._channel.interrupt(0.0))}

    def _read(self) -> None:
        while True:
            try:
                line = self._requests.readline()
            except (OSError, ValueError):
                line = b""
            if not line:
                self._todo.put(None)
                # The main thread may wait for a target for ever.
                if self._busy_with is not None:
                    _end_later()
                return
            request, _ = decode(line)
            if request is None:
                continue
            if request.get("do") == "interrupt":
                with self._changed:
                    self._interrupt_wanted = self._newest
                    self._changed.notify_all()
            elif isinstance(request.get("id"), int):
                self._newest = int(request["id"])
                self._todo.put(request)

    def _interrupt(self) -> None:
        """Break in while the request that shall be interrupted is worked on, and only then.

        Asked for at a stop, a break-in would come up after the next resume.
        """
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._interrupt_wanted is not None
                        and self._busy_with == self._interrupt_wanted
                    )
                )
                wanted = self._busy_with
            # Time for the main thread to get from here into the binding.
            time.sleep(0.05)
            with self._changed:
                if self._busy_with == wanted and self._channel is not None:
                    self._break_in()
                self._changed.wait_for(lambda: self._busy_with != wanted, _AGAIN_SECONDS)  # noqa: B023
                if self._busy_with != wanted and self._interrupt_wanted == wanted:
                    self._interrupt_wanted = None

    def _break_in(self) -> None:
        try:
            self._channel.break_in()
        except Exception as error:  # noqa: BLE001 - bindings raise kinds of their own
            reason = without_key(f"{type(error).__name__}: {error}", self._text.connection)
            sys.stderr.write(f"the break-in failed: {reason}\n")


def _resumed(resumed: Resumed) -> Dict[str, object]:
    return {
        "text": resumed.text,
        "processor": resumed.processor,
        "code": resumed.code,
        "first_chance": resumed.first_chance,
    }


def _described(error: KdleakError) -> Dict[str, object]:
    described: Dict[str, object] = {
        "kind": type(error).__name__,
        "tried": error.tried,
        "came_back": error.came_back,
        "next_step": error.next_step,
    }
    if isinstance(error, MemoryUnreadable):
        described.update(address=error.address, size=error.size)
    return described


def _end_later() -> None:
    time.sleep(_END_SECONDS)
    os._exit(1)


def take_over_streams() -> Tuple[BinaryIO, BinaryIO]:
    """(requests, answers): what stdin and stdout were.

    Their numbers are given to others: whatever prints, from Python or C, ends up on stderr.
    """
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, answers


def main() -> None:
    """Serve the parent at the other end of stdin and stdout."""
    for name in ("SIGINT", "SIGBREAK"):  # Ctrl+C in the console is the parent's affair
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    requests, answers = take_over_streams()
    Child(requests, answers).serve()
    # DbgEng's threads are not waited for, and its DLLs are not unloaded.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
