"""All blocks of one pool tag in a target's memory.

The big page table lists the page-aligned ones. Small ones are found by their headers, in every
mapped page that is writable and part of no image, and then told apart by what confirms them: a
page that is one chain of headers, a chunk of a subsegment of the segment heap, or nothing but
the header itself. A header alone may be stale: a freed block on a lookaside list looks like one
in use, and so does a copy of a pool page in the file cache. It is never counted as in use,
unless all that look in use add up, in number and bytes, to exactly what the tag tables count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable, Iterator, Optional, Protocol, Sequence, Tuple

from kdleak.errors import MissingDependency
from kdleak.found import BlockSearch
from kdleak.model import Module, Pool, Symbolized, TagUsage
from kdleak.tags import PoolTag

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DEFAULT_LIMIT = 20


class PageBatch(Protocol):
    """Some pages, ascending by address."""

    @property
    def addresses(self) -> npt.NDArray[np.uint64]:
        """Of each page."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """Their bytes, one row of 4096 each."""


class PageScan(Protocol):
    """One pass over mapped pages; ``nt.page_scan.PageScan`` is one."""

    absent: int
    absent_tables: int

    def __iter__(self) -> Iterator[PageBatch]: ...


class SearchedMemory(Protocol):
    """What is searched; ``nt.virtual.VirtualMemory`` is one."""

    @property
    def kernel_half(self) -> Tuple[int, int]:
        """The kernel's half of the address space, (start, end)."""

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes; raises MemoryUnreadable."""

    def batches(
        self,
        start: int,
        end: int,
        pages: int = 512,
        *,
        skip: Sequence[Tuple[int, int]] = (),
        writable_only: bool = False,
    ) -> PageScan:
        """Every page that is there, many at a time."""


def search_blocks(
    tag: PoolTag,
    *,
    memory: SearchedMemory,
    modules: Sequence[Module],
    symbol: Callable[[str], int],
    nearest: Callable[[int], Symbolized],
    build: int,
    pointer_size: int,
    limit: int = DEFAULT_LIMIT,
    counters: Optional[TagUsage] = None,
    pool: Optional[Pool] = None,
    size: Optional[int] = None,
    deadline: Optional[float] = None,
    clock: Callable[[], float] = time.perf_counter,
) -> BlockSearch:
    """Find all blocks of a tag.

    Args:
        tag: the tag.
        memory: address space of the kernel.
        modules: loaded images; they are not searched, and pointers into them are named.
        symbol: address of ``nt!Name``, raising ``SymbolNotFound``.
        nearest: the nearest symbol below an address.
        build: Windows build number.
        pointer_size: 4 or 8.
        limit: most blocks to tell about one by one, those in use first.
        counters: what the tag tables say about the tag; None where that is not known.
        pool: leave out blocks of the other pool.
        size: tell one by one only about blocks of that many bytes. All sizes are counted.
        deadline: when to stop looking through pages, by ``clock``; what was not looked at by then
            is a gap. None: never.
        clock: seconds, monotonic.

    Raises:
        MissingDependency: numpy is not installed.
    """
    try:
        import numpy  # noqa: F401, ICN001, PLC0415 - nothing else of kdleak needs it
    except ImportError as error:
        raise MissingDependency(
            "searching memory for pool blocks",
            "numpy is not installed",
            'pip install "kdleak[dump]"',
        ) from error
    from kdleak.nt.blocks.scan import PoolScan  # noqa: PLC0415 - needs numpy

    scan = PoolScan(tag, memory, modules, symbol, build=build, pointer_size=pointer_size, pool=pool)
    scan.run(limit, size, deadline, clock)
    return scan.result(counters, nearest)
