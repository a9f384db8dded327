"""What a practice run cost and did: printed at the end of a run, and checked by tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kdleak.kd.packets import Api


@dataclass
class PracticeStatistics:
    """Counters of one run of the practice target.

    Attributes:
        requests: KD requests answered, by api number.
        hits_alloc: PoolHitTag breaks in nt!ExAllocateHeapPool.
        hits_free: PoolHitTag breaks in nt!ExFreeHeapPool.
        stops: all state changes sent, hits and image loads included.
        prints: DbgPrint lines.
        ticks: ticks completed.
        reboots: how often the debugger rebooted the machine.
        seconds_stopped: wall time with the machine frozen.
        seconds_stopped_in_hits: the share of it that PoolHitTag breaks took.
        seconds_running: wall time with the machine running.
        pool_hit_tag: nt!PoolHitTag at the end.
    """

    requests: Counter[int] = field(default_factory=Counter)
    hits_alloc: int = 0
    hits_free: int = 0
    stops: int = 0
    prints: int = 0
    ticks: int = 0
    reboots: int = 0
    seconds_stopped: float = 0.0
    seconds_stopped_in_hits: float = 0.0
    seconds_running: float = 0.0
    pool_hit_tag: int = 0

    @property
    def hits(self) -> int:
        """PoolHitTag breaks."""
        return self.hits_alloc + self.hits_free

    @property
    def seconds_per_hit(self) -> float:
        """Mean time the machine was frozen at a hit, 0 without hits."""
        return self.seconds_stopped_in_hits / self.hits if self.hits else 0.0

    @property
    def request_count(self) -> int:
        """KD requests of all kinds."""
        return sum(self.requests.values())

    def requests_by_name(self) -> dict[str, int]:
        """Requests by the name of their api, most frequent first."""
        known = {int(api): api.name for api in Api}
        return {known.get(api, f"0x{api:x}"): count for api, count in self.requests.most_common()}

    def lines(self) -> tuple[str, ...]:
        """The counters in words, one line each."""
        by_name = ", ".join(f"{name} {count}" for name, count in self.requests_by_name().items())
        return (
            f"{self.ticks} ticks, {self.seconds_running:.1f} s running",
            f"{self.stops} stops, {self.seconds_stopped:.1f} s stopped",
            f"{self.hits} PoolHitTag hits ({self.hits_alloc} alloc, {self.hits_free} free)",
            f"{self.seconds_per_hit * 1000:.2f} ms stopped per hit",
            f"{self.request_count} KD requests" + (f": {by_name}" if by_name else ""),
            f"nt!PoolHitTag is 0x{self.pool_hit_tag:08x}",
        )
