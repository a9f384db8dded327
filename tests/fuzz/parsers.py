"""Every parser of ``kdleak.dialect``, found by its signature, and what must hold for each.

A parser takes a ``Source`` first and needs nothing else. A reader is a pair ``starts_x``,
``take_x``. New modules are found without being named here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

import kdleak.dialect
from kdleak.dialect.source import Line, split_lines
from kdleak.errors import KdleakError

Run = Callable[[Sequence[Line]], Any]


@dataclass(frozen=True)
class Subject:
    """One thing to attack: a name, and what runs it over the lines of a text."""

    name: str
    run: Run


class Broken(Exception):
    """A promise that a parser did not keep, without an exception of its own."""


def _checked_parser(function: Callable[[Any], Any]) -> Run:
    def run(lines: Sequence[Line]) -> Any:
        result = function(lines)
        unparsed = getattr(result, "unparsed", ())
        if unparsed:
            numbers = {line.number for line in lines}
            foreign = [entry.line for entry in unparsed if entry.line not in numbers]
            if foreign:
                raise Broken(f"unparsed names lines the text has not: {foreign[:3]}")
        return result

    return run


def walker(starts: Callable[..., bool], take: Callable[..., Tuple[Any, int]]) -> Run:
    def run(lines: Sequence[Line]) -> Any:
        index = 0
        while index < len(lines):
            if not starts(lines, index):
                index += 1
                continue
            _, end = take(lines, index)
            if not index < end <= len(lines):
                raise Broken(f"take at index {index} of {len(lines)} gives {end}")
            index = end
        return None

    return run


def find_subjects() -> List[Subject]:
    """All parsers and readers, sorted by name."""
    parsers: Dict[str, Run] = {}
    starts: Dict[str, Callable[..., bool]] = {}
    takes: Dict[str, Callable[..., Tuple[Any, int]]] = {}
    for module in pkgutil.walk_packages(kdleak.dialect.__path__, "kdleak.dialect."):
        namespace = vars(importlib.import_module(module.name))
        for name, function in namespace.items():
            if not inspect.isfunction(function) or function.__module__ != module.name:
                continue
            if name.startswith("_"):
                continue
            parameters = list(inspect.signature(function).parameters.values())
            if not parameters:
                continue
            needs = [p for p in parameters if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
            keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
            if keywords:
                continue
            if parameters[0].annotation == "Source" and len(needs) == 1:
                parsers[f"{module.name.rpartition('.')[2]}.{name}"] = _checked_parser(function)
            elif [p.name for p in needs] == ["lines", "index"]:
                kind, _, what = name.partition("_")
                if kind == "starts":
                    starts[what] = function
                elif kind == "take":
                    takes[what] = function
    found = [Subject(name, run) for name, run in parsers.items()]
    found += [
        Subject(f"starts/take_{what}", walker(starts[what], takes[what]))
        for what in starts.keys() & takes.keys()
    ]
    return sorted(found, key=lambda subject: subject.name)


def lines_to_try(text: str) -> Tuple[Line, ...]:
    """A text as lines, the way every parser takes it in."""
    return split_lines(text)


def cpu_seconds(run: Run, lines: Sequence[Line]) -> float:
    """Processor time of one run; errors meant for users are no failure."""
    begin = time.process_time()
    with suppress(KdleakError):
        run(lines)
    return time.process_time() - begin
