"""``--pooltag``: the user's own list of tags and their owners."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

import click

from kdleak.blaming.pooltag_file import POOLTAG_VARIABLE, TagLists, load_tag_lists
from kdleak.engine.channels.kd_find import find_kd
from kdleak.errors import MissingDependency, UsageError
from kdleak.tags import PoolTag

_Function = TypeVar("_Function", bound=Callable[..., Any])


def pooltag_option(function: _Function) -> _Function:
    """Add ``--pooltag`` to a command; it gets ``pooltag``."""
    return click.option(
        "--pooltag",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A pooltag.txt that says who owns a tag (WinDbg's folder triage has one). Default: "
        f"${POOLTAG_VARIABLE}, else the one that is installed.",
    )(function)


def tag_lists(
    pooltag: Optional[Path], narrate: Callable[[str], None], *, kd: Optional[str] = None
) -> TagLists:
    """The lists to ask, with what could not be read told.

    Args:
        pooltag: ``--pooltag``.
        narrate: takes sentences for the user.
        kd: ``--kd``: a list beside that debugger is found, too.

    Raises:
        UsageError: the file named cannot be read.
    """
    lists = load_tag_lists(pooltag, debugger=_debugger(kd))
    for remark in lists.remarks:
        narrate(remark)
    return lists


def owner_finder(
    pooltag: Optional[Path], narrate: Callable[[str], None], *, kd: Optional[str] = None
) -> Callable[[PoolTag], str]:
    """What the lists say about a tag in one line, "" for nothing; see ``tag_lists``."""
    lists = tag_lists(pooltag, narrate, kd=kd)

    def owner(tag: PoolTag) -> str:
        found = lists.owner_of(tag)
        return str(found) if found is not None else ""

    return owner


def _debugger(kd: Optional[str]) -> Optional[Path]:
    """The debugger whose folder may have a list; a list is no reason to complain of its absence."""
    if kd is None and os.name != "nt":
        return None
    try:
        return find_kd(kd, dump=True)
    except (MissingDependency, UsageError):
        return None
