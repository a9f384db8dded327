"""Puts the practice machine together, as the boot loader does for Windows.

Address map, page tables, images, descriptor tables, processor control regions, module list and
the loader block (``LOADER_PARAMETER_BLOCK`` in kernel/nt.h).
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from kdleak.practice.images import DRIVERS, image_files
from kdleak.practice.loader import LoadedImage, load_image
from kdleak.practice.paging import (
    PAGE_SIZE,
    READ_WRITE,
    AddressSpace,
    PhysicalMemory,
    canonical,
)
from kdleak.practice.workload import Workload

SHARED_DATA = 0xFFFFF780_00000000
MAXIMUM_THREADS = 12
STACK_SIZE = 0x6000
MAXIMUM_PROCESSORS = 2
POOL_PAGES = (0x3000, 0x4000)
"""Most pages of address space of the nonpaged and the paged pool."""

LEDGER_PHYSICAL = 1 << 32
"""Where the ledger's memory lies, far above RAM: no debugger request reaches it."""
LEDGER_HEADER_PAGES = 16
LEDGER_SITES = 512
LEDGER_SITE_SIZE = 0x40

_LATE_IMAGE = 1 + DRIVERS.index("busydrv")
_DRIVER_GAP = 0x10_0000

CLOCK_VECTOR = 0xD1
GDT_SIZE = 0x70
IDT_SIZE = 0x1000
_KERNEL_CODE = 0x00209B0000000000
_KERNEL_DATA = 0x00CF93000000FFFF
_USER_CODE_32 = 0x00CFFB000000FFFF
_USER_DATA = 0x00CFF3000000FFFF
_USER_CODE = 0x0020FB0000000000
_USER_TEB = 0x0040F30000003C00
_SYSTEM_TIME_BASE = 133_800_000_000_000_000  # December 2024, 100 ns units since 1601


@dataclass(frozen=True)
class AddressMap:
    """Where things lie in a boot; chosen from the seed as address space randomisation would."""

    kernel: int
    drivers: tuple[int, ...]
    pools: tuple[int, int]
    stacks: int
    system: int
    ledger: int
    self_map_slot: int

    @classmethod
    def choose(cls, seed: int) -> AddressMap:
        """The address map of a seed."""
        rng = random.Random(seed)  # noqa: S311 - reproducible on purpose
        slots = rng.sample(range(0x102, 0x1D0), 4)

        def inside(slot: int) -> int:
            return canonical(slot << 39) + rng.randrange(0x100, 0x8000) * 0x20_0000

        kernel = 0xFFFFF800_00000000 + rng.randrange(0x800, 0x3000) * 0x20_0000
        gap = kernel + 0x4000_0000
        drivers = tuple(
            gap + index * 0x90_0000 + rng.randrange(0x80) * 0x1_0000 for index in (1, 2)
        )
        return cls(
            kernel=kernel,
            drivers=drivers,
            pools=(inside(slots[0]), inside(slots[1])),
            stacks=canonical(0x1FD << 39) + rng.randrange(0x100, 0x8000) * 0x20_0000,
            system=0xFFFFF800_00000000 + rng.randrange(0x100, 0x700) * 0x20_0000,
            ledger=inside(slots[3]),
            self_map_slot=slots[2],
        )


@dataclass(frozen=True)
class BootedSystem:
    """What the machine needs to know after the loader is done.

    Attributes:
        space: the page tables.
        addresses: the address map.
        images: nt first, then the drivers.
        loader_block: address of the loader block.
        pcr: address of each processor's KPCR.
        initial_stacks: initial stack pointer of each processor.
        gdt: address of the GDT (one for all processors).
        idt: address of the IDT.
        first_free_frame: frames below belong to the loader, from here on to the kernel.
    """

    space: AddressSpace
    addresses: AddressMap
    images: tuple[LoadedImage, ...]
    loader_block: int
    pcr: tuple[int, ...]
    initial_stacks: tuple[int, ...]
    gdt: int
    idt: int
    first_free_frame: int


