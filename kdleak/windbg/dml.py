"""Debugger Markup Language: a report's lines with links that run a debugger command.

Names come from the target and are untrusted. They are shown escaped, and never become part of a
command: commands hold addresses as numbers, our own words, and module names of plain letters.
(DML as in Microsoft's "Customizing Debugger Output Using DML".)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterable, List, Sequence, Tuple

from kdleak.errors import format_address
from kdleak.model import Frame
from kdleak.report.sanitise import sanitise
from kdleak.result import DisarmState, HuntResult, RankResult

_ESCAPES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"))
_PLAIN_MODULE = re.compile(r"[A-Za-z0-9_]{1,64}\Z")
_PLAIN_TAG = re.compile(r"[A-Za-z0-9]{4}\Z")
_RUNNABLE = ("ed nt!", "dd nt!")
"""How those of the repair commands begin that a debugger can run."""


@dataclass(frozen=True)
class Link:
    """A piece of text that can be clicked.

    Attributes:
        text: as it stands in the report, sanitised.
        command: what the debugger runs.
        module: name of the module the text begins with, "" for none; it links to its details.
    """

    text: str
    command: str
    module: str = ""


def escape(text: str) -> str:
    """The text as DML shows it unchanged."""
    for char, escaped in _ESCAPES:
        text = text.replace(char, escaped)
    return text


def markup(link: Link) -> str:
    """The DML of a link."""
    head = ""
    if link.module:
        head = f'<link cmd="lmvm {escape(link.module)}">{escape(link.module)}</link>'
    rest = link.text[len(link.module) :]
    return head + f'<link cmd="{escape(link.command)}">{escape(rest)}</link>'


def linked(line: str, links: Sequence[Link]) -> str:
    """One line of a report as DML: escaped, with every whole occurrence of a link's text linked.

    Where two links begin at the same place the longer one is taken.
    """
    by_text: Dict[str, Link] = {}
    for link in links:
        if link.text:
            by_text.setdefault(link.text, link)
    if not by_text:
        return escape(line)
    names = sorted(by_text, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names))
    shown: List[str] = []
    end = 0
    for match in pattern.finditer(line):
        shown += [escape(line[end : match.start()]), markup(by_text[match.group()])]
        end = match.end()
    shown.append(escape(line[end:]))
    return "".join(shown)


def hunt_links(result: HuntResult, top: int) -> Tuple[Link, ...]:
    """What can be clicked in the report of a hunt: call sites, frames, repair commands."""
    frames: List[Frame] = []
    for site in result.sites[:top]:
        frames += [site.frame, site.blame]
    shown = result.accused or (result.sites[0] if result.sites else None)
    if shown is not None:
        frames += shown.stack.frames
    frames += result.stop_stack.frames
    tag = result.tag.text if result.tag is not None else ""
    of_tag = [Link(f"'{tag}'", f"!poolused 4 {tag}")] if _PLAIN_TAG.match(tag) else []
    return (*frame_links(frames), *repair_links(result.disarm), *of_tag)


def rank_links(result: RankResult) -> Tuple[Link, ...]:
    """What can be clicked in a ranking: the frames of a stop that ended it."""
    return frame_links(result.stop_stack.frames)


def frame_links(frames: Iterable[Frame]) -> Tuple[Link, ...]:
    """What can be clicked of frames.

    The module links to its details, the rest of the name to the nearest symbols, the address to
    the code around it.
    """
    links: List[Link] = []
    for frame in frames:
        address = f"0x{frame.address:x}"
        links.append(Link(format_address(frame.address), f"ub {address}; u {address}"))
        name, module = sanitise(str(frame.symbol)), frame.symbol.module
        split = _PLAIN_MODULE.match(module) is not None and name != module
        links.append(Link(name, f"ln {address}", module if split else ""))
    return tuple(links)


def repair_links(state: DisarmState) -> Tuple[Link, ...]:
    """The commands that put an unconfirmed disarm right, as far as a debugger can run them."""
    commands = [command.split("    ")[0] for command in state.repair]
    return tuple(Link(text, text) for text in commands if text.startswith(_RUNNABLE))
