"""HTTP for web stores by requests: proxies, certificates and .netrc as that package has them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kdleak.errors import MissingDependency
from kdleak.nt.fetching.http import USER_AGENT, Answer, FetchLimits, TransferError

if TYPE_CHECKING:
    import requests

_CHUNK = 0x10000
_DEEPEST_CAUSE = 12


class RequestsTransport:
    """Sends requests by a session of the package requests.

    Raises:
        MissingDependency: it is not installed.
    """

    def __init__(self) -> None:
        try:
            import requests  # noqa: PLC0415 - only wanted with --symbols
        except ImportError as error:
            raise MissingDependency(
                "fetching symbols from a server",
                "the package requests is not installed",
                'pip install "kdleak[dump]"',
            ) from error
        self._requests = requests
        self._session = requests.Session()
        # Even when it follows no redirect, requests reads all of one's body, however long it is.
        self._session.get_redirect_target = _follow_nothing  # type: ignore[method-assign]
        self._session.headers.clear()
        self._session.headers.update(
            {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
        )

    def get(self, address: str, limits: FetchLimits) -> Answer:
        """See Transport."""
        try:
            response = self._session.get(
                address,
                stream=True,
                allow_redirects=False,
                timeout=(limits.connect, limits.read),
            )
        except (self._requests.RequestException, OSError, ValueError) as error:
            # Not chained: the text of the original holds the address with its credentials.
            raise _explained(error, limits) from None
        return _RequestsAnswer(response, limits)

    def close(self) -> None:
        """See Transport."""
        self._session.close()


def _follow_nothing(resp: requests.Response) -> str | None:  # noqa: ARG001 - requests' own name
    return None


class _RequestsAnswer:
    def __init__(self, response: requests.Response, limits: FetchLimits) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._limits = limits

    def chunks(self) -> Iterator[bytes]:
        import requests  # noqa: PLC0415 - see above
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - see above

        raw = self._response.raw
        try:
            if not hasattr(raw, "read1"):  # urllib3 before 2.0.4
                yield from raw.stream(_CHUNK, decode_content=True)
                return
            # One receive at a time: a server that drips must be noticed in time.
            while part := raw.read1(_CHUNK, decode_content=True):
                yield part
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            raise _explained(error, self._limits) from None

    def close(self) -> None:
        self._response.close()


def _explained(error: BaseException, limits: FetchLimits) -> TransferError:
    """What went wrong, without the text of the package: it quotes addresses and proxies."""
    import requests  # noqa: PLC0415 - see above
    from urllib3 import exceptions  # noqa: PLC0415 - see above

    causes = list(_causes(error))
    known: tuple[tuple[tuple[type[BaseException], ...], TransferError], ...] = (
        (
            (requests.exceptions.ProxyError, exceptions.ProxyError),
            TransferError(
                f"the proxy could not be used{_system_words(causes)}",
                "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
                down=True,
            ),
        ),
        (
            (requests.exceptions.SSLError, exceptions.SSLError, ssl.SSLError),
            TransferError(
                "its certificate or encryption was not accepted",
                "name your organisation's certificates with REQUESTS_CA_BUNDLE",
                down=True,
            ),
        ),
        (
            (requests.exceptions.ConnectTimeout, exceptions.ConnectTimeoutError),
            TransferError(
                f"no connection within {limits.connect:g} s",
                "check network and proxy (HTTPS_PROXY)",
                again=True,
                down=True,
            ),
        ),
        (
            (requests.exceptions.Timeout, exceptions.TimeoutError, TimeoutError),
            TransferError(f"nothing arrived for {limits.read:g} s", "try again later", again=True),
        ),
        (
            (exceptions.IncompleteRead,),
            TransferError(
                "the answer ended before its announced length", "try again later", again=True
            ),
        ),
        (
            (exceptions.DecodeError, requests.exceptions.ContentDecodingError),
            TransferError("the answer's content encoding is damaged", "try again later"),
        ),
        (
            (requests.exceptions.InvalidURL, exceptions.LocationValueError, UnicodeError),
            TransferError("its address makes no sense", "check the symbol path"),
        ),
        (
            (requests.exceptions.ConnectionError, exceptions.NewConnectionError, socket.gaierror),
            TransferError(
                f"no connection{_system_words(causes)}",
                "check the address, the network and the proxy (HTTPS_PROXY)",
                again=any(isinstance(cause, exceptions.ProtocolError) for cause in causes),
                down=True,
            ),
        ),
    )
    for kinds, explained in known:
        if any(isinstance(cause, kinds) for cause in causes):
            return explained
    return TransferError(
        f"the transfer failed ({type(error).__name__})", "try again later", again=True
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what is wrapped in it, however the packages wrap."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _DEEPEST_CAUSE:
        item = waiting.pop(0)
        if not isinstance(item, BaseException) or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        waiting += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]


def _system_words(causes: list[BaseException]) -> str:
    """The operating system's own words for a failure: " (Connection refused)", or ""."""
    for cause in causes:
        if isinstance(cause, OSError) and isinstance(cause.errno, int) and cause.strerror:
            return f" ({cause.strerror})"
    return ""
