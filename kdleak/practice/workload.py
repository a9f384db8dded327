"""What the practice machine does: how much it allocates, who leaks, and what goes wrong when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """Parameters of a run; the defaults suit a demonstration at 100 ticks per second.

    Attributes:
        leak_requests: requests per tick in leakydrv; each allocates at three call sites with
            the tag ``Leak`` and frees, unless it is one that leaks.
        leak_permille: how many of 1000 requests leak the record made in leakydrv!TrackRequest.
        busy_operations: cache lookups per tick in busydrv, tag ``Busy``.
        background_operations: the kernel's own allocations per tick and processor.
        population: percent of the static population of tags to create at boot.
        tracker_rows: nt!PoolTrackTableSize, 2^n + 1.
        expansion_rows: most rows nt!PoolTrackTableExpansion may get; beyond, ``Ovfl`` counts.
        big_page_rows: rows of nt!PoolBigPageTable at boot, a power of two.
        counter_bias: added to allocs and frees of the tag ``Irp `` (to see 32-bit counters wrap).
        tick_length: practice time per tick, in 100 ns units.
        assert_at_tick: leakydrv fails an assertion (int 2c) at this tick; 0 never.
        break_at_tick: leakydrv calls nt!DbgBreakPoint at this tick; 0 never.
        bug_check_at_tick: leakydrv calls nt!KeBugCheckEx at this tick; 0 never.
        print_every_ticks: leakydrv prints a line with nt!DbgPrint that often; 0 never.
        late_driver_at_tick: busydrv is loaded at this tick instead of at boot; 0 at boot.
        scenario_operations: how much the drivers of the scenario do per tick.
        scenario_cache_entries: size of the cache in the scenario "cache".
        scenario: name of the scenario whose drivers are loaded as well, "" for none.
    """

    leak_requests: int = 1
    leak_permille: int = 400
    busy_operations: int = 60
    background_operations: int = 12
    population: int = 100
    tracker_rows: int = 2049
    expansion_rows: int = 64
    big_page_rows: int = 0x1000
    counter_bias: int = 0
    tick_length: int = 100_000
    assert_at_tick: int = 0
    break_at_tick: int = 0
    bug_check_at_tick: int = 0
    print_every_ticks: int = 0
    late_driver_at_tick: int = 0
    scenario_operations: int = 1
    scenario_cache_entries: int = 200
    scenario: str = ""

    def driver_parameters(self, seed: int) -> dict[str, int]:
        """Values of the drivers' u32 parameter variables, by symbol name."""
        return {
            "LeakRequestsPerTick": self.leak_requests,
            "LeakPermille": self.leak_permille,
            "LeakSeed": seed & 0x7FFF_FFFF,
            "LeakAssertAtTick": self.assert_at_tick,
            "LeakBreakAtTick": self.break_at_tick,
            "LeakBugCheckAtTick": self.bug_check_at_tick,
            "LeakPrintEveryTicks": self.print_every_ticks,
            "BusyOperationsPerTick": self.busy_operations,
            "BusySeed": seed + 1 & 0x7FFF_FFFF,
            "ScenarioOperationsPerTick": self.scenario_operations,
            "ScenarioLeakPermille": self.leak_permille,
            "ScenarioCacheEntries": self.scenario_cache_entries,
            "ScenarioSeed": seed + 2 & 0x7FFF_FFFF,
        }
