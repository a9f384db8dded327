"""Texts made to be slow, and whether twice the text takes about twice the time.

``python -m tests.fuzz.scaling --size 1000000`` prints every parser and text that is not linear.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Dict, Iterator, Mapping, Optional, Sequence, Tuple

from kdleak.dialect.source import Line, split_lines
from kdleak.dialect.symbol import parse_symbol
from kdleak.errors import KdleakError
from tests.fuzz.mutate import corpus_texts
from tests.fuzz.parsers import Subject, find_subjects

MOST_GROWTH = 3.0
"""Twice the text may take this many times as long."""

TOO_SHORT_TO_TELL = 0.03
"""Seconds of processor time under which a parse is never an offender."""

LONGEST_PARSE = 5.0
"""Seconds after which a parse is stopped."""

_STACK_ROW = "ffffbf0f`b8e449e8 fffff803`06d643d2     nt!KiTurn+0x12"
_POOL_ROW = " f40e0000 size:   30 previous size:    0  (Allocated)  BiXQ"
_USED_ROW = " Wisp        5          560          0            0\tWisp pool, Binary: wisp.sys"
_USED_HEADER = "               NonPaged                  Paged\n Tag     Allocs         Used"

LONG_LINES: Dict[str, str] = {
    "blanks": " ",
    "tabs": "\t",
    "blanks and tabs": " \t",
    "no-break blanks": "\xa0",
    "digits": "0",
    "decimal digits": "1234567890",
    "letters": "a",
    "words": "ab ",
    "wide words": "ab  ",
    "numbers": "12 ",
    "hexadecimal words": "9a1447bc ",
    "64-bit words": "ffffbf0f`b8e449e8 ",
    "brackets": "(",
    "closing brackets": ")",
    "bracket pairs": "()",
    "square brackets": "[",
    "square bracket pairs": "[] ",
    "braces": "{",
    "exclamation marks": "!",
    "backticks": "`",
    "apostrophes": "'",
    "quotes": '"',
    "backslashes": "\\",
    "escapes": "\\_",
    "ampersands": "&",
    "entities": "&gt;",
    "double entities": "&amp;",
    "number signs": "#",
    "numbers signs and blanks": "# ",
    "stars": "*",
    "equals": "=",
    "dots": ".",
    "dashes": "-",
    "dashes and blanks": "- ",
    "underscores": "_",
    "slashes": "/",
    "slashes behind blanks": " //",
    "colons": ":",
    "semicolons": ";",
    "semicolons and blanks": " ; a",
    "greater-than": ">",
    "quotes of mails": "> ",
    "prompts": "0: kd> ",
    "user prompts": "0:000> ",
    "empty prompts": "kd>",
    "symbols": "nt!a+0x",
    "symbols with offsets": "nt!a+0x1 ",
    "glued symbols": "nt!a0x1",
    "suffixes": "(FPO: [0,0,0]) ",
    "open suffixes": "(FPO: [",
    "sources": " [d:\\a.c @ 1]",
    "open sources": " [d:\\a.c @ ",
    "registers": "eax=00000000 ",
    "open registers": "eax=",
    "delta brackets": "(   0) ",
    "drivers": "[a.sys - b] ",
    "tag rows": "Wisp - a.sys - b ",
    "hyphens": " - ",
    "sizes": " size: 30",
    "binary": " , Binary: ",
    "commands": " !poolused 2;",
    "reload dots": ".. ",
    "code points": "\U0001f41b",
    "NULs": "\x00",
    "combining": "e\u0301",
}
"""One line of nothing but this."""

ROW_BY_ROW: Dict[str, str] = {
    "one-character lines": "a\n",
    "one-digit lines": "0\n",
    "empty lines": "\n",
    "lines of one blank": " \n",
    "carriage returns": "\r",
    "prompts": "0: kd> \n",
    "bare prompts": ">\n",
    "prompts with k": "0: kd> k\n",
    "prompts with g": "0: kd> g\n",
    "prompts with dps": "0: kd> dps esp\n",
    "prompts with ed": "0: kd> ed nt!PoolHitTag 'nrV'\n",
    "prompts with !pool": "0: kd> !pool f40e0000\n",
    "prompts with !poolfind": "kd> !poolfind Wisp\n",
    "prompts with !poolused": "kd> !poolused 2\n",
    "prompts with !verifier": "kd> !verifier 3\n",
    "prompts with !verifier 80": "kd> !verifier 80\n",
    "prompts with !vm": "kd> !vm\n",
    "prompts with lm": "kd> lm\n",
    "prompts with r": "kd> r\n",
    "stack rows": _STACK_ROW + "\n",
    "stack rows and blanks": _STACK_ROW + "\n\n",
    "cut stack rows": "ffffbf0f`b8e449e8 fffff803`06d643d2\n",
    "one address": "fffff803`06d643d2\n",
    "stack rows that nearly match": "ffffbf0f`b8e449e8 fffff803`06d643d2 :\n",
    "stack headers": "ChildEBP RetAddr  Args to Child\n",
    "x64 headers": " # Child-SP          RetAddr               Call Site\n",
    "x86 rows with arguments": "9a1447bc 9a12be1a 00000000 00000000 c43163e0 nt!KiTurn+0x9e\n",
    "rows without a symbol": "9a1447bc 9a12be1a 00000000 00000000 c43163e0\n",
    "open parameter lists": '9a1447bc 9a12be1a nt!KiTurn(int a = 1, char * b = "(\n',
    "inline rows": "01 (Inline Function) --------`-------- mod!X\n",
    "warnings": "WARNING: Stack unwind information not available. Following frames may be wrong.\n",
    "half warnings": "WARNING: Stack unwind information not\n",
    "errors": "*** ERROR: Module load completed but symbols could not be loaded for x.sys\n",
    "symbols alone": "nt!KiTurn+0x9e\n",
    "labels": "nt!DbgBreakPointWithStatus:\n",
    "breaks": "Break instruction exception - code 80000003 (first chance)\n",
    "breakpoint hits": "Breakpoint 1 hit\n",
    "fatal errors": "*** Fatal System Error: 0x0000001e\n",
    "instructions": "fffff84f`7cdf0850 cc              int     3\n",
    "boxes": "*******************************************************************************\n",
    "empty boxes": "*                                                                       *\n",
    "register rows": "eax=00000000 ebx=00000000 ecx=00000000\n",
    "odd register rows": "eax=00000000 ebx=0000000\n",
    "memory rows": "f40e0000  00 01 02 03 04 05 06 07-08 09 0a 0b 0c 0d 0e 0f  ................\n",
    "dword rows": "f40e0000  ffffffff 0062605c 00596049 005a6044\n",
    "one dword": "f40e0000  ffffffff\n",
    "dps rows": "f40e0000  87c1b68d nt!KiTurn+0x9e\n",
    "poolused headers": _USED_HEADER + "     Allocs         Used\n",
    "half poolused headers": " Tag     Allocs         Used\n",
    "poolused rows": _USED_ROW + "\n",
    "poolused rows under a header": "\n".join(
        [_USED_HEADER + "     Allocs         Used", _USED_ROW]
    )
    + "\n",
    "poolused rows that nearly match": " Wisp        5          560          0\n",
    "sorting lines": " Sorting by  Tag\n",
    "totals": "TOTAL       5          560          0            0\n",
    "poolmon titles": " Tag  Type     Allocs            Frees            Diff\n",
    "poolmon rows": " Wisp Nonp        10 (   0)        5 (   0)     5     560 (     0)    112\n",
    "poolmon rows that nearly match": " Wisp Nonp        10 (   0)        5 (   0\n",
    "memory lines": " Memory: 3106676K Avail: 2104964K  PageFlts: 8079\n",
    "tag list": "Wisp - a.sys - b\n",
    "tag list that nearly matches": "Wisp - a.sys\n",
    "comments": "//\n",
    "rem": "rem\n",
    "pool rows": _POOL_ROW + "\n",
    "pool rows and prose": _POOL_ROW + "\nmind this\n",
    "pool rows that nearly match": _POOL_ROW[:40] + "\n",
    "pool pages": "Pool page f40e0000 region is Paged pool\n",
    "large pages": "*8f68d000 : large page allocation, Tag is Zxiw, size is 0x1c88 bytes\n",
    "pooltag notes": "\t\tPooltag Zxiw : text\n",
    "poolfind headers": "Searching Paged pool (e3000000 : e6800000) for Tag: KhHi\n",
    "poolfind rows": "97633000 : tag FHRR, size    0x78b8, Nonpaged pool\n",
    "poolfind rows and blanks": "97633000 : tag FHRR, size    0x78b8, Nonpaged pool\n\n\n\n",
    "vm rows": "\tPagedPool Usage:          12345 (     49380 Kb)\n",
    "vm rows that nearly match": "\tPagedPool Usage:          12345 (     49380\n",
    "verifier levels": "Verify Flags Level 0x0002018b\n",
    "verifier flags": "[X] (0x00000001) Special pool\n",
    "verifier rows": "0x9a2b64f0  0x00000340  VTfk  0x9249208c  Winch!Turn\n",
    "verifier log": "Pool block 9b32eab0, Size 00b2, Thread 9f173190\n87c1b68d nt!IovTurn+0x95\n",
    "verifier threads": "Thread:             fffff84006f6ef90\n",
    "module rows": "fffff800`06c00000 fffff800`07c00000   nt         (pdb symbols)  c:\\nt.pdb\n",
    "module headers": "start             end                 module name\n",
    "unloaded": "Unloaded modules:\n",
    "reload": "Unable to read image header for x.sys at 00000000 - NTSTATUS 0xC0000001\n",
    "dots": "...\n",
    "lines of dots": "................................................................\n",
    "quoted lines": "> 0: kd> k\n",
    "comment prefix": "//   ChildEBP RetAddr\n",
    "doubly quoted lines": "> > a\n",
    "indented lines": "        a\n",
    "fences": "```\n",
    "mail soft breaks": "a=\n",
    "debug prints": "WINCH: turned 5 times\n",
    "ModLoad": "ModLoad: 00400000 00410000   x.exe\n",
}
"""This, again and again."""


COMMANDS_WITH_REMARKS = [
    "0: kd> k [",
    "0: kd> k //",
    "0: kd> k # ",
    "0: kd> k ; a",
    "0: kd> k [0:00",
]
"""Beginnings of prompt lines behind which an author's words follow."""


