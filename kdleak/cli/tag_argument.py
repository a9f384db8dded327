"""The argument ``TAG`` of a command that searches, and what is commonly given in its place."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Callable, Tuple, TypeVar

import click

from kdleak.errors import BadTag, UsageError
from kdleak.report.next_step import path_word, tag_word
from kdleak.tags import PoolTag

_Function = TypeVar("_Function", bound=Callable[..., Any])
_QUOTES = "'\"`"


def tag_argument(function: _Function) -> Callable[..., Any]:
    """Add ``TAG`` to a command; it gets the tag read as ``tag``."""

    @functools.wraps(function)
    def packed(tag: str, strays: Tuple[str, ...], **given: Any) -> Any:  # noqa: ANN401 - any option
        command = click.get_current_context().info_name or ""
        return function(tag=_parse(tag, strays, command), **given)

    # Catches a dump given without -z; without a metavar it is not in the help.
    strays = click.argument("strays", nargs=-1, metavar="")
    return click.argument("tag", metavar="TAG")(strays(packed))


def parse_tag(text: str) -> PoolTag:
    """A tag as a user typed it.

    Raises:
        BadTag: it is none; quotes that the shell left are pointed at.
    """
    try:
        return PoolTag.parse(text)
    except BadTag as error:
        bare = text.strip(_QUOTES)
        if bare == text:
            raise
        try:
            word = tag_word(PoolTag.parse(bare))
        except BadTag:
            raise error from None
        raise BadTag(
            error.tried, "the quotes came with it", f"leave them out: {word} is the same tag"
        ) from None


def _parse(text: str, strays: Tuple[str, ...], command: str) -> PoolTag:
    try:
        tag = parse_tag(text)
    except BadTag as error:
        if not _is_dump(text):
            raise
        raise UsageError(
            error.tried,
            "that is a file",
            f"give the tag first: kdleak {command} TAG -z {path_word(text)}",
        ) from None
    if strays:
        raise UsageError(
            f"running kdleak {command}",
            f"{strays[0]!r} is one argument too many",
            f"a dump is named with -z: kdleak {command} {tag_word(tag)} -z {path_word(strays[0])}"
            if _is_dump(strays[0])
            else "give one tag; a blank in it is written as part of its value: 0x20707249",
        )
    return tag


def _is_dump(text: str) -> bool:
    return text.lower().endswith((".dmp", ".mdmp")) or Path(text).is_file()
