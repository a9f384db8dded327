"""Files that are made of a result besides the one that -o names."""

from __future__ import annotations

from pathlib import Path

from kdleak.errors import UsageError
from kdleak.report.html_report import render_html
from kdleak.report.json_report import hunt_document
from kdleak.report.result_document import Node
from kdleak.report.result_file import refuse_overwrite, write_file
from kdleak.result import HuntResult


def write_hunt_html(result: HuntResult, file: Path, *, force: bool) -> None:
    """Write the HTML report of a hunt.

    Raises:
        UsageError: the file exists and ``force`` is not set, or cannot be written.
    """
    write_report(render_html(Node(hunt_document(result))), file, force=force)


def write_report(text: str, file: Path, *, force: bool) -> None:
    """Write a report that is for a file only: it is not printed when that fails.

    Raises:
        UsageError: the file exists and ``force`` is not set, or cannot be written.
    """
    refuse_overwrite(file, force=force)
    try:
        write_file(text, file)
    except OSError as error:
        raise UsageError(
            f"writing {file}", error.strerror or str(error), "name a file elsewhere"
        ) from error