@dataclass(frozen=True)
class Offender:
    """A parser that is not linear in a text.

    Attributes:
        subject: name of the parser.
        text: name of the text.
        size: characters.
        seconds: processor time.
        before: processor time for half of the text.
    """

    subject: str
    text: str
    size: int
    seconds: float
    before: float

    def __str__(self) -> str:
        return (
            f"{self.subject} on {self.text}: {self.size} characters take {self.seconds:.3f} s, "
            f"half of them {self.before:.3f} s"
        )


class TooSlow(Exception):
    """A parse was stopped."""


@contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_number: int, _frame: Optional[FrameType]) -> None:
        raise TooSlow

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def texts(*, corpus: bool) -> Dict[str, str]:
    """All pieces whose repetitions are tried; the name says how."""
    found = {f"a line of {name}": piece for name, piece in LONG_LINES.items()}
    # what ends otherwise than it went on sends a pattern back to try everything again
    found.update({f"a line of {name}, odd end": piece for name, piece in LONG_LINES.items()})
    found.update({f"lines: {name}": piece for name, piece in ROW_BY_ROW.items()})
    for number, sample in enumerate(corpus_texts() if corpus else (), start=1):
        found[f"corpus text {number}"] = sample + "\n"
        found[f"corpus text {number} in one line"] = " ".join(sample.splitlines()) + " "
    return found


