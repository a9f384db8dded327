"""How long 100,000 hits take to book and to report, and how much memory they keep.

Beside the time, in the same run, that of one SHA-256 of 100 bytes per hit: the ratio carries over
to other machines, seconds do not.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace

from kdleak.booking.hit_log import HitLog
from kdleak.callsites import Ledger
from kdleak.model import (
    Architecture,
    Block,
    BlockTrust,
    Frame,
    Hit,
    HitKind,
    Stack,
    StackEnd,
    Symbolized,
    SymbolKind,
    TargetInfo,
)
from kdleak.report.json_report import hunt_json
from kdleak.report.text import render_hunt
from kdleak.result import Completeness, DisarmState, DisarmStatus, HuntResult, StopReason
from kdleak.tags import PoolTag
from kdleak.verdict import choose_accused, verdict_sentences

HITS = 100_000
MOST_SECONDS = 2.0
"""Processor time that booking and reporting may take (on the machine this was written on)."""

FRAMES = 14
STACKS = 200


def stacks(top: str, count: int) -> list[Stack]:
    """Different stacks through a few call sites."""
    found = []
    for number in range(count):
        names = [("nt", top), ("nt", "ExAllocatePool2" if "Alloc" in top else "ExFreePool")]
        names += [(f"driver{number % 20}", f"Function{number % 40}")]
        names += [("nt", f"IofCallDriver{depth}") for depth in range(FRAMES - 4)]
        names += [(f"upper{number}", "Dispatch")]
        found.append(
            Stack(
                tuple(
                    Frame(
                        address=0xFFFFF80000000000 + zlib.crc32(f"{module}!{name}".encode()),
                        stack_pointer=0xFFFFF00000000000 + 0x40 * depth,
                        symbol=Symbolized(0, module, name, 0x10 + depth, SymbolKind.PDB),
                    )
                    for depth, (module, name) in enumerate(names)
                ),
                StackEnd.COMPLETE,
            )
        )
    return found


def hits(count: int) -> Iterator[Hit]:
    """A tag with a leak of one block in ten, beside traffic that comes back."""
    rng = random.Random(1)
    allocs, frees = stacks("ExAllocateHeapPool", STACKS), stacks("ExFreeHeapPool", STACKS)
    live: list[int] = []
    for number in range(1, count + 1):
        if live and rng.random() < 0.47:
            kind, address, chosen = HitKind.FREE, live.pop(rng.randrange(len(live))), frees
        else:
            kind, address, chosen = HitKind.ALLOC, 0xFFFF800000000000 + number * 0x100, allocs
            if rng.random() > 0.1:
                live.append(address)
        stack = chosen[rng.randrange(STACKS)]
        # A stack of its own for every hit, as an engine makes them.
        stack = replace(stack, frames=tuple(stack.frames))
        block = Block(address, 0x60, None, BlockTrust.LEARNED)
        yield Hit(number, kind, stack, number / 500, 0, 0xFFFF800012345678, block)


def result_of(ledger: Ledger, log: HitLog, now: float) -> HuntResult:
    """What a hunt with these hits would come to."""
    sites = ledger.sites(now)
    return HuntResult(
        target=TargetInfo(Architecture.X64, 8, 26100, True, 4, 0xFFFFF80000000000),
        engine="native",
        where="net:port=50000",
        tag=PoolTag.parse("Leak"),
        tag_reason="",
        started_at=0.0,
        verdict=verdict_sentences("Leak", sites, None, log.count),
        accused=choose_accused(sites),
        sites=sites,
        stacks=ledger.stacks(),
        hits=tuple(log),
        pairing=ledger.pairing(),
        growth=None,
        completeness=Completeness(
            hits=log.count, seconds=now, seconds_watched=now, hits_left_out=log.left_out
        ),
        change=None,
        disarm=DisarmState(DisarmStatus.NOT_NEEDED),
        stop_reason=StopReason.HITS,
        series=ledger.series(now),
    )


def book(taken: list[Hit]) -> tuple[Ledger, HitLog]:
    """What a watch does with its hits."""
    ledger, log = Ledger(8), HitLog()
    for hit in taken:
        log.append(hit)
        ledger.add(hit)
    return ledger, log


def kept(count: int) -> int:
    """Bytes kept of so many hits, all of whose blocks are freed again at once."""
    alloc, free = stacks("ExAllocateHeapPool", 1)[0], stacks("ExFreeHeapPool", 1)[0]
    tracemalloc.start()
    ledger, log = Ledger(8), HitLog(100)
    for number in range(count):
        kind, stack = (HitKind.FREE, free) if number % 2 else (HitKind.ALLOC, alloc)
        block = Block(0x1000, 0x60)
        hit = Hit(number, kind, replace(stack), number / 1000, 0, 0, block)
        log.append(hit)
        ledger.add(hit)
    found = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return found


def main() -> int:
    taken = list(hits(HITS))
    began = time.process_time()
    ledger, log = book(taken)
    booked = time.process_time()
    result = result_of(ledger, log, taken[-1].at)
    text = render_hunt(result)
    told = time.process_time()
    document = hunt_json(result)
    ended = time.process_time()
    for hit in taken:
        hashlib.sha256(b"%100d" % hit.number).digest()
    hashed = time.process_time() - ended
    print(f"{HITS:,} hits, {len(result.stacks)} stacks, {len(result.sites)} call sites, "
          f"{sum(site.outstanding for site in result.sites):,} live blocks")  # fmt: skip
    print(f"{'':28} {'s':>8} {'us per hit':>11}")
    for name, seconds in (
        ("booked", booked - began),
        (f"as text ({len(text):,} bytes)", told - booked),
        (f"as JSON ({len(document):,} bytes)", ended - told),
        ("all", ended - began),
    ):
        print(f"{name:28} {seconds:8.2f} {seconds / HITS * 1e6:11.2f}")
    print(f"{(ended - began) / hashed:.1f} times as long as a SHA-256 for each hit")
    few, many = kept(20_000), kept(40_000)
    print(f"kept of 20,000 hits {few:,} bytes, of 40,000 {many:,}")
    return 0 if ended - began <= MOST_SECONDS and many < few * 1.2 else 1


if __name__ == "__main__":
    sys.exit(main())
