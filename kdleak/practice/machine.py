"""The practice machine: RAM, page tables, images and processors, advanced tick by tick.

One tick delivers a clock interrupt to every processor in turn and lets it run until it halts, so
only one processor ever executes and a run depends on nothing but its parameters.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from kdleak.errors import UsageError
from kdleak.practice.boot import (
    LEDGER_HEADER_PAGES,
    MAXIMUM_PROCESSORS,
    POOL_PAGES,
    SHARED_DATA,
    boot_system,
    ledger_bytes,
)
from kdleak.practice.images import DEFAULT_BUILD
from kdleak.practice.ledger import CallSite, read_ledger
from kdleak.practice.loader import LoadedImage
from kdleak.practice.paging import NO_EXECUTE, PAGE_MASK, PAGE_SIZE, PhysicalMemory
from kdleak.practice.processor import (
    STATUS_SINGLE_STEP,
    Pause,
    Processor,
    ProcessorStop,
)
from kdleak.practice.workload import Workload

DEFAULT_MEMORY = 128 << 20


@dataclass(frozen=True)
class MachineStop:
    """Something a debugger would be told; the machine stands still until it is run again.

    Attributes:
        processor: number of the processor it happened on.
        code: NTSTATUS of the exception.
        address: of the instruction.
        parameters: exception information.
        thread: KTHREAD address.
        loaded: the image that was just loaded, when that is why it stopped; ``code`` is 0 then.
    """

    processor: int
    code: int
    address: int
    parameters: tuple[int, ...]
    thread: int
    loaded: LoadedImage | None = None


class PracticeMachine:
    """A booted machine.

    Args:
        seed: chooses addresses and all random behaviour.
        build: Windows build it claims, one of ``images.BUILDS``.
        processors: 1 or 2.
        workload: what it does.
        memory: bytes of RAM.
        on_print: called with the text of every DbgPrint.

    Raises:
        UsageError: a parameter outside its range.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        build: int = DEFAULT_BUILD,
        processors: int = 2,
        workload: Workload | None = None,
        memory: int = DEFAULT_MEMORY,
        on_print: Callable[[bytes], None] | None = None,
    ) -> None:
        if not 1 <= processors <= MAXIMUM_PROCESSORS:
            raise UsageError(
                f"making a practice machine with {processors} processors",
                f"it can have 1 to {MAXIMUM_PROCESSORS}",
                "ask for fewer",
            )
        self.seed = seed
        self.build = build
        self.workload = workload or Workload()
        self.ticks = 0
        self.on_print = on_print
        self.memory = PhysicalMemory(memory)
        self._system = boot_system(
            self.memory, seed=seed, build=build, processors=processors, workload=self.workload
        )
        self.space = self._system.space
        self.images = self._system.images
        self.addresses = self._system.addresses
        self._start_ledger()
        host = ctypes.addressof(self._ledger_anchor), ledger_bytes()
        self.processors = tuple(
            Processor(
                number,
                self.space,
                ledger_host=host,
                pcr=self._system.pcr[number],
                gdt=self._system.gdt,
                idt=self._system.idt,
            )
            for number in range(processors)
        )
        self._clock = self.kernel.symbols["KiInterruptDispatchNoLockNoEtw"]
        self._running: int | None = None
        self._boot()

    # ---- what is where ----

    @property
    def kernel(self) -> LoadedImage:
        """The kernel's image."""
        return self.images[0]

    @property
    def symbols(self) -> dict[str, int]:
        """Every symbol as "module!name" to its address."""
        return {
            f"{image.name}!{name}": address
            for image in self.images
            for name, address in image.symbols.items()
        }

    def loaded_images(self) -> tuple[LoadedImage, ...]:
        """The images in nt!PsLoadedModuleList now: a late driver may not have come yet."""
        head = self.symbol("PsLoadedModuleList")
        by_base = {image.base: image for image in self.images}
        found: list[LoadedImage] = []
        entry = int.from_bytes(self.read_virtual(head, 8), "little")
        while entry != head:
            found.append(by_base[int.from_bytes(self.read_virtual(entry + 0x30, 8), "little")])
            entry = int.from_bytes(self.read_virtual(entry, 8), "little")
        return tuple(found)

    def symbol(self, name: str) -> int:
        """Address of "module!name" or of a kernel symbol; KeyError when there is none."""
        module, _, rest = name.rpartition("!")
        for image in self.images:
            if image.name == (module or "nt"):
                return image.symbols[rest]
        raise KeyError(name)

    def nearest(self, address: int) -> tuple[str, str, int]:
        """Module, function and offset of a code address; empty names where unknown."""
        for image in self.images:
            if address in image:
                below = [item for item in image.symbols.items() if item[1] <= address]
                if not below:
                    return image.name, "", address - image.base
                name, start = max(below, key=lambda item: item[1])
                return image.name, name, address - start
        return "", "", 0

    # ---- memory ----

    def read_virtual(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer where a page is not present."""
        return self.space.read(address, size)

    def write_virtual(self, address: int, data: bytes) -> int:
        """Write past page protection; returns the bytes written."""
        done = self.space.write(address, data)
        self._wrote(address, done)
        return done

    def write_physical(self, address: int, data: bytes) -> int:
        """Write to RAM; returns the bytes written."""
        done = self.memory.write(address, data)
        for processor in self.processors:
            processor.forget_code()
            processor.forget_pages()
        return done

    def read_u32(self, name: str) -> int:
        """The u32 variable of that name."""
        return int.from_bytes(self.read_virtual(self.symbol(name), 4), "little")

    def read_u64(self, name: str) -> int:
        """The u64 variable of that name."""
        return int.from_bytes(self.read_virtual(self.symbol(name), 8), "little")

    def write_u32(self, name: str, value: int) -> None:
        """Set the u32 variable of that name."""
        self.write_virtual(self.symbol(name), struct.pack("<I", value))

    def physical_pages(self) -> Iterator[tuple[int, bytes]]:
        """Page frame number and contents of every page in use, ascending; for dump writers.

        Also saves every processor's registers in its KPRCB first, as a crash would.
        """
        for processor in self.processors:
            processor.save_state()
        yield from self.used_pages()

    def used_pages(self) -> Iterator[tuple[int, bytes]]:
        """Page frame number and contents of every page in use, ascending, as they are."""
        used = self.read_u64("MiNextFreePage")
        for frame in range(0x100, used):
            yield frame, bytes(self.memory.bytes[frame * PAGE_SIZE : (frame + 1) * PAGE_SIZE])

    def times(self) -> tuple[int, int]:
        """Time since boot and system time (FILETIME), 100 ns units, from the shared data page."""
        uptime = self.read_virtual(SHARED_DATA + 0x08, 8)
        now = self.read_virtual(SHARED_DATA + 0x14, 8)
        return int.from_bytes(uptime, "little"), int.from_bytes(now, "little")

    @property
    def directory_table_base(self) -> int:
        """CR3."""
        return self.space.root

    def _wrote(self, address: int, size: int) -> None:
        """Tell the emulators when a write from outside touched code or page tables."""
        end = address + size
        pages = range(address & ~PAGE_MASK, end, PAGE_SIZE)
        entries = [self.space.entry(page) for page in pages]
        if any(entry and not entry & NO_EXECUTE for entry in entries):
            for processor in self.processors:
                processor.forget_code()
        tables = self.space.pte_base
        if address < tables + (1 << 39) and end > tables:
            for processor in self.processors:
                processor.forget_pages()

    # ---- running ----

    def tick(self) -> MachineStop | None:
        """Run one tick, or the rest of one that was stopped.

        Returns:
            What stopped it, or None when the tick is complete.
        """
        if self._running is None:
            self._running = 0
            self.processors[0].interrupt(self._clock)
        while self._running < len(self.processors):
            stop = self._run(self.processors[self._running])
            if stop is not None:
                return stop
            self._running += 1
            if self._running < len(self.processors):
                self.processors[self._running].interrupt(self._clock)
        self._running = None
        self.ticks += 1
        return None

    def step(self, number: int) -> MachineStop:
        """Execute one instruction on one processor (single step)."""
        processor = self.processors[number]
        event = processor.step()
        if event.pause is Pause.PRINT:
            self._print(event)
        elif event.pause is not Pause.HALTED:
            return self._stop(processor, event)
        return MachineStop(
            processor.number,
            STATUS_SINGLE_STEP,
            processor.program_counter,
            (),
            processor.thread,
        )

    def request_break(self) -> None:
        """Ask for a debugger break at the next clock interrupt."""
        self.write_virtual(self.symbol("KdpControlCPending"), b"\x01")

    def hide_ledger(self) -> None:
        """Take the ledger out of the page tables: no Windows machine has such a thing.

        The machine cannot run any more afterwards; :meth:`ground_truth` still works.
        """
        slot = self.addresses.ledger >> 39 & 0x1FF
        self.memory.words[self.space.root // 8 + slot] = 0

    def raise_unhandled(self, number: int, code: int, first: int, second: int) -> None:
        """Let nt!KiExceptionDispatch bring the machine down from where a processor stands.

        Args:
            number: the processor.
            code: bug check code.
            first: its first parameter.
            second: its second parameter; the others are 0.
        """
        processor = self.processors[number]
        processor.interrupt(self.kernel.symbols["KiExceptionDispatch"], code, first, second)
        self._run(processor)

    def _run(self, processor: Processor) -> MachineStop | None:
        while True:
            event = processor.run()
            if event.pause is Pause.HALTED:
                return None
            if event.pause is Pause.PRINT:
                self._print(event)
            else:
                return self._stop(processor, event)

    def _print(self, event: ProcessorStop) -> None:
        if self.on_print is not None:
            self.on_print(event.text)

    def _stop(self, processor: Processor, event: ProcessorStop) -> MachineStop:
        loaded = None
        if event.pause is Pause.LOAD_SYMBOLS:
            base = int.from_bytes(self.read_virtual(event.entry + 0x30, 8), "little")
            loaded = next(image for image in self.images if image.base == base)
        return MachineStop(
            processor.number, event.code, event.address, event.parameters, processor.thread, loaded
        )

    def _boot(self) -> None:
        entry = self.kernel.symbols["KiSystemStartup"]
        for processor in self.processors:
            processor.start(
                entry,
                self._system.initial_stacks[processor.number],
                self._system.loader_block,
                processor.number,
            )
            stop = self._run(processor)
            if stop is not None:
                where = "!".join(self.nearest(stop.address)[:2])
                raise RuntimeError(f"the practice kernel stopped at boot: {stop} {where}")

    # ---- ground truth ----

    def _start_ledger(self) -> None:
        self._ledger_map = mmap.mmap(-1, ledger_bytes())
        self._ledger_anchor = ctypes.c_char.from_buffer(self._ledger_map)
        header = LEDGER_HEADER_PAGES * PAGE_SIZE
        base = self.addresses.ledger + header
        self._ledger_map[0x8000:0x8010] = struct.pack(
            "<QQ", base, base + POOL_PAGES[0] * PAGE_SIZE // 8
        )

    def ground_truth(self) -> tuple[CallSite, ...]:
        """What every call site of the allocator did since boot, from the ledger."""
        return tuple(
            replace(site, module=module, function=function, offset=offset)
            for site in read_ledger(self._ledger_map)
            for module, function, offset in (self.nearest(site.return_address),)
        )

    def close(self) -> None:
        """Give back the memory."""
        for processor in self.processors:
            processor.close()
        self.memory.close()
        del self._ledger_anchor
        self._ledger_map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