def starts_of_lines() -> Dict[str, str]:
    """Beginnings behind which a long line of something follows: the regular expressions' traps."""
    begins = sorted({piece.split("\n", 1)[0] for piece in ROW_BY_ROW.values()} - {""})
    begins += COMMANDS_WITH_REMARKS
    fillers = (" ", "0", "a", "(", " a", "! ", "a ;")
    return {f"{start!r} then {fill!r}": f"{start}\n{fill}" for start in begins for fill in fillers}


def repeated(piece: str, size: int) -> str:
    """A piece repeated up to about a size, never cut."""
    return piece * max(size // len(piece), 1)


def with_beginning(pair: str, size: int) -> str:
    """The first line once, the filler behind it on the same line."""
    begin, _, filler = pair.partition("\n")
    return (begin + filler * (size // len(filler) + 1))[:size]


def _seconds(subject: Subject, lines: Sequence[Line]) -> float:
    begin = time.process_time()
    try:
        with _stopped_after(LONGEST_PARSE):
            subject.run(lines)
    except KdleakError:
        pass
    except TooSlow:
        return LONGEST_PARSE
    return time.process_time() - begin


def find_offender(subject: Subject, name: str, make: MakeText, size: int) -> Optional[Offender]:
    """Compare a text with its half, if it takes long enough to tell."""
    lines = make(size)
    seconds = _seconds(subject, lines)
    if seconds <= TOO_SHORT_TO_TELL:
        return None
    half = make(size // 2)
    before = _seconds(subject, half)
    if seconds > before * MOST_GROWTH:
        # measured again: another program may have been in the way
        before = max(before, _seconds(subject, half))
        seconds = min(seconds, _seconds(subject, lines))
        if seconds > max(before * MOST_GROWTH, TOO_SHORT_TO_TELL):
            return Offender(subject.name, name, size, seconds, before)
    return None


@dataclass(frozen=True)
class MakeText:
    """Lines of a text of a wanted size.

    Attributes:
        piece: what is repeated.
        beginning: the piece's first line stands once in front, its second is repeated behind it.
        end: stands once behind everything.
    """

    piece: str
    beginning: bool = False
    end: str = ""

    def __call__(self, size: int) -> Tuple[Line, ...]:
        return _made(self, size)


@lru_cache(maxsize=2000)
def _made(make: MakeText, size: int) -> Tuple[Line, ...]:
    text = (with_beginning if make.beginning else repeated)(make.piece, size)
    return split_lines(text + make.end)


def symbol_subject() -> Subject:
    """The reader of call sites, which other parsers give whole lines."""

    def run(lines: Sequence[Line]) -> None:
        for line in lines:
            parse_symbol(line.text)

    return Subject("symbol.parse_symbol", run)


def find_offenders(
    subjects: Sequence[Subject], made: Mapping[str, MakeText], size: int
) -> Iterator[Offender]:
    """Every parser that is not linear in one of the texts."""
    for name, make in made.items():
        for subject in subjects:
            offender = find_offender(subject, name, make, size)
            if offender:
                yield offender


def all_texts(*, corpus: bool = True, beginnings: bool = False) -> Dict[str, MakeText]:
    """Every text by name; those with a beginning are many."""
    made = {
        name: MakeText(piece, end="?!" if name.endswith("odd end") else "")
        for name, piece in texts(corpus=corpus).items()
    }
    if beginnings:
        for name, piece in starts_of_lines().items():
            made[name] = MakeText(piece, beginning=True)
            made[f"{name}, odd end"] = MakeText(piece, beginning=True, end="?!")
    return made


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=16384)
    parser.add_argument("--beginnings", action="store_true", help="a thousand texts more")
    parser.add_argument("--subject", default="", help="only parsers whose name holds this")
    options = parser.parse_args(arguments)
    subjects = [*find_subjects(), symbol_subject()]
    subjects = [subject for subject in subjects if options.subject in subject.name]
    count = 0
    made = all_texts(beginnings=options.beginnings)
    for offender in find_offenders(subjects, made, options.size):
        print(offender, flush=True)
        count += 1
    print(f"{len(subjects)} parsers and readers, {len(made)} texts, {count} offenders")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
