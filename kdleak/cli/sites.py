"""``kdleak sites``: the code that asks for a pool tag."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional, Sequence, Tuple

import click

from kdleak.cli import console
from kdleak.cli.pooltag_option import pooltag_option, tag_lists
from kdleak.cli.session import attached
from kdleak.cli.shared_options import output_options
from kdleak.cli.tag_argument import tag_argument
from kdleak.cli.target_options import DUMP, TargetOptions, choose_target, target_options
from kdleak.errors import ExitCode, UsageError
from kdleak.model import Module
from kdleak.nt.memory import MemoryReader
from kdleak.nt.sites.search import DEFAULT_LIMIT, code_size, require_disassembler, search_sites
from kdleak.quantities import amount
from kdleak.report.sites_json import sites_json
from kdleak.report.sites_subject import SitesSubject
from kdleak.report.sites_text import render_sites
from kdleak.tags import PoolTag
from kdleak.windbg.recording import Memory

_LARGEST_LIMIT = 100_000
_TELL_EVERY = 5.0  # seconds


@click.command("sites")
@tag_argument
@target_options
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="Look through this module only, named as WinDbg does (nt, leakydrv); may be given again. "
    "A live target stands still meanwhile, so naming one saves time there.",
)
@click.option(
    "--data",
    "with_data",
    is_flag=True,
    help="Look for the four bytes in data, too, where a debugger has to read it; of a dump that "
    "our own engine reads this is always done.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0, max=_LARGEST_LIMIT),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="Most weak occurrences to list. All are counted.",
)
@pooltag_option
@output_options
def command(
    tag: PoolTag,
    target: TargetOptions,
    modules: Tuple[str, ...],
    with_data: bool,
    limit: int,
    pooltag: Optional[Path],
    as_json: bool,
    output: Optional[Path],
    force: bool,
) -> int:
    """Find the code that asks for a pool tag, in the loaded images of a dump or a live target.

    Shows the instruction that loads the tag, the pool routine it is given to, and the function
    both are in; then weaker places. A known owner is taken from your own pooltag.txt.

    A live target stands still while its code is read, which takes a minute or more over most
    links: name the modules you suspect with --module.

    Exit code 4: a part of the images could not be looked through.

    \b
    Examples:
      kdleak sites Leak -z MEMORY.DMP
      kdleak sites Leak -z MEMORY.DMP --pooltag pooltag.txt --json -o leak-sites.json
      kdleak sites Leak -k net:port=50000,key=1.2.3.4 --module leakydrv
    """
    console.refuse_overwrite(output, force=force)
    require_disassembler()
    lists = tag_lists(pooltag, console.narrate, kd=target.kd)
    choice = choose_target(target)
    with attached(choice, Memory("sites"), console.narrate) as session:
        engine = session.engine
        # Our dump reader's memory itself, without the small pieces that a session keeps.
        memory: MemoryReader = getattr(engine, "memory", None) or engine
        loaded = engine.modules()
        chosen = _chosen(loaded, modules)
        at_hand = engine.name == DUMP  # not piece by piece through a debugger
        progress = None
        if not at_hand:
            size = code_size(memory, chosen)
            console.narrate(_cost(size, len(chosen), live=engine.target.live))
            progress = _Progress(size, console.narrate, session.clock)
        data_sections = with_data or at_hand
        (found,) = search_sites(
            (tag,),
            memory=memory,
            modules=loaded,
            symbol=engine.symbol,
            nearest=engine.nearest,
            pointer_size=engine.target.pointer_size,
            architecture=engine.target.architecture,
            only=[module.name for module in chosen] if modules else (),
            data_sections=data_sections,
            limit=limit,
            progress=progress,
        )
        # Of a dump: what its list of modules lacks was not looked through.
        lacking = () if modules else getattr(engine, "module_gaps", ())
        found = replace(found, gaps=(*lacking, *found.gaps))
        subject = SitesSubject(
            engine.where,
            engine.target,
            engine.name,
            tuple(module.name for module in chosen) if modules else (),
            data_sections,
            lists.owner_of(tag),
            lists.files,
        )
    text = (
        sites_json(found, subject)
        if as_json
        else render_sites(found, subject, width=console.width(), style=console.palette(output))
    )
    console.write_result(text, output, force=force)
    return ExitCode.INCOMPLETE if found.gaps else ExitCode.DONE


def _chosen(loaded: Sequence[Module], names: Sequence[str]) -> Tuple[Module, ...]:
    """The modules to look through.

    Raises:
        UsageError: a name is none of a loaded module.
    """
    if not names:
        return tuple(loaded)
    found = []
    for name in names:
        wanted = name.strip().lower()
        matching = [
            module for module in loaded if wanted in (module.name.lower(), module.file_name.lower())
        ]
        if not matching:
            near = [module.name for module in loaded if wanted and wanted in module.name.lower()]
            raise UsageError(
                f"looking for the module {name!r}",
                f"none of the {len(loaded)} loaded modules is called that",
                f"there is {', '.join(near[:5])}" if near else "name it as WinDbg's lm shows it",
            )
        found += matching
    return tuple(dict.fromkeys(found))


def _cost(size: int, modules: int, *, live: bool) -> str:
    """What is going to be read, before it is."""
    words = (
        f"Reading {_megabytes(size)} of code of {amount(modules, 'module')} through the debugger"
    )
    if live:
        return f"{words}; the target stands still meanwhile. Ctrl+C stops and lets it run."
    return f"{words}. Our own reader of dumps (--engine {DUMP}) is faster."


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MB" if size >= 1 << 20 else f"{max(1, size >> 10)} KB"


class _Progress:
    """A sentence every few seconds about how far the reading is.

    Args:
        whole: bytes to read, roughly.
        narrate: takes the sentence.
        clock: seconds.
    """

    def __init__(
        self,
        whole: int,
        narrate: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._whole = whole
        self._narrate = narrate
        self._clock = clock
        self._done = 0
        self._started = self._told = clock()

    def __call__(self, module: str, size: int) -> None:
        self._done += size
        now = self._clock()
        if now - self._told < _TELL_EVERY:
            return
        self._told = now
        words = f"{_megabytes(self._done)} of {_megabytes(max(self._whole, self._done))}, {module}"
        left = (self._whole - self._done) * (now - self._started) / max(self._done, 1)
        self._narrate(f"{words}, about {left:.0f} s left" if left >= 1 else words)
