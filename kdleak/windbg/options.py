"""The options of ``!py -m kdleak.hunt`` and its sisters: those of the command line, by argparse."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Optional, Sequence, Tuple

from kdleak.blaming.frameworks import Frameworks, load_frameworks
from kdleak.blaming.pooltag_file import TagLists, load_tag_lists
from kdleak.errors import UsageError
from kdleak.hunt_options import HuntOptions, RankOptions
from kdleak.model import Pool
from kdleak.report.secrets import without_keys
from kdleak.result import RankBy
from kdleak.tags import PoolTag
from kdleak.windbg.recording import Memory
from kdleak.windbg.session import CHANNELS, SessionRequest, with_key

_POOLS = {"both": None, "nonpaged": Pool.NONPAGED, "paged": Pool.PAGED}
_WIDTH = 100


class HelpAsked(Exception):
    """``--help`` was given; the text is the only argument."""


@dataclass(frozen=True)
class Request:
    """What a command line asks for, whatever the command.

    Attributes:
        session: which debugger, on which target.
        json: file that takes the result as JSON, None for none.
        force: overwrite files.
        explain: print the debugger commands and do nothing.
        debug: add a trace to errors.
        verbose: say more about the target.
        top: rows or call sites to show.
        hunt: how to hunt; None for another command.
        rank: how to rank; None for another command.
        by_given: the order of a ranking was named, and is not only the default.
        value: 32-bit value to write when the journal knows none.
        ignored: names of options that were given and make no difference to a replay.
        frameworks: layers that allocate for others; None for the built-in list.
        tag_lists: lists of tags and their owners.
    """

    session: SessionRequest
    json: Optional[Path] = None
    force: bool = False
    explain: bool = False
    debug: bool = False
    verbose: int = 0
    top: int = 10
    hunt: Optional[HuntOptions] = None
    rank: Optional[RankOptions] = None
    by_given: bool = False
    value: Optional[int] = None
    ignored: Tuple[str, ...] = ()
    frameworks: Optional[Frameworks] = None
    tag_lists: TagLists = field(default_factory=TagLists)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as our other errors do, and never ends the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            "reading the options", without_keys(message), f"{self.prog} --help shows what there is"
        )

    def print_help(self, file: Any = None) -> None:  # noqa: ANN401 - as argparse declares it
        del file
        raise HelpAsked(self.format_help())


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_WIDTH)


def parse_hunt(arguments: Sequence[str]) -> Request:
    """The options of a hunt.

    Raises:
        UsageError: with what is wrong.
        HelpAsked: with the help.
    """
    parser = _parser(
        "kdleak.hunt",
        "Find the code that leaks pool: rank, arm nt!PoolHitTag, take the stack at every hit, "
        "disarm.\nWithout -k: in the debugger that this runs in (!py -m kdleak.hunt).",
    )
    parser.add_argument("--tag", help="the tag to hunt (default: the one that grows)")
    _add_ranking(parser)
    parser.add_argument("--hits", type=_count, default=500, help="end after so many hits (500)")
    _add_seconds(parser, "--seconds", 60.0, "end after so many seconds of watching")
    parser.add_argument(
        "--max-stop-share",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="watch a hot tag in bursts so that the target does not stand still for more than "
        "this share of the time (0.2)",
    )
    parser.add_argument(
        "--hits-per-second",
        type=float,
        default=100.0,
        metavar="RATE",
        help="watch a tag that is hit more often in bursts (100)",
    )
    parser.add_argument(
        "--min-age",
        type=float,
        metavar="SECONDS",
        help="a block still there counts as old, and against its call site, beyond this age "
        "(4 times the longest life seen at that call site, 1 second where none was freed)",
    )
    _add_seconds(parser, "--grace", 120.0, "how long to try to get a lost link back, to disarm")
    parser.add_argument(
        "--full-speed", action="store_true", help="no bursts: take every hit, whatever it costs"
    )
    parser.add_argument("--depth", type=_depth, default=32, help="frames of a stack (32)")
    parser.add_argument(
        "--through",
        action="append",
        default=[],
        metavar="NAME",
        help="look through this module, or module!function*, for whom to blame (repeatable)",
    )
    parser.add_argument(
        "--frameworks",
        type=Path,
        metavar="FILE",
        help="further framework layers to look through, one a line",
    )
    parser.add_argument(
        "--pooltag", type=Path, metavar="FILE", help="a pooltag.txt that says who owns a tag"
    )
    _add_result(parser, top=10)
    _add_session(parser)
    given = parser.parse_args(list(arguments))
    ranking = _ranking(given, pool=None)
    options = HuntOptions(
        tag=PoolTag.parse(given.tag) if given.tag is not None else None,
        rank=ranking,
        max_hits=given.hits,
        max_seconds=given.seconds,
        stack_depth=given.depth,
        interrupt_timeout=given.timeout,
        grace_seconds=given.grace,
        min_age=given.min_age,
        max_stopped_share=None if given.full_speed else given.max_stop_share,
        hits_per_second=None if given.full_speed else given.hits_per_second,
    )
    options.check()
    request = _request("hunt", parser, given, hunt=options)
    debugger = Path(sys.executable) if sys.executable else None
    return replace(
        request,
        frameworks=load_frameworks(given.frameworks, given.through),
        tag_lists=load_tag_lists(given.pooltag, debugger=debugger),
    )


def parse_rank(arguments: Sequence[str]) -> Request:
    """The options of a ranking.

    Raises:
        UsageError: with what is wrong.
        HelpAsked: with the help.
    """
    parser = _parser(
        "kdleak.rank",
        "Rank the pool tags by growth, or by what they hold; of a crash dump by what they hold.\n"
        "Without -k or -z: in the debugger that this runs in (!py -m kdleak.rank).",
    )
    _add_ranking(parser, dumps=True)
    parser.add_argument("--pool", choices=list(_POOLS), default="both", help="one pool (both)")
    _add_result(parser, top=20)
    _add_session(parser)
    parser.add_argument(
        "-z", dest="dump", type=Path, metavar="FILE", help="open a crash dump, as WinDbg's -z does"
    )
    given = parser.parse_args(list(arguments))
    options = _ranking(given, pool=_POOLS[given.pool])
    options.check()
    return _request("rank", parser, given, rank=options)


def parse_restore(arguments: Sequence[str]) -> Request:
    """The options of a restore.

    Raises:
        UsageError: with what is wrong.
        HelpAsked: with the help.
    """
    parser = _parser(
        "kdleak.restore",
        "Put back nt!PoolHitTag after a hunt that could not do it itself.\n"
        "Without -k: in the debugger that this runs in (!py -m kdleak.restore).",
    )
    parser.add_argument(
        "--value",
        type=_value,
        help="write this value when no journal entry knows the original one",
    )
    _add_result(parser, top=None)
    _add_session(parser)
    given = parser.parse_args(list(arguments))
    return _request("restore", parser, given, value=given.value)


def wants_trace(arguments: Sequence[str]) -> bool:
    """Whether errors get a trace: ``--debug``, ``-vv``, or ``-v`` twice."""
    words = [word for word in arguments if word.startswith("-v") and set(word[1:]) == {"v"}]
    return "--debug" in arguments or sum(len(word) - 1 for word in words) >= 2


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    inside = hasattr(sys.stdout, "writedml")
    return _Parser(
        prog=f"!py -m {name}" if inside else f"python -m {name}",
        description=description,
        formatter_class=_Formatter,
        allow_abbrev=False,
        epilog="Exit codes outside a debugger: 0 done, 2 usage, 3 target or symbols, 4 incomplete "
        "result,\n5 DISARM NOT CONFIRMED, 70 internal error, 130 interrupted.",
    )


def _add_ranking(parser: argparse.ArgumentParser, *, dumps: bool = False) -> None:
    parser.add_argument(
        "--by",
        choices=[by.value for by in RankBy],
        help="rank by growth over the interval, or by bytes outstanding now (growth"
        + ("; of a dump: used)" if dumps else ")"),
    )
    _add_seconds(parser, "--interval", 30.0, "how long growth is measured; the target runs")
    parser.add_argument(
        "--snapshots", type=_count, default=6, help="snapshots within the interval (6)"
    )


def _add_result(parser: argparse.ArgumentParser, *, top: Optional[int]) -> None:
    if top is not None:
        parser.add_argument("--top", type=_count, default=top, help=f"rows to show ({top})")
        parser.add_argument(
            "--explain", action="store_true", help="print the WinDbg commands, do nothing"
        )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the whole result as JSON, too"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files")


def _add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-k",
        dest="connection",
        metavar="CONNECTION",
        help="the target, as for WinDbg's -k: net:port=50000,key=W.X.Y.Z (or the key in "
        "$KDLEAK_KEY); without it, the target of the debugger that this runs in",
    )
    parser.add_argument("-y", dest="symbol_path", metavar="SYMPATH", default="", help="symbol path")
    parser.add_argument(
        "--engine",
        type=_engine,
        choices=CHANNELS,
        default="",
        help="debugger to use with -k (the one there is)",
    )
    parser.add_argument("--kd", metavar="PATH", help="kd.exe or cdb.exe to use")
    parser.add_argument("--python", metavar="PATH", help="interpreter that has pykd or pybag")
    parser.add_argument("--kb", action="store_true", help="take stacks by kb at every hit")
    parser.add_argument("--record", type=Path, metavar="FILE", help="record the whole session")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="use a recorded session")
    _add_seconds(parser, "--timeout", 30.0, "how long to wait for the target to answer")
    parser.add_argument("-v", dest="verbose", action="count", default=0, help="say more")
    parser.add_argument("--debug", action="store_true", help="add a trace to errors")


def _add_seconds(parser: argparse.ArgumentParser, name: str, default: float, text: str) -> None:
    parser.add_argument(
        name, type=float, default=default, metavar="SECONDS", help=f"{text} ({default:g})"
    )


def _ranking(given: argparse.Namespace, pool: Optional[Pool]) -> RankOptions:
    dump = getattr(given, "dump", None) is not None
    by = RankBy(given.by) if given.by else RankBy.USED if dump else RankBy.GROWTH
    return RankOptions(
        by=by,
        seconds=given.interval,
        snapshots=1 if by is RankBy.USED else given.snapshots,
        pool=pool,
        interrupt_timeout=given.timeout,
    )


def _request(
    command: str,
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    *,
    hunt: Optional[HuntOptions] = None,
    rank: Optional[RankOptions] = None,
    value: Optional[int] = None,
) -> Request:
    session = SessionRequest(
        connection=with_key(given.connection or ""),
        engine=given.engine,
        symbol_path=given.symbol_path,
        timeout=given.timeout,
        kd=given.kd,
        python=given.python,
        use_kb=given.kb,
        record=given.record,
        replay=given.replay,
        overwrite=given.force,
        dump=getattr(given, "dump", None),
        memory=Memory(command, hunt, rank, value, given.kb),
    )
    # A time that is none: the same sentence as for the other times.
    RankOptions(interrupt_timeout=given.timeout).check()
    return Request(
        session,
        json=given.json,
        force=given.force,
        explain=getattr(given, "explain", False),
        debug=given.debug,
        verbose=given.verbose,
        top=getattr(given, "top", 10),
        hunt=hunt,
        rank=rank,
        by_given=getattr(given, "by", None) is not None,
        value=value,
        ignored=_ignored(parser, given) if given.replay is not None else (),
    )


_HEEDED = {
    "replay", "json", "force", "explain", "top", "verbose", "debug",
    "frameworks", "through", "pooltag",
}  # fmt: skip
"""Options that make a difference to a replay."""


def _ignored(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Tuple[str, ...]:
    return tuple(
        {"connection": "-k", "symbol_path": "-y", "dump": "-z"}.get(
            name, "--" + name.replace("_", "-")
        )
        for name, value in vars(given).items()
        if name not in _HEEDED and value != parser.get_default(name)
    )


def _engine(text: str) -> str:
    if text == "native":
        raise argparse.ArgumentTypeError(
            "native is there for the command kdleak: kdleak hunt -k ..."
        )
    return text


def _count(text: str) -> int:
    return _within(text, 1, None)


def _depth(text: str) -> int:
    return _within(text, 1, 128)


def _value(text: str) -> int:
    return _within(text, 0, 0xFFFFFFFF)


def _within(text: str, least: int, most: Optional[int]) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < least or (most is not None and number > most):
        above = f"{least} or more" if most is None else f"{least} to {most}"
        raise argparse.ArgumentTypeError(f"{text} is not within {above}")
    return number