def boot_system(
    memory: PhysicalMemory, *, seed: int, build: int, processors: int, workload: Workload
) -> BootedSystem:
    """Lay out a machine that is ready to run nt!KiSystemStartup on processor 0."""
    addresses = AddressMap.choose(seed)
    space = AddressSpace(memory, first_frame=0x100)
    space.map_self(addresses.self_map_slot)
    images = _load_images(space, addresses, build, workload.scenario)
    for driver in images[1:]:
        _set_driver_parameters(space, driver, workload, seed)
    space.map_new(SHARED_DATA, PAGE_SIZE, READ_WRITE)
    for thread in range(MAXIMUM_THREADS):
        top = _stack_top(addresses, thread)
        space.map_new(top - STACK_SIZE, STACK_SIZE, READ_WRITE)
    for base, pages in zip(addresses.pools, pool_pages(memory), strict=True):
        space.reserve(base, pages)
    _map_ledger(space, addresses.ledger)
    gdt, idt, pcr = _write_processor_tables(space, addresses, images[0], processors)
    block = addresses.system
    space.map_new(block, 2 * PAGE_SIZE, READ_WRITE)
    late_image = _LATE_IMAGE if workload.late_driver_at_tick > 0 else 0
    head, late = _write_module_list(space, block + 0x400, images, late_image)
    space.write(
        block,
        _loader_block(space, addresses, images, (head, late), pcr, seed=seed, workload=workload),
    )
    return BootedSystem(
        space=space,
        addresses=addresses,
        images=images,
        loader_block=block,
        pcr=pcr,
        # Room above the first frame, as real stacks have: debuggers read them in blocks.
        initial_stacks=tuple(_stack_top(addresses, index) - 0x148 for index in range(processors)),
        gdt=gdt,
        idt=idt,
        first_free_frame=space.next_frame,
    )


def pool_pages(memory: PhysicalMemory) -> tuple[int, int]:
    """Pages of address space of either pool: no more than there is RAM."""
    pages = memory.size // PAGE_SIZE
    return min(POOL_PAGES[0], pages), min(POOL_PAGES[1], pages)


def ledger_bytes() -> int:
    """Size of the ledger's memory: its rows, then two bytes per 16 bytes of either pool."""
    return LEDGER_HEADER_PAGES * PAGE_SIZE + sum(POOL_PAGES) * PAGE_SIZE // 8


def _stack_top(addresses: AddressMap, index: int) -> int:
    return addresses.stacks + (index + 1) * (STACK_SIZE + PAGE_SIZE)


def _load_images(
    space: AddressSpace, addresses: AddressMap, build: int, scenario: str
) -> tuple[LoadedImage, ...]:
    files = image_files(build, scenario)
    kernel = load_image(space, files[0], addresses.kernel, name="nt")
    exports = dict(kernel.exports)
    images = [kernel]
    for index, path in enumerate(files[1:]):
        # Scenarios' drivers lie beyond the others, whose places must not depend on them.
        base = (
            addresses.drivers[index]
            if index < len(addresses.drivers)
            else addresses.drivers[-1] + (index - len(addresses.drivers) + 1) * _DRIVER_GAP
        )
        images.append(load_image(space, path, base, name=path.stem, exports=exports))
        exports.update(images[-1].exports)
    return tuple(images)


def _set_driver_parameters(
    space: AddressSpace, driver: LoadedImage, workload: Workload, seed: int
) -> None:
    for name, value in workload.driver_parameters(seed).items():
        if name in driver.symbols:
            space.write(driver.symbols[name], struct.pack("<I", value))


