"""How fast debugger text is read: a ``!poolused`` of 5,000 tags, and the stack of one hit.

Beside each, in the same run, the time Python takes to split the same text at its blanks: the
ratio carries over to other machines, seconds do not.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from kdleak.dialect.poolused import parse_poolused
from kdleak.dialect.stack import parse_stacks
from kdleak.dialect.stack_model import to_model

ROWS = 5000
MOST_SECONDS = 0.05
"""What reading 5,000 rows may take (on the machine this was written on)."""


def poolused(rows: int) -> str:
    """A list in the layout of current debuggers."""
    rng = random.Random(1)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    lines = [
        "....................",
        " Sorting by NonPaged Pool Consumed",
        "",
        "               NonPaged                  Paged",
        " Tag     Allocs         Used     Allocs         Used",
        "",
    ]
    for number in range(rows):
        tag = "".join(rng.choice(letters) for _ in range(4))
        used = rng.randrange(1 << 30)
        lines.append(
            f" {tag}{rng.randrange(1 << 20):>10}{used:>13}{0:>11}{0:>13}"
            f"\tDescription {number} , Binary: driver{number % 90}.sys"
        )
    return "\n".join(lines) + "\n"


def stack(frames: int) -> str:
    """``kn`` of one hit."""
    rows = [
        f"{number:02x} fffffe84`1c{number:06x} fffff805`3d8{number:05x} "
        f"driver!Function{number}+0x{number * 7:x}\n"
        for number in range(frames)
    ]
    return " # Child-SP          RetAddr           Call Site\n" + "".join(rows)


def best(function: Callable[[], object], times: int) -> float:
    """The shortest of several runs, in seconds."""
    shortest = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        function()
        shortest = min(shortest, time.perf_counter() - began)
    return shortest


def split(text: str) -> list[list[str]]:
    """The least that could be done with a text."""
    return [line.split() for line in text.split("\n")]


def main() -> int:
    text, one = poolused(ROWS), stack(32)
    tables = parse_poolused(text).tables
    if len(tables) != 1 or len(tables[0].rows) != ROWS:
        sys.exit("the list was not read")
    print(f"{'':34} {'ms':>8} {'times split()':>14}")
    whole = best(lambda: parse_poolused(text), 7)
    print(f"{f'!poolused, {ROWS:,} rows':34} {whole * 1000:8.1f} "
          f"{whole / best(lambda: split(text), 7):13.1f}x")  # fmt: skip
    hit = best(lambda: to_model(parse_stacks(one).stacks[0], 1 << 63), 50)
    print(f"{'kn, 32 frames':34} {hit * 1000:8.2f} "
          f"{hit / best(lambda: split(one), 50):13.1f}x")  # fmt: skip
    return 0 if whole <= MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
