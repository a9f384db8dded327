"""``kdleak rank --log``: the ranking of tags in logs, without a target."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Sequence

from kdleak.cli import console
from kdleak.cli.log_input import names_of_logs, read_log
from kdleak.dialect.engine_errors import find_engine_error
from kdleak.dialect.log import DebuggerLog
from kdleak.dialect.poolused_opening import NO_TABLE
from kdleak.dialect.poolused_table import PoolUsedTable
from kdleak.errors import ExitCode, TargetError
from kdleak.logged import LoggedSnapshot, rank_of_snapshots, snapshots_of_log
from kdleak.model import Pool
from kdleak.report.logged_text import render_logged_rank
from kdleak.report.parse_json import logged_rank_json
from kdleak.report.result_file import refuse_overwrite
from kdleak.result import RankBy


def rank_logs(
    files: Sequence[str],
    *,
    by: Optional[RankBy],
    pool: Optional[Pool],
    top: int,
    max_size: int,
    as_json: bool,
    output: Optional[Path],
    force: bool,
) -> ExitCode:
    """Rank the tags of logs, given in order of time, and write the result.

    Raises:
        UsageError: a log cannot be read, or the output not written.
        TargetError: a log shows no list of pool tags.
    """
    refuse_overwrite(output, force=force)
    snapshots: List[LoggedSnapshot] = []
    for file, name in zip(files, names_of_logs(files)):
        log = read_log(file, max_size)
        found = snapshots_of_log(log, name)
        if not found:
            raise TargetError(
                f"ranking the pool tags of {name}",
                f"it shows no list of them{_why_none(log)}",
                "take the log of !poolused 2, !poolused 4 or PoolMon; kdleak parse shows what is "
                "in this one",
            )
        snapshots += found
    result = rank_of_snapshots(snapshots, by=by, pool=pool)
    text = (
        logged_rank_json(result)
        if as_json
        else render_logged_rank(
            result, width=console.width(), style=console.palette(output), top=top
        )
    )
    console.write_result(text, output, force=force)
    return ExitCode.INCOMPLETE if result.gaps else ExitCode.DONE


def _why_none(log: DebuggerLog) -> str:
    """What a log says about a list that was asked for and did not come; "" if nothing."""
    tables = log.of(PoolUsedTable)
    refused = next((one for one in tables if one.rejected not in ("", NO_TABLE)), None)
    if refused is not None:
        return f": line {refused.line} looks like one, but {refused.rejected}"
    errors = [error for table in tables for error in table.errors]
    failed = find_engine_error("\n".join(errors))
    if failed is not None:
        return f": !poolused failed. {failed.sentence.rstrip('.')}"
    if errors or any(table.command for table in tables):
        return ": !poolused is there, but printed none"
    return ""
