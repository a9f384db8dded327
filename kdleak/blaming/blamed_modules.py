"""What the drivers a hunt points at say about themselves: file version, company, description.

Read once, at the end, while the target is stopped anyway; each driver costs a few round trips, so
only the foremost ones are looked at and all of them together may cost no more than a dozen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional, Sequence, Tuple

from kdleak.allocator_frames import in_kernel
from kdleak.blamed import ModuleDetails
from kdleak.engine.base import Engine
from kdleak.errors import KdleakError, LinkError, MemoryUnreadable
from kdleak.model import Module, StopKind
from kdleak.nt.image_version import read_image_version
from kdleak.result import CallSite, DisarmStatus, HuntResult, Judgement

MOST_MODULES = 3
MOST_READS = 12
USED_UP = "reading more would have kept the target stopped for longer"
_POINTED_AT = (Judgement.ACCUSED, Judgement.SUSPECTED)


class _Allowance:
    """A ``MemoryReader`` that has only so many reads in it.

    Attributes:
        used_up: something was refused.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._requests = engine.requests
        self._left = MOST_READS
        self.used_up = False

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes."""
        # One read can be several requests, where a page is absent.
        if not self._left or self._engine.requests - self._requests >= MOST_READS:
            self.used_up = True
            raise MemoryUnreadable(address, size, USED_UP)
        self._left -= 1
        return self._engine.read(address, size)


def with_details(result: HuntResult, engine: Engine) -> HuntResult:
    """The result with what is known of the drivers it blames; reads target memory.

    Nothing is read unless the tag is disarmed for sure and the target is stopped in good order;
    whatever goes wrong costs the details, never the result.
    """
    modules_of = foremost(result.sites)
    if (
        not modules_of
        or result.disarm.status is not DisarmStatus.CONFIRMED
        or engine.stop.kind in (StopKind.STILL_RUNNING, StopKind.BUG_CHECK)
    ):
        return result
    before = engine.requests
    try:
        details = read_details(engine, [site.blame.address for site in modules_of])
    except (KeyboardInterrupt, SystemExit, KdleakError):
        return result
    completeness = replace(
        result.completeness,
        requests=result.completeness.requests + max(0, engine.requests - before),
    )
    return replace(result, blamed=details, completeness=completeness)


def foremost(sites: Sequence[CallSite]) -> Tuple[CallSite, ...]:
    """One call site per driver worth asking about, foremost first; the kernel is none."""
    candidates = [site for site in sites if site.judgement in _POINTED_AT]
    candidates = candidates or [site for site in sites if site.allocs][:1]
    chosen: List[CallSite] = []
    for site in candidates:
        symbol = site.blame.symbol
        known = any(symbol.module == other.blame.symbol.module for other in chosen)
        if symbol.module and not known and not in_kernel(symbol):
            chosen.append(site)
    return tuple(chosen[:MOST_MODULES])


def read_details(engine: Engine, addresses: Sequence[int]) -> Tuple[ModuleDetails, ...]:
    """What the drivers at these code addresses say about themselves.

    Raises:
        LinkError: the target no longer answers.
        KdleakError: the modules cannot be listed.
    """
    memory = _Allowance(engine)
    modules = engine.modules()
    details: List[ModuleDetails] = []
    for address in addresses:
        module = next((module for module in modules if address in module), None)
        if module is not None:
            details.append(_details(module, memory))
    return tuple(details)


def _details(module: Module, memory: _Allowance) -> ModuleDetails:
    details = ModuleDetails(module.name, module.file_name, module.path, module.timestamp)
    try:
        version = read_image_version(memory, module.base)
    except LinkError:
        raise
    except KdleakError as error:
        return replace(details, unknown=str(error))
    return replace(
        details,
        file_version=version.file_version,
        company=version.company,
        description=version.description,
        product=version.product,
        unknown=USED_UP if version.unknown and memory.used_up else version.unknown,
    )


def details_of(result: HuntResult, site: CallSite) -> Optional[ModuleDetails]:
    """What was read of the driver a call site is blamed on; None when nothing was."""
    module = site.blame.symbol.module.lower()
    return next((known for known in result.blamed if known.name.lower() == module), None)
