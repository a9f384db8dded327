"""Walking the outputs of extension commands: where one ends, and all of them in a text."""

from __future__ import annotations

from typing import Callable, List, Protocol, Sequence, Tuple, TypeVar

from kdleak.dialect.fields import is_gap
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Unparsed


class _Output(Protocol):
    @property
    def unparsed(self) -> Tuple[Unparsed, ...]: ...


_Part = TypeVar("_Part", bound=_Output)


def walk_rows(
    lines: Sequence[Line],
    first: int,
    take: Callable[[int], bool],
    ends: Callable[[int], bool],
    note: Callable[[Line], None],
) -> int:
    """Read one output up to a prompt, or to a line that is none of it.

    Args:
        lines: the log.
        first: index of its first line.
        take: takes the line at an index in; False if it is none of the output.
        ends: asked about a line that was not taken: whether the output is over there.
        note: takes note of such a line where the output goes on behind it.

    Returns:
        The index behind the last line of the output.
    """
    position = end = first
    while position < len(lines):
        line = lines[position]
        if is_prompt(line.text):
            break
        if not line.text.strip():
            position += 1
            continue
        if not take(position):
            if ends(position):
                break
            note(line)
        position += 1
        end = position
    return end


def walk_outputs(
    lines: Sequence[Line],
    starts: Callable[[Sequence[Line], int], bool],
    take: Callable[[Sequence[Line], int], Tuple[_Part, int]],
    name: str,
) -> Tuple[List[_Part], Tuple[Unparsed, ...]]:
    """Every output of one kind in a text, and the lines that are none of them."""
    parts: List[_Part] = []
    unparsed: List[Unparsed] = []
    index = 0
    while index < len(lines):
        if starts(lines, index):
            part, index = take(lines, index)
            parts.append(part)
            unparsed.extend(part.unparsed)
            continue
        line = lines[index]
        if not (not line.text.strip() or is_prompt(line.text) or is_gap(line.text)):
            unparsed.append(Unparsed(line.number, line.text, f"no output of {name}"))
        index += 1
    return parts, tuple(unparsed)
