"""Getting one file of a web store: redirects, time limits, one more try, a bounded size.

The answer of a server is untrusted in every respect, and so are its words: only numbers, and
what this module says itself, get into messages. Addresses may hold credentials; messages name
the host alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urljoin, urlsplit

from kdleak.nt.fetching.names import host_of

USER_AGENT = "Microsoft-Symbol-Server/10.0.0.0 kdleak"
"""Some servers answer only to clients that begin like Microsoft's."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ABSENT = frozenset({404, 410})
_AGAIN = frozenset({408, 425, 429})
_SMALL = 0x10000


@dataclass(frozen=True)
class FetchLimits:
    """What a server may cost.

    Attributes:
        connect: seconds until a connection stands.
        read: seconds between two parts of an answer.
        total: seconds for one file.
        size: bytes of one file, after undoing content encodings.
        redirects: in a row.
        pause: seconds before the one further try.
    """

    connect: float = 10.0
    read: float = 30.0
    total: float = 1800.0
    size: int = 2 << 30
    redirects: int = 8
    pause: float = 1.0


class TransferError(Exception):
    """A server could not be used for a file; the text says why in one clause, without secrets.

    Attributes:
        advice: what the user can do, one clause.
        again: whether a further try may help.
        down: whether the server cannot be reached at all.
    """

    def __init__(
        self, why: str, advice: str = "", *, again: bool = False, down: bool = False
    ) -> None:
        super().__init__(why)
        self.advice = advice
        self.again = again
        self.down = down


class Answer(Protocol):
    """One answer of a server, its body not read yet."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives, content encodings undone. Raises TransferError."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Transport(Protocol):
    """Sends one GET request and follows nothing."""

    def get(self, address: str, limits: FetchLimits) -> Answer:
        """The answer. Raises TransferError."""
        ...

    def close(self) -> None:
        """Let go of kept connections; more may follow."""
        ...


@dataclass(frozen=True)
class Body:
    """The contents of a file that a server has.

    Attributes:
        size: bytes, as the server claims; None where it does not say.
        chunks: its parts.
    """

    size: int | None
    chunks: Iterator[bytes]


class WebClient:
    """Gets files from web stores.

    Args:
        transport: sends the requests.
        limits: what a server may cost.
        clock: seconds, monotonic.
        sleep: waits a number of seconds.

    Attributes:
        limits: what a server may cost.
    """

    def __init__(
        self,
        transport: Transport,
        limits: FetchLimits,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport = transport
        self.limits = limits
        self._clock = clock
        self._sleep = sleep

    def fetch(self, address: str, take: Callable[[Body], None]) -> bool:
        """Get a file; a server that is busy or slow is asked once more.

        Args:
            address: of the file.
            take: takes the contents, anew at the second try.

        Returns:
            False when the server does not have it.

        Raises:
            TransferError: from the transfer, or from ``take``.
        """
        try:
            return self._once(address, take)
        except TransferError as error:
            if not error.again:
                raise
        self._sleep(self.limits.pause)
        return self._once(address, take)

    def small(self, address: str) -> str | None:
        """A small text file; None when the server does not have it.

        Raises:
            TransferError: as ``fetch``; also when it is larger than 64 KB.
        """
        parts: list[bytes] = []

        def take(body: Body) -> None:
            parts.clear()
            for chunk in body.chunks:
                parts.append(chunk)
                if sum(map(len, parts)) > _SMALL:
                    raise TransferError("a text of at most 64 KB was expected, this is larger")

        if not self.fetch(address, take):
            return None
        return b"".join(parts).decode("utf-8", "replace")

    def _once(self, address: str, take: Callable[[Body], None]) -> bool:
        deadline = self._clock() + self.limits.total
        with contextlib.closing(self._follow(address, deadline)) as answer:
            if answer.status in _ABSENT:
                return False
            if answer.status != HTTPStatus.OK:
                raise _refusal(answer.status)
            take(Body(self._claimed(answer), self._bounded(answer, deadline)))
            return True

    def _follow(self, address: str, deadline: float) -> Answer:
        for _ in range(self.limits.redirects + 1):
            answer = self._transport.get(address, self.limits)
            if answer.status not in _REDIRECTS:
                return answer
            answer.close()
            self._in_time(deadline)
            address = redirected(address, answer.headers.get("Location", ""))
        raise TransferError(
            f"it sent the request on more than {self.limits.redirects} times",
            "check the address of the server",
        )

    def _claimed(self, answer: Answer) -> int | None:
        """Content-Length; with a content encoding it says nothing about the file."""
        text = answer.headers.get("Content-Length", "").strip()
        if not (text.isascii() and text.isdigit()) or len(text) > 20:
            return None
        if int(text) > self.limits.size:
            raise self._too_large(int(text))
        encoded = answer.headers.get("Content-Encoding", "identity").strip().lower()
        return int(text) if encoded in ("", "identity") else None

    def _bounded(self, answer: Answer, deadline: float) -> Iterator[bytes]:
        size = 0
        for chunk in answer.chunks():
            size += len(chunk)
            if size > self.limits.size:
                raise self._too_large(size)
            self._in_time(deadline)
            yield chunk

    def _too_large(self, size: int) -> TransferError:
        return TransferError(
            f"the file is too large ({size:,} bytes, the limit is {self.limits.size:,})",
            "fetch it by hand if it is the right one",
        )

    def _in_time(self, deadline: float) -> None:
        if self._clock() > deadline:
            raise TransferError(
                f"the transfer was not over after {self.limits.total:g} s",
                "fetch it by hand, or try again when the line is better",
            )


def redirected(address: str, location: str) -> str:
    """Where a redirect leads.

    Raises:
        TransferError: nowhere, or from https to something that others can read and change.
    """
    try:
        target = urljoin(address, location)
        old, new = urlsplit(address), urlsplit(target)
        known = new.scheme in ("http", "https") and bool(new.hostname) and (new.port or 1) > 0
    except ValueError:
        known = False
    if not location or not known:
        raise TransferError(
            "it sent the request on to something that is no web address",
            "check the address of the server",
        )
    if old.scheme == "https" and new.scheme != "https":
        raise TransferError(
            f"it sent the request on from https to plain http (at {host_of(target)}), which is "
            "refused",
            "ask who runs the server, or name the other one in the symbol path if you trust it",
        )
    return target


def _refusal(status: int) -> TransferError:
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    if status in (401, 403, 407):
        return TransferError(
            f"it refused the request ({phrase})",
            "check user, password or token in the symbol path, and the proxy",
        )
    again = status >= 500 or status in _AGAIN
    advice = "try again later" if again else "check the address of the server"
    return TransferError(f"it answered {phrase}", advice, again=again)
