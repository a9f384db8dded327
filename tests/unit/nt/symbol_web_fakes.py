"""A symbol server for tests: http.server in a thread, answering as it is told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kdleak.nt.pdb import read_pdb
from kdleak.nt.pe import PdbIdentity

IMAGES = Path(__file__).parents[3] / "kdleak" / "practice" / "images"


def identity_of(path: Path) -> PdbIdentity:
    pdb = read_pdb(path, 8, names=False)
    return PdbIdentity(pdb.guid, pdb.ages[0], "d:\\build\\" + path.name)


PDB = IMAGES / "leakydrv.pdb"
CONTENT = PDB.read_bytes()
IDENTITY = identity_of(PDB)
PLACE = f"/symbols/leakydrv.pdb/{IDENTITY.key}/leakydrv.pdb"
PACKED = PLACE[:-1] + "_"
POINTER = PLACE.rsplit("/", 1)[0] + "/file.ptr"


class SymbolServer:
    """Files by path, or functions that answer; everything else is 404.

    Attributes:
        requests: (path with query, headers) as they arrived.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.requests.append((self.path, dict(self.headers)))
                path = unquote(urlsplit(self.path).path)
                if path in outer.answers:
                    outer.answers[path](self)
                    return
                body = outer.files.get(path)
                self.send_response(404 if body is None else 200)
                body = b"<html>nothing here</html>" if body is None else body
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            block_on_close = True
            daemon_threads = False

            def handle_error(self, *_):
                pass  # clients that go away are what some tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}/symbols"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    def redirect(self, path: str, target: str, status: int = 302) -> None:
        def answer(handler):
            handler.send_response(status)
            handler.send_header("Location", target)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        self.answers[path] = answer

    def send(self, path: str, body: bytes, status: int = 200, **headers: str) -> None:
        """Answer with exactly these headers (``_`` is ``-``), then close the connection."""

        def answer(handler):
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.send_header("Connection", "close")
            handler.end_headers()
            handler.wfile.write(body)
            handler.close_connection = True

        self.answers[path] = answer

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def symbol_server() -> Iterator[SymbolServer]:
    server = SymbolServer()
    try:
        yield server
    finally:
        server.close()
