"""A scripted target behind the Engine contract: memory of PoolHitTag, traffic, faults, reboots."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from kdleak.errors import (
    LinkLost,
    MemoryNotWritten,
    MemoryUnreadable,
    SymbolNotFound,
    TargetRestarted,
)
from kdleak.model import (
    Architecture,
    Block,
    BlockTrust,
    Frame,
    HitKind,
    Pool,
    PoolCounters,
    PoolSnapshot,
    Registers,
    Stack,
    Stop,
    StopKind,
    Symbolized,
    SymbolKind,
    TagUsage,
    TargetInfo,
)
from kdleak.tags import PoolTag

IDLE = bytes.fromhex("0fffffff")  # 0xffffff0f
ADDRESS = 0xFFFFF80000C62924
KERNEL_BASE = 0xFFFFF80000400000
LEAK = PoolTag.parse("Leak")
OTHER = PoolTag.parse("Busy")


def frame(name: str) -> Frame:
    """A frame of ``module!function+0x1c`` at an address that belongs to the name."""
    address = 0xFFFFF80001000000 + 0x100 * (zlib.crc32(name.encode()) >> 12)
    module, _, function = name.partition("!")
    base, _, offset = function.partition("+")
    return Frame(
        address, 0, Symbolized(address, module, base, int(offset or "0", 16), SymbolKind.PDB)
    )


def stack(*names: str) -> Stack:
    return Stack(tuple(frame(name) for name in names))


ALLOC_TOP = ("nt!ExAllocateHeapPool+0x5f1", "nt!ExAllocatePool2+0x6e")
FREE_TOP = ("nt!ExFreeHeapPool+0x3a2", "nt!ExFreePoolWithTag+0x7")


@dataclass
class Event:
    """Something the target does ``dt`` seconds of running after the one before."""

    dt: float
    stack: Stack
    kind: Optional[HitKind] = None  # None: a stop of its own
    tag: PoolTag = LEAK
    address: int = 0
    size: Optional[int] = None
    stop: StopKind = StopKind.BREAK_INSTRUCTION


def alloc(address: int, *callers: str, dt: float = 0.01, size: int = 0x60, tag=LEAK) -> Event:
    return Event(dt, stack(*ALLOC_TOP, *callers), HitKind.ALLOC, tag, address, size)


def free(address: int, *callers: str, dt: float = 0.01, size: int = 0x60, tag=LEAK) -> Event:
    return Event(dt, stack(*FREE_TOP, *callers), HitKind.FREE, tag, address, size)


def foreign(*names: str, dt: float = 0.01, stop: StopKind = StopKind.BREAK_INSTRUCTION) -> Event:
    return Event(dt, stack(*names), stop=stop)


def leaking(period: float = 0.05) -> Iterator[Event]:
    """One driver that leaks beside one that gives everything back."""
    for number in itertools.count():
        address = 0xFFFFC00000000000 + number * 0x1000
        yield alloc(address, "leakdrv!Receive+0x31", "nt!IofCallDriver+0x55", dt=period)
        yield alloc(address + 0x800, "gooddrv!Send+0x40", dt=period)
        yield free(address + 0x800, "gooddrv!Done+0x12", dt=period)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


Fault = Callable[["FakeEngine", str, str], None]
"""Called as (engine, operation, "before" | "after"); may raise."""


class FakeEngine:
    """One processor, one PoolHitTag. ``violations`` must stay empty."""

    name = "native"
    where = "net:port=50000"

    def __init__(
        self,
        events: Iterable[Event] = (),
        *,
        clock: Optional[Clock] = None,
        live: bool = True,
        fault: Optional[Fault] = None,
        idle: bytes = IDLE,
        running: bool = False,
    ) -> None:
        self.clock = clock or Clock()
        self.events = iter(events)
        self.waiting: Optional[Event] = None
        self.current: Optional[Event] = None
        self.hit_tag = idle
        self.fault = fault
        self.target = TargetInfo(Architecture.X64, 8, 26100, live, 4, KERNEL_BASE, "fake")
        self.stop = Stop(StopKind.STILL_RUNNING if running else StopKind.BREAK_IN)
        self.seconds_stopped = 0.0
        self.requests = 0
        self.calls: List[str] = []
        self.writes: List[bytes] = []
        self.violations: List[str] = []
        self.counters: Dict[PoolTag, List[int]] = {}
        self.event_on_interrupt = False
        self.lie: Optional[Callable[[bytes], bytes]] = None
        self.refuse_writes = False
        self.link_down = False
        self.restarted = False
        self.unreadable_usage = False
        self.remarks: Tuple[str, ...] = ()

    # --- faults

    def _op(self, name: str) -> None:
        self.calls.append(name)
        self.requests += 1
        if self.stop.kind is not StopKind.STILL_RUNNING:
            self.clock.now += 0.001
            self.seconds_stopped += 0.001
        if self.fault is not None:
            self.fault(self, name, "before")
        self._link(name)

    def _done(self, name: str) -> None:
        if self.fault is not None:
            self.fault(self, name, "after")
        self._link(name)

    def _link(self, name: str) -> None:
        if self.link_down:
            self.clock.now += 0.5
            raise LinkLost(f"asking the target to {name}", "no answer")
        if self.restarted:
            raise TargetRestarted(f"asking the target to {name}", "it restarted")

    def reboot(self) -> None:
        self.hit_tag = IDLE
        self.restarted = True

    def _must_be_stopped(self, name: str) -> None:
        if self.stop.kind is StopKind.STILL_RUNNING:
            self.violations.append(f"{name} while the target runs")

    # --- the contract

    def reload(self) -> Tuple[str, ...]:
        self._must_be_stopped("reload")
        self._op("reload")
        self._done("reload")
        return self.remarks

    def modules(self) -> Tuple[()]:
        return ()

    def symbol(self, name: str) -> int:
        if name.startswith(("nt!Mm", "nt!Kd")):  # limits of the pools, which not every kernel has
            raise SymbolNotFound(f"looking up {name}", "not found")
        self._op("symbol")
        self._done("symbol")
        assert name == "nt!PoolHitTag"
        return ADDRESS

    def nearest(self, address: int) -> Symbolized:
        return Symbolized(address, "nt", "PoolHitTag", 0, SymbolKind.PDB)

    def read(self, address: int, size: int) -> bytes:
        self._must_be_stopped("read")
        self._op("read")
        if (address, size) != (ADDRESS, 4):
            raise MemoryUnreadable(address, size)
        value = self.hit_tag if self.lie is None else self.lie(self.hit_tag)
        self._done("read")
        return value

    def write(self, address: int, data: bytes) -> None:
        self._must_be_stopped("write")
        self._op("write")
        assert (address, len(data)) == (ADDRESS, 4)
        if self.refuse_writes:
            raise MemoryNotWritten("writing 4 bytes", "0xc0000005")
        self.hit_tag = bytes(data)
        self.writes.append(bytes(data))
        self._done("write")

    def pool_usage(self, tag: Optional[PoolTag] = None) -> PoolSnapshot:
        self._must_be_stopped("pool_usage")
        self._op("pool_usage")
        if self.unreadable_usage:
            raise MemoryUnreadable(ADDRESS + 0x100, 80)
        rows = tuple(
            TagUsage(which, nonpaged=PoolCounters(*counters))
            for which, counters in sorted(self.counters.items())
            if tag in (None, which)
        )
        self._done("pool_usage")
        return PoolSnapshot(self.clock(), rows, "fake tables")

    def registers(self) -> Registers:
        self._must_be_stopped("registers")
        self._op("registers")
        self._done("registers")
        tag = self.current.tag.value if self.current else 0
        return Registers({"rip": 0, "rsp": 0, "rbx": tag})

    def stack(self, depth: int = 32) -> Stack:
        self._must_be_stopped("stack")
        self._op("stack")
        self._done("stack")
        return self.current.stack if self.current else Stack(())

    def stack_memory(self) -> Tuple[int, bytes]:
        return (0, b"")

    def _running(self, seconds: float) -> None:
        self.clock.now += seconds

    def _next_stop(self, deadline: float) -> Optional[Stop]:
        """Let the target run to the next stop, None when the deadline comes first."""
        while True:
            if self.waiting is None:
                self.waiting = next(self.events, None)
            if self.waiting is None or self.clock() + self.waiting.dt > deadline:
                left = max(0.0, deadline - self.clock())
                if self.waiting is not None:
                    self.waiting.dt -= left
                self._running(left)
                return None
            event, self.waiting = self.waiting, None
            self._running(event.dt)
            self._count(event)
            if event.kind is None or self.hit_tag == event.tag.raw:
                self.current = event
                return Stop(
                    event.stop, event.stack.frames[0].address if event.stack else 0, 0x80000003
                )

    def _count(self, event: Event) -> None:
        if event.kind is not None:
            counters = self.counters.setdefault(event.tag, [0, 0, 0])
            counters[event.kind is HitKind.FREE] += 1
            sign = 1 if event.kind is HitKind.ALLOC else -1
            counters[2] += sign * (event.size or 0)

    def resume(self, timeout: Optional[float]) -> Stop:
        self._op("resume")
        assert timeout is not None
        self.stop = Stop(StopKind.STILL_RUNNING)
        self.current = None
        stop = self._next_stop(self.clock() + timeout)
        if stop is not None:
            self.stop = stop
        self._done("resume")
        return self.stop

    def interrupt(self, timeout: float = 30.0) -> Stop:
        self._op("interrupt")
        if self.stop.kind is StopKind.STILL_RUNNING:
            stop = self._next_stop(self.clock() + 0.02) if self.event_on_interrupt else None
            self.stop = stop or Stop(StopKind.BREAK_IN)
        self._done("interrupt")
        return self.stop

    def close(self) -> None:
        self.calls.append("close")

    def __enter__(self) -> FakeEngine:  # noqa: PYI034 - no Self on 3.9
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Finder:
    """Finds the block the fake target's current event is about."""

    def __init__(self, engine: FakeEngine, tag: PoolTag) -> None:
        self.engine = engine

    def find(self, registers, stack_address, stack_bytes, program_counter, kind) -> Block:
        event = self.engine.current
        assert event is not None
        if not event.address:
            return Block()
        return Block(event.address, event.size, Pool.NONPAGED, BlockTrust.VERIFIED)
