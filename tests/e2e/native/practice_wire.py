"""A practice target in a thread, on KDNET or on a TCP stream, with free ports."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import kdleak.practice.images as practice_images
from kdleak.kd.connection import open_target
from kdleak.practice.target import PracticeTarget
from kdleak.practice.workload import Workload

IMAGES = Path(practice_images.__file__).parent
KEY = "8.8.8.8"


def free_port(kind: int) -> int:
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def symbol_path(build: int | None = None) -> str:
    return f"{IMAGES};{IMAGES / str(build)}" if build else str(IMAGES)


@contextlib.contextmanager
def practice_target(
    medium: str, *, workload: Workload | None = None, **more
) -> Iterator[tuple[PracticeTarget, str]]:
    """The running target and the connection string for its debugger."""
    if medium == "net":
        port = free_port(socket.SOCK_DGRAM)
        here = f"net:host=127.0.0.1,port={port},key={KEY}"
        there = f"net:port={port},key={KEY}"
    else:
        port = free_port(socket.SOCK_STREAM)
        here, there = f"tcp:{port}", f"com:ipport={port},port=127.0.0.1"
    target = PracticeTarget(open_target(here), workload=workload, **more)
    thread = threading.Thread(target=target.run, name="practice", daemon=True)
    thread.start()
    try:
        yield target, there
    finally:
        target.stop()
        thread.join(20)
        assert not thread.is_alive()
        target.close()
