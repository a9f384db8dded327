"""Every engine there is, attached to a practice target over KDNET."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from kdleak.engine.base import Engine
from kdleak.engine.channels.base import Channel
from kdleak.engine.channels.child import open_child
from kdleak.engine.channels.kd import open_kd
from kdleak.engine.dbgeng import open_dbgeng
from kdleak.engine.native import attach_native
from tests.rig.channel_session import python_command
from tests.rig.conftest import Practice
from tests.rig.rig import Rig

SLOW_START = 8.0  # seconds pybag needs under Wine before it listens


@contextlib.contextmanager
def opened(
    engine: str, practice: Practice, rig: Rig, folder: Path, *, use_kb: bool = False
) -> Iterator[Engine]:
    """An engine attached to the target; it leaves the target running."""
    if engine == "native":
        practice.start()
        with attach_native(practice.connection, practice.symbols) as native:
            yield native
        return
    if engine == "kd":
        practice.start()
        channel: Channel = open_kd(
            practice.connection, kd=str(rig.kd), symbol_path=practice.symbols, timeout=60
        )
    else:
        program = python_command(rig, practice, folder)
        late = threading.Timer(SLOW_START if engine == "pybag" else 0.0, practice.start)
        late.start()
        try:
            channel = open_child(engine, practice.connection, timeout=90, python=program)
        except BaseException:
            late.cancel()  # the target would outlive the test
            raise
        finally:
            late.join()
    with open_dbgeng(channel, use_kb=use_kb) as dbgeng:
        yield dbgeng