def _map_ledger(space: AddressSpace, address: int) -> None:
    for offset in range(0, ledger_bytes(), PAGE_SIZE):
        space.map(address + offset, (LEDGER_PHYSICAL + offset) // PAGE_SIZE, READ_WRITE)


def _write_processor_tables(
    space: AddressSpace, addresses: AddressMap, kernel: LoadedImage, processors: int
) -> tuple[int, int, tuple[int, ...]]:
    base = addresses.system + 0x10_0000
    gdt, idt, tss = base, base + 0x1000, base + 0x2000
    space.map_new(base, 3 * PAGE_SIZE, READ_WRITE)
    task = 0x67 | (tss & 0xFFFFFF) << 16 | 0x8B << 40 | (tss >> 24 & 0xFF) << 56
    descriptors = (
        0, 0, _KERNEL_CODE, _KERNEL_DATA, _USER_CODE_32, _USER_DATA, _USER_CODE, 0,
        task, tss >> 32, _USER_TEB, 0, 0, 0,
    )  # fmt: skip
    space.write(gdt, struct.pack("<14Q", *descriptors))
    clock = kernel.symbols["KiInterruptDispatchNoLockNoEtw"]
    other = kernel.symbols["KiUnexpectedInterrupt"]
    gates = b"".join(
        struct.pack(
            "<HHHHII",
            handler & 0xFFFF,
            0x10,
            0x8E00,
            handler >> 16 & 0xFFFF,
            handler >> 32,
            0,
        )
        for vector in range(256)
        for handler in (clock if vector == CLOCK_VECTOR else other,)
    )
    space.write(idt, gates)
    pcr: list[int] = []
    for number in range(processors):
        at = base + 0x1_0000 + number * 0x1_0000
        space.map_new(at, 2 * PAGE_SIZE, READ_WRITE)
        space.write(at, struct.pack("<8Q", gdt, tss, 0, at, at + 0x180, 0, at, idt))
        space.write(at + 0x180 + 0x24, struct.pack("<I", number))
        pcr.append(at)
    return gdt, idt, tuple(pcr)


def _write_module_list(
    space: AddressSpace, at: int, images: tuple[LoadedImage, ...], late_image: int
) -> tuple[int, int]:
    """KLDR_DATA_TABLE_ENTRY of every image, in a circle through a list head at ``at``.

    Args:
        space: the page tables.
        at: address of the list head.
        images: nt first.
        late_image: index of the driver that is loaded later, 0 for none.

    Returns:
        The list head, and the entry of a driver that is loaded later (0 for none); that one is
        not in the circle yet.
    """
    entries = [at + 0x20 + 0x300 * index for index in range(len(images))]
    late = entries[late_image] if late_image else 0
    ring = [at, *(entry for entry in entries if entry != late), at]
    space.write(at, struct.pack("<QQ", ring[1], ring[-2]))
    for entry, image in zip(entries, images, strict=True):
        full, base = image.path.encode("utf-16-le"), image.file_name.encode("utf-16-le")
        full_at, base_at = entry + 0xA0, entry + 0xA0 + len(full) + 2
        record = bytearray(0xA0)
        if entry != late:
            place = ring.index(entry)
            struct.pack_into("<QQ", record, 0x00, ring[place + 1], ring[place - 1])
        struct.pack_into("<QI", record, 0x10, *image.exception_table)
        struct.pack_into("<QQI", record, 0x30, image.base, image.entry_point, image.size)
        struct.pack_into("<HHxxxxQ", record, 0x48, len(full), len(full) + 2, full_at)
        struct.pack_into("<HHxxxxQ", record, 0x58, len(base), len(base) + 2, base_at)
        struct.pack_into("<IH", record, 0x68, 0x0900_4000, 1)
        struct.pack_into("<I", record, 0x78, image.checksum)
        struct.pack_into("<II", record, 0x98, image.size, image.timestamp)
        space.write(entry, bytes(record) + full + b"\0\0" + base + b"\0\0")
    return at, late


def _loader_block(
    space: AddressSpace,
    addresses: AddressMap,
    images: tuple[LoadedImage, ...],
    module_list: tuple[int, int],
    pcr: tuple[int, ...],
    *,
    seed: int,
    workload: Workload,
) -> bytes:
    pages = space.memory.size // PAGE_SIZE
    nonpaged, paged = pool_pages(space.memory)
    block = bytearray(0x128)
    struct.pack_into(
        "<9Q", block, 0x00,
        0x4B444C4B, images[0].base, images[0].size, module_list[0], space.pte_base,
        space.next_frame, pages, addresses.pools[0], nonpaged,
    )  # fmt: skip
    struct.pack_into("<4Q", block, 0x48, addresses.pools[1], paged, addresses.stacks, len(pcr))
    struct.pack_into(f"<{len(pcr)}Q", block, 0x68, *pcr)
    struct.pack_into(
        "<9Q", block, 0x78,
        (seed * 0x9E37_79B9_7F4A_7C15 | 1) & 0xFFFF_FFFF_FFFF_FFFF,
        workload.tracker_rows, workload.expansion_rows, workload.big_page_rows, addresses.ledger,
        _SYSTEM_TIME_BASE, workload.tick_length, space.root, pages,
    )  # fmt: skip
    late_image = _LATE_IMAGE if module_list[1] else 0
    entries = [
        image.entry_point for index, image in enumerate(images) if index not in {0, late_image}
    ]
    struct.pack_into(f"<{len(entries)}Q", block, 0xC0, *entries)
    struct.pack_into(
        "<5Q", block, 0x100,
        workload.counter_bias, workload.population, workload.background_operations,
        workload.late_driver_at_tick, module_list[1],
    )  # fmt: skip
    return bytes(block)
