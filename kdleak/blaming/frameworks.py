"""Framework layers: code that allocates on behalf of the driver that called it.

The list is data (``frameworks.txt`` beside this file, its format is described there). A user adds
to it with a file of the same format: in the configuration folder, named by
``%KDLEAK_FRAMEWORKS%``, or on the command line; later ones win.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Pattern, Sequence, Tuple

from kdleak.dialect.hit_kind import is_kernel
from kdleak.errors import UsageError
from kdleak.model import Symbolized

FRAMEWORKS_VARIABLE = "KDLEAK_FRAMEWORKS"
"""Environment variable that names a file."""
FILE_NAME = "frameworks.txt"

_LARGEST = 1 << 20
_MOST_RULES = 10_000
_LONGEST_PATTERN = 200
_MOST_WILDCARDS = 8
_MOST_COMPLAINTS = 5
_MOST_REMEMBERED = 1 << 16
_GIVEN = "named by the user"


_ORIGIN = re.compile(
    r"_?(?:KiSystem|KiService|KiFastCall|KiUser|KiStart|KiThreadStartup|KiSwapThread|"
    r"KiExceptionDispatch|KiInterrupt|KiDpcInterrupt|KiDispatchInterrupt|KiIsr|"
    r"K[ix](?:RetireDpc|ExecuteAllDpcs|ExecuteDpc)|KiDeliverApc|KiApcInterrupt|KiIdleLoop|PoIdle|"
    r"PspSystemThread|PspUserThread|ExpWorkerThread|IopProcessWorkItem)"
)
"""Functions of nt that begin something: system calls, threads, work items, interrupts, DPCs."""


class Place(enum.Enum):
    """What a frame is to the question whom to blame."""

    DRIVER = "can be blamed"
    LAYER = "a framework layer"
    ORIGIN = "where the stack begins"
    NOWHERE = "in no module"


@dataclass(frozen=True)
class Rule:
    """One line of a list.

    Attributes:
        pattern: as written, without the leading ``-``.
        words: what the layer is, "" where the line does not say.
        through: look through it; False takes an earlier rule back.
    """

    pattern: str
    words: str
    through: bool
    _module: Pattern[str]
    _function: Optional[Pattern[str]]

    @classmethod
    def of(cls, pattern: str, words: str = "", *, through: bool = True) -> Rule:
        """A rule from its parts.

        Raises:
            ValueError: no pattern; the message says why.
        """
        module, mark, function = pattern.partition("!")
        if not module or (mark and not function):
            raise ValueError(f"{pattern!r} is neither a module nor module!function")
        if len(pattern) > _LONGEST_PATTERN:
            raise ValueError(f"the pattern is longer than {_LONGEST_PATTERN} characters")
        if not pattern.isprintable():
            raise ValueError("the pattern holds a control character")
        if sum(pattern.count(sign) for sign in "*?[") > _MOST_WILDCARDS:
            raise ValueError(f"the pattern has more than {_MOST_WILDCARDS} wildcards")
        if module == "*" and function in ("", "*") and through:
            raise ValueError(f"{pattern!r} would leave nobody to blame")
        return cls(
            pattern,
            words,
            through,
            _compiled(module, re.IGNORECASE),
            _compiled(function, 0) if function else None,
        )

    def matches(self, module: str, function: str) -> bool:
        """Whether the rule is about a frame."""
        if not self._module.match(module):
            return False
        return self._function is None or bool(function and self._function.match(function))


def _compiled(pattern: str, flags: int) -> Pattern[str]:
    try:
        return re.compile(fnmatch.translate(pattern), flags)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern: {error}") from error


class Frameworks:
    """Rules in their order; the last one that matches decides.

    Args:
        rules: see ``Rule``.
        sources: the users' files they come from, for the reader of a result.
    """

    def __init__(self, rules: Iterable[Rule], sources: Sequence[str] = ()) -> None:
        self.rules: Tuple[Rule, ...] = tuple(rules)
        self.sources: Tuple[str, ...] = tuple(sources)
        self._known: Dict[Tuple[str, str], Tuple[Place, str]] = {}

    def layer_of(self, symbol: Symbolized) -> Optional[Rule]:
        """The rule that makes a frame one of a layer; None for a frame of none."""
        return self._find("nt" if is_kernel(symbol.module) else symbol.module, symbol.name)

    def place_of(self, symbol: Symbolized) -> Place:
        """What a frame is."""
        return self._judged(symbol)[0]

    def words_of(self, symbol: Symbolized) -> str:
        """What the layer of a frame is; "" where no rule says."""
        return self._judged(symbol)[1]

    def _judged(self, symbol: Symbolized) -> Tuple[Place, str]:
        # Few names make up all the stacks of a hunt, and each is looked up for every stack.
        key = (symbol.module, symbol.name)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._judge(symbol)
        return known

    def _judge(self, symbol: Symbolized) -> Tuple[Place, str]:
        kernel = is_kernel(symbol.module)
        if kernel and _ORIGIN.match(symbol.name):
            return Place.ORIGIN, ""
        if not symbol.module:
            return Place.NOWHERE, ""
        rule = self.layer_of(symbol)
        if rule is not None:
            return Place.LAYER, rule.words
        # A frame of nt without a name is rather a helper's than anybody else's.
        return (Place.LAYER if kernel and not symbol.name else Place.DRIVER), ""

    def _find(self, module: str, function: str) -> Optional[Rule]:
        if not module:
            return None
        for rule in reversed(self.rules):
            if rule.matches(module, function):
                return rule if rule.through else None
        return None

    def through(self, names: Iterable[str]) -> Frameworks:
        """These rules and more: modules or ``module!function*`` to look through.

        Raises:
            UsageError: a name is no pattern.
        """
        added = tuple(_named(name) for name in names)
        return Frameworks(self.rules + added, self.sources) if added else self


def _named(name: str) -> Rule:
    try:
        return Rule.of(name.strip(), _GIVEN)
    except ValueError as error:
        raise UsageError(
            f"looking through {name!r}",
            str(error),
            "name a module (mylib) or functions of one (mydrv!Alloc*)",
        ) from error


def parse_frameworks(text: str) -> Tuple[Tuple[Rule, ...], Tuple[str, ...]]:
    """The rules of a list, and what is wrong with its lines (``line 3: ...``)."""
    rules: List[Rule] = []
    wrong: List[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split(None, 1)
        if not words:
            continue
        if len(rules) == _MOST_RULES:
            wrong.append(f"line {number}: more than {_MOST_RULES} rules")
            break
        pattern, through = words[0], not words[0].startswith("-")
        name = " ".join(words[1].split())[:_LONGEST_PATTERN] if len(words) > 1 else ""
        try:
            rules.append(Rule.of(pattern if through else pattern[1:], name, through=through))
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    return tuple(rules), tuple(wrong)


@functools.lru_cache(maxsize=1)
def built_in_frameworks() -> Frameworks:
    """The list that comes with kdleak, and nothing else."""
    text = Path(__file__).with_name(FILE_NAME).read_text(encoding="utf-8")
    rules, wrong = parse_frameworks(text)
    if wrong:
        raise UsageError(
            f"reading the built-in {FILE_NAME}", "; ".join(wrong), "install kdleak again"
        )
    return Frameworks(rules)


def configuration_folder(
    environ: Optional[Mapping[str, str]] = None, platform: str = sys.platform
) -> Optional[Path]:
    r"""Where the user's own lists lie; None where the environment does not tell.

    ``%APPDATA%\kdleak`` on Windows, ``$XDG_CONFIG_HOME/kdleak`` (``~/.config/kdleak``) elsewhere.
    """
    environ = os.environ if environ is None else environ
    if platform == "win32":
        base = environ.get("APPDATA", "")
    else:
        base = environ.get("XDG_CONFIG_HOME", "")
        if not base and environ.get("HOME"):
            base = str(Path(environ["HOME"]) / ".config")
    folder = Path(base) / "kdleak"
    return folder if base and folder.is_absolute() else None


def load_frameworks(
    given: Optional[Path] = None,
    through: Sequence[str] = (),
    *,
    environ: Optional[Mapping[str, str]] = None,
    folder: Optional[Path] = None,
) -> Frameworks:
    """The built-in list and all that the user adds to it.

    Args:
        given: the file named on the command line.
        through: modules or ``module!function*`` to look through as well.
        environ: environment variables; None for this process's.
        folder: the configuration folder; None for the user's.

    Raises:
        UsageError: a file cannot be read or has bad lines, or a name is no pattern.
    """
    environ = os.environ if environ is None else environ
    own = folder if folder is not None else configuration_folder(environ)
    files: List[Path] = []
    if own is not None and _is_file(own / FILE_NAME):
        files.append(own / FILE_NAME)
    if environ.get(FRAMEWORKS_VARIABLE):
        files.append(Path(environ[FRAMEWORKS_VARIABLE]))
    if given is not None:
        files.append(given)
    rules = list(built_in_frameworks().rules)
    for file in files:
        rules += _read(file)
    return Frameworks(rules, [file.name for file in files]).through(through)


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False


def _read(file: Path) -> Tuple[Rule, ...]:
    tried = f"reading the list of framework layers {file}"
    try:
        if file.stat().st_size > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST >> 20} MB")  # noqa: TRY301
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
        raise UsageError(
            tried, str(why), "name a text file with one module or module!function* a line"
        ) from error
    rules, wrong = parse_frameworks(text)
    if wrong:
        more = len(wrong) - _MOST_COMPLAINTS
        told = "; ".join(wrong[:_MOST_COMPLAINTS]) + (f"; and {more} more" if more > 0 else "")
        raise UsageError(tried, told, "correct these lines: PATTERN, then what the layer is")
    return rules
