"""One line for the state of a hunt or ranking under way."""

from __future__ import annotations

from kdleak.result import HuntPhase, HuntProgress


def describe(progress: HuntProgress) -> str:
    """One line for one state of a hunt."""
    phase = progress.phase.value
    if progress.phase is HuntPhase.RANKING and progress.snapshots:
        return f"{phase}: snapshot {progress.snapshot} of {progress.snapshots}"
    if progress.phase in (HuntPhase.WATCHING, HuntPhase.RESTING):
        line = (
            f"{phase} '{progress.tag}': {progress.hits} of {progress.max_hits} hits "
            f"({progress.allocs} allocs, {progress.frees} frees), "
            f"{progress.seconds:.1f} of {progress.max_seconds:g} s, "
            f"target stopped {progress.seconds_stopped:.2f} s"
        )
        if progress.sites:
            site = progress.sites[0]
            line += f"; most: {site.name}, {site.outstanding_bytes:,} bytes outstanding"
        return line
    return phase
