"""Which code asks for a pool tag: the tag as an immediate that reaches a pool routine.

The images of all loaded modules are looked through for the four bytes; around each find in code
the instructions are decoded (capstone) and followed to the calls. What a driver computes (``lea``,
arithmetic, a table of tags, a tag read from the registry) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kdleak.errors import MissingDependency
from kdleak.found import SiteKind, SiteSearch, TagSite
from kdleak.model import Architecture, Module, Symbolized, SymbolKind
from kdleak.nt.call_targets import CallTargets, Exporters
from kdleak.nt.code_flow import CodeWalk, Decoder
from kdleak.nt.code_step import Flow
from kdleak.nt.image_bytes import (
    ImageCode,
    SectionBytes,
    read_section,
    wanted_sections,
)
from kdleak.nt.memory import MemoryReader
from kdleak.nt.pe import MACHINE_ARM64, MACHINE_X64, MACHINE_X86, Image, read_image
from kdleak.nt.tag_hits import (
    MAXIMUM_HITS,
    FunctionStarts,
    code_hits,
    find_tag,
    instruction_at,
)
from kdleak.tags import PoolTag

DEFAULT_LIMIT = 40
"""Weak occurrences listed one by one."""

_BUDGET = 600_000  # instructions decoded in one search: about half a minute at worst
_BUDGET_OF_IMAGE = 150_000
_NEAR = 96  # bytes after an immediate in which a call is near
_NAMED_GAPS = 40
_MACHINES = {
    MACHINE_X86: Architecture.X86,
    MACHINE_X64: Architecture.X64,
    MACHINE_ARM64: Architecture.ARM64,
}


@dataclass
class _Found:
    """What the search has so far."""

    calls: list[TagSite] = field(default_factory=list)
    near: list[TagSite] = field(default_factory=list)
    occurrences: list[TagSite] = field(default_factory=list)
    left_out: int = 0
    modules: int = 0
    gaps: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    cut_short: list[str] = field(default_factory=list)


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
    tag: PoolTag,
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
) -> SiteSearch:
    """Find the code that asks for a tag.

    Args:
        tag: the tag.
        memory: reads the target.
        modules: all loaded images: calls may lead into any of them.
        symbol: address of ``module!name``; raises SymbolNotFound.
        nearest: the nearest name below an address.
        pointer_size: 4 or 8.
        architecture: of the kernel.
        only: names of the modules to look through, in any case; none: all.
        data_sections: look for the four bytes in sections without code, too.
        limit: most occurrences listed.
        progress: called with the name of a module and the bytes of it just dealt with.

    Raises:
        MissingDependency: capstone is not installed.
    """
    require_disassembler()
    exporters = Exporters(memory, modules, symbol, nearest, pointer_size)
    wanted = {name.lower() for name in only}
    chosen = [module for module in modules if not wanted or module.name.lower() in wanted]
    found = _Found()
    budget = _BUDGET
    for module in chosen:
        image = read_image(memory, module.base)
        if image is None:
            found.unreadable.append(module.name)
            continue
        found.modules += 1
        image = replace(image, size=min(image.size, module.size))
        looker = _ImageLooker(tag, exporters, module, image, architecture, nearest)
        budget -= looker.look(
            found,
            budget=max(0, min(budget, _BUDGET_OF_IMAGE)),
            data_sections=data_sections,
            limit=limit,
            progress=progress,
        )
    order = _order
    return SiteSearch(
        tag,
        (*sorted(found.calls, key=order), *sorted(found.near, key=order),
         *sorted(found.occurrences, key=order)),
        found.modules,
        tuple(_gaps(found)),
        found.left_out,
    )  # fmt: skip


def _order(site: TagSite) -> tuple[str, int, int]:
    return site.module.lower(), site.address, site.call_address


def _gaps(found: _Found) -> list[str]:
    gaps = found.gaps[:_NAMED_GAPS]
    if len(found.gaps) > len(gaps):
        gaps.append(f"and pages of {len(found.gaps) - len(gaps)} more sections")
    if found.unreadable:
        shown = ", ".join(found.unreadable[:12])
        more = len(found.unreadable) - 12
        gaps.append(
            f"the headers of {shown}{f' and {more} more' if more > 0 else ''} cannot be read, so "
            "they were not looked through (win32k and other session drivers are mapped in "
            "sessions only)"
        )
    gaps += found.cut_short
    return gaps


class _ImageLooker:
    """Looks through one image."""

    def __init__(
        self,
        tag: PoolTag,
        exporters: Exporters,
        module: Module,
        image: Image,
        architecture: Architecture,
        nearest: Callable[[int], Symbolized],
    ) -> None:
        self._tag = tag
        self._exporters = exporters
        self._module = module
        self._image = image
        self._architecture = _MACHINES.get(image.machine, architecture)
        self._nearest = nearest

    def look(
        self,
        found: _Found,
        *,
        budget: int,
        data_sections: bool,
        limit: int,
        progress: Callable[[str, int], None] | None,
    ) -> int:
        """Look through the image; the number of instructions decoded."""
        advance = None
        if progress is not None:
            tell = progress

            def advance(size: int) -> None:
                tell(self._module.name, size)

        memory = self._exporters.memory
        sections = []
        for section in wanted_sections(self._image, code=True):
            part = read_section(memory, self._image, section, advance)
            self._tell_missing(part, found)
            sections.append(part)
        hits = [hit for part in sections for hit in code_hits(part, self._tag, self._architecture)]
        if len(hits) >= MAXIMUM_HITS:
            found.cut_short.append(
                f"{self._module.name}: only the first {MAXIMUM_HITS} finds were looked at"
            )
        used = 0
        if hits:
            used = self._follow(hits[:MAXIMUM_HITS], sections, found, budget, limit)
        if data_sections:
            for section in wanted_sections(self._image, code=False):
                part = read_section(memory, self._image, section, advance)
                self._tell_missing(part, found)
                self._data(part, found, limit)
        return used

    def _tell_missing(self, part: SectionBytes, found: _Found) -> None:
        if part.missing and not part.discardable:
            found.gaps.append(
                f"{self._module.name}: {part.missing:,} of {part.pages:,} pages of "
                f"{part.name or 'a section without a name'} cannot be read"
            )

    def _data(self, part: SectionBytes, found: _Found, limit: int) -> None:
        for start, data in part.runs:
            for count, at in enumerate(find_tag(data, self._tag)):
                if len(found.occurrences) >= limit or count >= MAXIMUM_HITS:
                    found.left_out += 1
                else:
                    symbol = self._name(start + at)
                    found.occurrences.append(
                        TagSite(SiteKind.OCCURRENCE, self._module.name, start + at, symbol)
                    )

    def _name(self, address: int) -> Symbolized:
        symbol = self._nearest(address)
        if symbol.module:
            return symbol
        offset = address - self._module.base
        return Symbolized(address, self._module.name, "", offset, SymbolKind.MODULE)

    # ---- code ----

    def _decoder(self, code: ImageCode, targets: CallTargets) -> Decoder:
        import capstone  # noqa: PLC0415 - heavy, and an extra

        engine: Any
        if self._architecture is Architecture.ARM64:
            from kdleak.nt.code_arm64 import Arm64Decoder  # noqa: PLC0415

            arm64 = getattr(capstone, "CS_ARCH_AARCH64", None)  # its name since version 6
            if arm64 is None:
                arm64 = capstone.CS_ARCH_ARM64
            engine = capstone.Cs(arm64, capstone.CS_MODE_LITTLE_ENDIAN)
            engine.detail = True
            return Arm64Decoder(engine, code.at, targets, self._tag)
        from kdleak.nt.code_x86 import X86Decoder  # noqa: PLC0415

        wide = self._architecture is Architecture.X64
        mode = capstone.CS_MODE_64 if wide else capstone.CS_MODE_32
        engine = capstone.Cs(capstone.CS_ARCH_X86, mode)
        engine.detail = True
        return X86Decoder(engine, code.at, targets, self._tag, 8 if wide else 4)

    def _follow(
        self,
        hits: list[int],
        sections: list[SectionBytes],
        found: _Found,
        budget: int,
        limit: int,
    ) -> int:
        """Decode the code around the hits and sort them into calls and weaker finds."""
        code = ImageCode(sections)
        targets = CallTargets(self._exporters, self._module, self._image, code, self._architecture)
        walk = CodeWalk(self._decoder(code, targets), targets, budget)
        starts = FunctionStarts(self._exporters.memory, self._image, self._architecture)
        walked: set[int] = set()
        where: dict[int, int] = {}  # hit -> its instruction, 0 where there is none
        reached: set[int] = set()
        for hit in hits:
            start = starts.before(hit)
            if start and start not in walked and walk.budget > 0:
                walked.add(start)
                reached |= walk.walk(start)
            instruction = self._instruction(walk, reached, hit)
            if not instruction:
                # A block that only a jump table leads to, a leaf function, or no code at all.
                instruction, straight = self._by_itself(walk, code, hit)
                if instruction:
                    reached |= walk.walk(straight)
                    if instruction not in reached:
                        reached |= walk.walk(instruction)
            where[hit] = instruction
        if walk.budget <= 0:
            found.cut_short.append(
                f"{self._module.name}: the code was not followed to the end, so calls may be shown "
                "as occurrences"
            )
        self._sort(where, walk, targets, found, limit)
        return budget - walk.budget

    def _instruction(self, walk: CodeWalk, reached: set[int], hit: int) -> int:
        """A reached instruction that has the tag as its immediate at a hit."""
        if self._architecture is Architecture.ARM64:
            return hit if hit in reached else 0
        for address in range(hit - 1, hit - 12, -1):
            if address in reached:
                step = walk.steps[address]
                if address + step.size >= hit + 4:
                    return address if step.loads else 0
        return 0

    def _by_itself(self, walk: CodeWalk, code: ImageCode, hit: int) -> tuple[int, int]:
        if self._architecture is Architecture.ARM64:
            step = walk.step(hit)
            if step is None or not step.loads:
                return 0, 0
            # From the first of the moves on; the pointer called may be loaded there, too.
            straight = hit
            for address in range(hit - 4, hit - 4 * 12, -4):
                step = walk.step(address)
                if step is None or step.flow in (Flow.STOP, Flow.JUMP):
                    break
                straight = address
            return hit, straight
        return instruction_at(walk, code, hit)

    def _sort(
        self,
        where: dict[int, int],
        walk: CodeWalk,
        targets: CallTargets,
        found: _Found,
        limit: int,
    ) -> None:
        uses: dict[int, list[TagSite]] = {}
        for use in sorted(walk.uses, key=lambda one: (one.load, one.call, one.called.name)):
            routine = use.called.routine
            site = TagSite(
                SiteKind.CALL if use.sure else SiteKind.NEAR_CALL,
                self._module.name,
                use.load,
                self._name(use.load),
                walk.steps[use.load].text,
                use.called.name,
                use.call,
                frees=routine.frees if routine is not None else False,
            )
            uses.setdefault(use.load, []).append(site)
        for hit, instruction in where.items():
            sites = uses.pop(instruction, []) if instruction else []
            if instruction and not sites:
                sites = [self._weaker(walk, targets, instruction)]
            elif not instruction:
                sites = [TagSite(SiteKind.OCCURRENCE, self._module.name, hit, self._name(hit))]
            for site in sites:
                self._keep(site, found, limit)
        # Loads that a walk met without a hit of their own: none on x86; on ARM64 a constant
        # whose halves stand far apart.
        for sites in uses.values():
            for site in sites:
                self._keep(site, found, limit)

    @staticmethod
    def _keep(site: TagSite, found: _Found, limit: int) -> None:
        if site.kind is SiteKind.CALL:
            found.calls.append(site)
        elif site.kind is SiteKind.NEAR_CALL:
            found.near.append(site)
        elif len(found.occurrences) < limit:
            found.occurrences.append(site)
        else:
            found.left_out += 1

    def _weaker(self, walk: CodeWalk, targets: CallTargets, instruction: int) -> TagSite:
        """An immediate that reaches no call: is one near?"""
        step = walk.steps[instruction]
        symbol = self._name(instruction)
        name = self._module.name
        at = instruction + step.size
        while not step.compares and at < instruction + _NEAR:
            following = walk.step(at)
            if following is None or following.flow is Flow.STOP:
                break
            called = None
            if following.target and following.flow is not Flow.BRANCH:
                called = targets.direct(following.target)
            elif following.slot > 0:
                called = targets.slot(following.slot)
            if called is not None and called.routine is not None:
                return TagSite(
                    SiteKind.NEAR_CALL, name, instruction, symbol, step.text, called.name, at,
                    frees=called.routine.frees,
                )  # fmt: skip
            if following.flow is Flow.JUMP:
                break
            at += following.size
        return TagSite(SiteKind.OCCURRENCE, name, instruction, symbol, step.text)
