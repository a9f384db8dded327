"""A result in a file: written in one step, never over another one unless that was asked for."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Optional

from kdleak.errors import UsageError


def write_file(text: str, output: Path) -> None:
    """Write beside the file and put that in its place when it is whole.

    Raises:
        OSError: from the file system; nothing is left behind.
    """
    with tempfile.NamedTemporaryFile(
        "w",
        encoding="utf-8",
        newline="\n",
        dir=output.parent,
        prefix=output.name + ".",
        delete=False,
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
            file.close()
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)  # as any other new file, not for its owner alone
            temporary.replace(output)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def refuse_overwrite(output: Optional[Path], *, force: bool) -> None:
    """Refuse a file that exists, before the work and not after it.

    Raises:
        UsageError: the file exists and ``force`` is not set, or its folder does not.
    """
    if output is None:
        return
    try:
        folder, there, plain = output.is_dir(), output.exists(), output.is_file()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"writing {output}", why, "name a file elsewhere") from error
    if folder:
        raise UsageError(f"writing {output}", "it is a folder", "name a file in it")
    if there and not plain:
        # Putting a new file in its place would remove a device, or a pipe that somebody reads.
        raise UsageError(
            f"writing {output}", "it is no regular file", "leave -o out: the result goes to stdout"
        )
    if there and not force:
        raise UsageError(f"writing {output}", "the file exists", "add --force or name another file")
    if not output.parent.is_dir():
        raise UsageError(f"writing {output}", "its folder does not exist", "create the folder")
    if not os.access(output.parent, os.W_OK):
        raise UsageError(
            f"writing {output}", "its folder cannot be written to", "name a file elsewhere"
        )
