"""An advisory lock on a file: tells a living kdleak process from one that was killed.

The operating system drops the lock with its process, however that ends, so no process id has to
be judged (they are reused, and asking Windows about one is not harmless).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from kdleak.errors import JournalError

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        except OSError as error:
            # EACCES, EDEADLOCK: held by another process; Wine's C library gives no number at all.
            if error.errno in (0, 13, 36):
                return False
            raise
        return True
else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class FileLock:
    """One lock file, held from ``acquire`` to ``release`` (or the end of the process)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor >= 0

    def acquire(self) -> bool:
        """Take the lock if it is free; does not wait.

        Returns:
            False when somebody else holds it.

        Raises:
            JournalError: the file system does not offer locks, or the file cannot be made.
        """
        if self.held:
            return True
        for _ in range(10):
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            except PermissionError as error:
                if sys.platform == "win32":
                    return False  # being removed by the process that just let go of it
                raise self._error(error) from error
            except OSError as error:
                raise self._error(error) from error
            try:
                locked = _lock(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise self._error(error) from error
            if not locked:
                os.close(descriptor)
                return False
            if self._is_current(descriptor):
                self._descriptor = descriptor
                return True
            # The file was removed between opening and locking: this lock excludes nobody.
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Let go, and remove the file. Never raises."""
        if not self.held:
            return
        descriptor, self._descriptor = self._descriptor, -1
        if sys.platform != "win32":
            # Removed while locked, so that nobody can lock a file about to vanish unnoticed.
            with contextlib.suppress(OSError):
                self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(descriptor)
        if sys.platform == "win32":
            # Windows removes no open file; if another process has opened it by now, it stays.
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _is_current(self, descriptor: int) -> bool:
        if os.name == "nt":
            return True  # an open file cannot be removed there
        try:
            there = self._path.stat()
        except OSError:
            return False
        mine = os.fstat(descriptor)
        return os.path.samestat(there, mine)

    def _error(self, error: OSError) -> JournalError:
        return JournalError(
            f"locking the journal file {self._path.name}",
            error.strerror or str(error),
            "point KDLEAK_STATE_DIR at a local folder that you can write to",
        )
