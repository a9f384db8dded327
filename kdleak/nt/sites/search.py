"""Which code asks for a pool tag: the tag as an immediate that reaches a pool routine.

The images of all loaded modules are looked through for the four bytes; around each find in code
the instructions are decoded (capstone) and followed to the calls. What a driver computes (``lea``,
arithmetic, a table of tags, a tag read from the registry) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kdleak.errors import MissingDependency
from kdleak.found import SiteSearch, TagSite
from kdleak.model import Architecture, Module, Symbolized
from kdleak.nt.memory import MemoryReader
from kdleak.nt.pe import read_image
from kdleak.nt.sites.call_targets import Exporters
from kdleak.nt.sites.image_bytes import wanted_sections
from kdleak.nt.sites.image_sites import ImageSearch, TagFinds
from kdleak.nt.sites.tag_hits import MAXIMUM_HITS
from kdleak.tags import PoolTag

DEFAULT_LIMIT = 40
"""Weak occurrences listed one by one."""

_BUDGET = 300_000  # instructions decoded for one tag: some ten seconds at worst
_NAMED_GAPS = 40
_NAMED_MODULES = 12


def require_disassembler() -> None:
    """See that capstone is there, before a target is kept waiting.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import capstone  # noqa: F401, PLC0415 - heavy, and an extra
    except ImportError as error:
        raise MissingDependency(
            "looking for the code that asks for a tag",
            f"the disassembler is not installed ({error})",
            'run: pip install "kdleak[dump]"',
        ) from error


def code_size(memory: MemoryReader, modules: Sequence[Module]) -> int:
    """Bytes of code that a search reads; of images whose headers can be read."""
    images = (read_image(memory, module.base) for module in modules)
    return sum(
        section.size
        for image in images
        if image is not None
        for section in wanted_sections(image, code=True)
    )


def search_sites(
    tags: Sequence[PoolTag],
    *,
    memory: MemoryReader,
    modules: Sequence[Module],
    symbol: Callable[[str], int],
    nearest: Callable[[int], Symbolized],
    pointer_size: int,
    architecture: Architecture,
    only: Sequence[str] = (),
    data_sections: bool = True,
    limit: int = DEFAULT_LIMIT,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[SiteSearch, ...]:
    """Find the code that asks for some tags, reading every image once.

    Args:
        tags: the tags.
        memory: reads the target.
        modules: all loaded images: calls may lead into any of them.
        symbol: address of ``module!name``; raises SymbolNotFound.
        nearest: the nearest name below an address.
        pointer_size: 4 or 8.
        architecture: of the kernel.
        only: names of the modules to look through, in any case; none: all.
        data_sections: look for the four bytes in sections without code, too.
        limit: most occurrences listed for one tag.
        progress: called with the name of a module and the bytes of it just dealt with.

    Returns:
        One result for each tag, in the same order.

    Raises:
        MissingDependency: capstone is not installed.
    """
    require_disassembler()
    exporters = Exporters(memory, modules, symbol, nearest, pointer_size)
    wanted = {name.lower() for name in only}
    finds = [TagFinds(tag, limit, _BUDGET) for tag in tags]
    gaps: list[str] = []
    unreadable: list[str] = []
    looked_through = 0
    for module in modules:
        if wanted and module.name.lower() not in wanted:
            continue
        image = read_image(memory, module.base)
        if image is None:
            unreadable.append(module.name)
            continue
        looked_through += 1
        image = replace(image, size=min(image.size, module.size))
        search = ImageSearch(exporters, nearest, module, image, architecture)
        search.look(finds, data_sections=data_sections, progress=progress)
        gaps += search.gaps
    told = (*_short(gaps), *_headers(unreadable))
    return tuple(
        SiteSearch(
            found.tag,
            _ordered(found),
            looked_through,
            (*told, *_limits(found)),
            found.left_out,
        )
        for found in finds
    )


def _ordered(found: TagFinds) -> tuple[TagSite, ...]:
    def order(site: TagSite) -> tuple[str, int, int]:
        return site.module.lower(), site.address, site.call_address

    return tuple(
        site
        for part in (found.calls, found.near, found.occurrences)
        for site in sorted(part, key=order)
    )


def _short(gaps: list[str]) -> list[str]:
    more = len(gaps) - _NAMED_GAPS
    return [*gaps[:_NAMED_GAPS], f"pages of {more} more sections"] if more > 0 else gaps


def _headers(unreadable: list[str]) -> list[str]:
    if not unreadable:
        return []
    return [
        f"the headers of {_listed(unreadable)} cannot be read, so they were not looked through "
        "(win32k and other session drivers are mapped in sessions only)"
    ]


def _limits(found: TagFinds) -> list[str]:
    sentences = []
    if found.crowded:
        sentences.append(
            f"only the first {MAXIMUM_HITS:,} places with the bytes of the tag were looked at in "
            f"the code of {_listed(found.crowded)}"
        )
    if found.cut_short:
        sentences.append(
            f"the code of {_listed(found.cut_short)} was not followed to the end, so calls there "
            "may be told as weaker places"
        )
    return sentences


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED_MODULES
    return ", ".join(names[:_NAMED_MODULES]) + (f" and {more} more" if more > 0 else "")
