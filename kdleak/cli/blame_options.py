"""Options of a hunt about blame: layers to look through, and the list of tags and owners."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, Sequence, TypeVar

import click

from kdleak.blamed import KnownOwner
from kdleak.blaming.frameworks import FRAMEWORKS_VARIABLE, Frameworks, load_frameworks
from kdleak.cli.pooltag_option import pooltag_option, tag_lists
from kdleak.tags import PoolTag

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class BlameFiles:
    """What the user names.

    Attributes:
        frameworks: a list of framework layers.
        through: modules or ``module!function*`` to look through as well.
        pooltag: a pooltag.txt.
    """

    frameworks: Optional[Path] = None
    through: Sequence[str] = ()
    pooltag: Optional[Path] = None


@dataclass(frozen=True)
class Blaming:
    """The same, read.

    Attributes:
        frameworks: layers that allocate for others; None for the built-in list.
        owner_of: what the user's list of tags says of one; None without a list.
    """

    frameworks: Optional[Frameworks] = None
    owner_of: Optional[Callable[[PoolTag], Optional[KnownOwner]]] = None


def blame_options(function: _Function) -> _Function:
    """Add the options to a command; it gets them as ``blame``."""

    @functools.wraps(function)
    def packed(**given: Any) -> Any:  # noqa: ANN401 - whatever the command's other options are
        names = ("frameworks", "through", "pooltag")
        return function(blame=BlameFiles(**{name: given.pop(name) for name in names}), **given)

    wrapped: Any = pooltag_option(packed)
    for option in (
        click.option(
            "--through",
            multiple=True,
            metavar="NAME",
            help="Look through this module, or module!function*, for whom to blame: wrappers of "
            "your own. May be repeated.",
        ),
        click.option(
            "--frameworks",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Further framework layers to look through, one module or module!function* a "
            f"line. Default: ${FRAMEWORKS_VARIABLE}; yours in the configuration folder is always "
            "read.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def read_blaming(
    files: BlameFiles, narrate: Callable[[str], None], *, kd: Optional[str] = None
) -> Blaming:
    """Read what the user names, and what there is without being named.

    Raises:
        UsageError: a file cannot be read or has bad lines.
    """
    frameworks = load_frameworks(files.frameworks, files.through)
    return Blaming(frameworks, tag_lists(files.pooltag, narrate, kd=kd).known_owner)
