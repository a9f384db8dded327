"""Looks through one loaded image for pool tags; ``tag_sites`` does so for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdleak.found import SiteKind, TagSite
from kdleak.model import Architecture, Module, Symbolized, SymbolKind
from kdleak.nt.pe import MACHINE_ARM64, MACHINE_X64, MACHINE_X86, Image
from kdleak.nt.sites.call_targets import CallTargets, Exporters
from kdleak.nt.sites.code_flow import CodeWalk, Decoder
from kdleak.nt.sites.code_step import Flow
from kdleak.nt.sites.image_bytes import ImageCode, SectionBytes, read_section, wanted_sections
from kdleak.nt.sites.tag_hits import (
    MAXIMUM_HITS,
    FunctionStarts,
    code_hits,
    find_tag,
    instruction_at,
    preceding_arm64,
)
from kdleak.tags import PoolTag

_BUDGET_OF_IMAGE = 100_000  # instructions decoded for one tag: a few seconds at worst
_BY_ITSELF = 16  # what finding the start of one instruction costs
_NEAR = 96  # bytes after an immediate in which a call is near
_MACHINES = {
    MACHINE_X86: Architecture.X86,
    MACHINE_X64: Architecture.X64,
    MACHINE_ARM64: Architecture.ARM64,
}


@dataclass
class TagFinds:
    """What was found of one tag so far.

    Attributes:
        tag: the tag.
        limit: most occurrences kept.
        budget: instructions that may still be decoded for it.
        calls, near, occurrences: the places, by how sure they are.
        left_out: occurrences beyond the limit.
        crowded: modules with more finds than were looked at.
        cut_short: modules whose code was not followed to the end.
    """

    tag: PoolTag
    limit: int
    budget: int
    calls: list[TagSite] = field(default_factory=list)
    near: list[TagSite] = field(default_factory=list)
    occurrences: list[TagSite] = field(default_factory=list)
    left_out: int = 0
    crowded: list[str] = field(default_factory=list)
    cut_short: list[str] = field(default_factory=list)

    def keep(self, site: TagSite) -> None:
        """Take a place."""
        if site.kind is SiteKind.CALL:
            self.calls.append(site)
        elif site.kind is SiteKind.NEAR_CALL:
            self.near.append(site)
        elif len(self.occurrences) < self.limit:
            self.occurrences.append(site)
        else:
            self.left_out += 1


class ImageSearch:
    """Looks through one image.

    Args:
        exporters: names over all modules.
        nearest: the nearest name below an address.
        module: the image's module.
        image: its headers, no larger than the module.
        architecture: of the kernel.

    Attributes:
        gaps: pages that could not be read, one sentence for each section.
    """

    def __init__(
        self,
        exporters: Exporters,
        nearest: Callable[[int], Symbolized],
        module: Module,
        image: Image,
        architecture: Architecture,
    ) -> None:
        self.gaps: list[str] = []
        self._exporters = exporters
        self._nearest = nearest
        self._module = module
        self._image = image
        self._architecture = _MACHINES.get(image.machine, architecture)

    def look(
        self,
        finds: Sequence[TagFinds],
        *,
        data_sections: bool,
        progress: Callable[[str, int], None] | None,
    ) -> None:
        """Look through the image for some tags, reading it once."""

        def advance(size: int) -> None:
            if progress is not None:
                progress(self._module.name, size)

        memory = self._exporters.memory
        code = []
        for section in wanted_sections(self._image, code=True):
            part = read_section(memory, self._image, section, advance)
            self._tell_missing(part)
            code.append(part)
        for found in finds:
            hits = [hit for part in code for hit in code_hits(part, found.tag, self._architecture)][
                : MAXIMUM_HITS + 1
            ]
            if len(hits) >= MAXIMUM_HITS:
                found.crowded.append(self._module.name)
            if hits:
                _CodeSearch(self, found, code).look(hits[:MAXIMUM_HITS])
        for section in wanted_sections(self._image, code=False) if data_sections else ():
            part = read_section(memory, self._image, section, advance)
            self._tell_missing(part)
            for found in finds:
                self._data(part, found)

    def _tell_missing(self, part: SectionBytes) -> None:
        if part.missing and not part.discardable:
            self.gaps.append(
                f"{self._module.name}: {part.missing:,} of {part.pages:,} pages of "
                f"{part.name or 'a section without a name'} cannot be read"
            )

    def _data(self, part: SectionBytes, found: TagFinds) -> None:
        for start, data in part.runs:
            for count, at in enumerate(find_tag(data, found.tag)):
                if count >= MAXIMUM_HITS or len(found.occurrences) >= found.limit:
                    found.left_out += 1
                else:
                    found.keep(self.occurrence(start + at))

    def occurrence(self, address: int, text: str = "") -> TagSite:
        """A place that asks for nothing, as far as can be seen."""
        return TagSite(
            SiteKind.OCCURRENCE, self._module.name, address, self.name(address), instruction=text
        )

    def name(self, address: int) -> Symbolized:
        """The nearest name; at least an offset in the module."""
        symbol = self._nearest(address)
        if symbol.module:
            return symbol
        offset = address - self._module.base
        return Symbolized(address, self._module.name, "", offset, SymbolKind.MODULE)

    @property
    def module_name(self) -> str:
        """Name of the module."""
        return self._module.name

    @property
    def architecture(self) -> Architecture:
        """Of the image."""
        return self._architecture

    def starts(self) -> FunctionStarts:
        """Where its functions begin."""
        return FunctionStarts(self._exporters.memory, self._image, self._architecture)

    def targets(self, code: ImageCode) -> CallTargets:
        """What its calls lead to."""
        return CallTargets(self._exporters, self._module, self._image, code, self._architecture)


class _CodeSearch:
    """Follows the finds of one tag in the code of one image."""

    def __init__(
        self, image: ImageSearch, found: TagFinds, sections: Sequence[SectionBytes]
    ) -> None:
        self._image = image
        self._found = found
        self._code = ImageCode(sections)
        self._targets = image.targets(self._code)
        self._budget = max(0, min(found.budget, _BUDGET_OF_IMAGE))
        self._walk = CodeWalk(self._decoder(), self._targets, self._budget)
        self._arm = image.architecture is Architecture.ARM64

    def _decoder(self) -> Decoder:
        import capstone  # noqa: PLC0415 - heavy, and an extra

        engine: Any
        tag = self._found.tag
        if self._image.architecture is Architecture.ARM64:
            from kdleak.nt.sites.code_arm64 import Arm64Decoder  # noqa: PLC0415 - needs capstone

            arm64 = getattr(capstone, "CS_ARCH_AARCH64", None)  # its name since version 6
            if arm64 is None:
                arm64 = capstone.CS_ARCH_ARM64
            engine = capstone.Cs(arm64, capstone.CS_MODE_LITTLE_ENDIAN)
            engine.detail = True
            return Arm64Decoder(engine, self._code.at, self._targets, tag)
        from kdleak.nt.sites.code_x86 import X86Decoder  # noqa: PLC0415 - needs capstone

        wide = self._image.architecture is Architecture.X64
        mode = capstone.CS_MODE_64 if wide else capstone.CS_MODE_32
        engine = capstone.Cs(capstone.CS_ARCH_X86, mode)
        engine.detail = True
        return X86Decoder(engine, self._code.at, self._targets, tag, 8 if wide else 4)

    def look(self, hits: Sequence[int]) -> None:
        """Decode the code around the hits and sort them into calls and weaker finds."""
        starts = self._image.starts()
        walk = self._walk
        walked: set[int] = set()
        reached: set[int] = set()
        where: dict[int, int] = {}  # hit -> its instruction, 0 where there is none
        for hit in hits:
            start = starts.before(hit)
            if start and start not in walked:
                walked.add(start)
                reached |= walk.walk(start)
            instruction = self._reached(reached, hit)
            if instruction is None:
                # A block that only a jump table leads to, a leaf function, or no code at all.
                instruction, straight = self._by_itself(hit)
                for place in (straight, instruction) if instruction else ():
                    if instruction not in reached:
                        reached |= walk.walk(place)
            where[hit] = instruction
        self._found.budget -= self._budget - walk.budget
        if walk.budget <= 0:
            self._found.cut_short.append(self._image.module_name)
            walk.budget = 16 * len(hits)  # enough to look whether a call is near
        self._sort(where)

    def _reached(self, reached: set[int], hit: int) -> int | None:
        """The instruction that has the tag at a hit as its immediate.

        0 when another instruction that was reached has the bytes; None when none was.
        """
        if self._arm:
            return hit if hit in reached else None
        for address in range(hit - 1, hit - 12, -1):
            if address in reached:
                step = self._walk.steps[address]
                if address + step.size > hit:
                    whole = address + step.size >= hit + 4
                    return address if whole and step.loads else 0
        return None

    def _by_itself(self, hit: int) -> tuple[int, int]:
        """(instruction of a hit, start of straight code before it); zeros for no code."""
        find = preceding_arm64 if self._arm else instruction_at
        self._walk.budget -= _BY_ITSELF
        return find(self._walk, self._code, hit)

    def _sort(self, where: dict[int, int]) -> None:
        name = self._image.module_name
        uses: dict[int, list[TagSite]] = {}
        for use in sorted(self._walk.uses, key=lambda one: (one.load, one.call, one.called.name)):
            routine = use.called.routine
            site = TagSite(
                SiteKind.CALL if use.sure else SiteKind.NEAR_CALL,
                name,
                use.load,
                self._image.name(use.load),
                self._walk.steps[use.load].text,
                use.called.name,
                use.call,
                frees=routine is not None and routine.frees,
            )
            uses.setdefault(use.load, []).append(site)
        for hit, instruction in where.items():
            if not instruction:
                self._found.keep(self._image.occurrence(hit))
            elif instruction not in uses:
                self._found.keep(self._weaker(instruction))
        # Not only those of hits: on ARM64 the halves of a constant may stand far apart.
        for sites in uses.values():
            for site in sites:
                self._found.keep(site)

    def _weaker(self, instruction: int) -> TagSite:
        """An immediate that reaches no call: is one near?"""
        step = self._walk.steps[instruction]
        at = instruction + step.size
        while not step.compares and at < instruction + _NEAR:
            following = self._walk.step(at)
            if following is None or following.flow is Flow.STOP:
                break
            called = self._walk.calls.get(at)
            if called is None and following.target and following.flow is not Flow.BRANCH:
                called = self._targets.direct(following.target)
            elif called is None and following.slot > 0:
                called = self._targets.slot(following.slot)
            if called is not None and called.routine is not None:
                return TagSite(
                    SiteKind.NEAR_CALL,
                    self._image.module_name,
                    instruction,
                    self._image.name(instruction),
                    step.text,
                    called.name,
                    at,
                    frees=called.routine.frees,
                )
            if following.flow is Flow.JUMP:
                break
            at += following.size
        return self._image.occurrence(instruction, step.text)
