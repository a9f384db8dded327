"""What is asked about the drivers blamed: the foremost, at the end, and not at any price."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hunt_fakes import LEAK, FakeEngine, Finder, leaking

from kdleak.blaming.blamed_modules import (
    MOST_MODULES,
    MOST_READS,
    USED_UP,
    details_of,
    foremost,
    read_details,
)
from kdleak.errors import LinkLost, MemoryUnreadable
from kdleak.hunt import HuntOptions, hunt
from kdleak.journal import Journal
from kdleak.model import Module
from kdleak.result import DisarmStatus, HuntResult, Judgement, StopReason


class Asked(FakeEngine):
    """Has modules; what is read below its base is counted."""

    def __init__(self, *events, trouble: BaseException | None = None, listing=None, **more) -> None:
        super().__init__(*events, **more)
        self.asked: list[tuple[int, int]] = []
        self.trouble = trouble
        self.listing = listing

    def modules(self):
        if self.listing is not None:
            raise self.listing
        return (Module("leakdrv", 0xFFFFF80001000000, 0x20000000, "leakdrv.sys", 7, "C:\\l.sys"),)

    def read(self, address, size):
        if address >= 0xFFFFF80001000000:
            self.asked.append((address, size))
            raise self.trouble or MemoryUnreadable(address, size)
        return super().read(address, size)


def hunted(engine: FakeEngine, tmp_path, **options) -> HuntResult:
    return hunt(
        engine,
        HuntOptions(**{"tag": LEAK, "max_hits": 60, **options}),
        journal=Journal(tmp_path),
        block_finder_factory=Finder,
        clock=engine.clock,
        sleep=engine.clock.sleep,
    )


def test_what_cannot_be_read_is_said(tmp_path) -> None:
    engine = Asked(leaking())
    result = hunted(engine, tmp_path)
    assert result.accused is not None
    details = details_of(result, result.accused)
    assert details is not None
    assert (details.name, details.file_name, details.path) == (
        "leakdrv", "leakdrv.sys", "C:\\l.sys",
    )  # fmt: skip
    assert details.unknown == "the headers of its image are not in memory"
    assert str(details) == (
        "leakdrv.sys (version not known: the headers of its image are not in memory)"
    )
    assert len(engine.asked) == 1
    assert engine.violations == []


def test_nothing_is_asked_when_not_wanted(tmp_path) -> None:
    engine = Asked(leaking())
    assert hunted(engine, tmp_path, read_versions=False).blamed == ()
    assert engine.asked == []


@pytest.mark.parametrize("where", ["reading", "listing"])
def test_a_link_that_is_lost_then_costs_only_the_details(tmp_path, where: str) -> None:
    lost = LinkLost("reading", "nothing answered", "try again")
    engine = Asked(leaking(), **{"trouble" if where == "reading" else "listing": lost})
    result = hunted(engine, tmp_path)
    assert result.blamed == ()
    assert result.accused is not None
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert result.stop_reason is StopReason.HITS


def test_an_interruption_then_costs_only_the_details(tmp_path) -> None:
    engine = Asked(leaking(), trouble=KeyboardInterrupt())
    result = hunted(engine, tmp_path)
    assert result.blamed == ()
    assert result.accused is not None


def test_requests_are_bounded(tmp_path) -> None:
    """One read can be many requests, where memory is absent: then no more is asked for."""

    class Dear(Asked):
        requests = 0

        def modules(self):
            self.requests = 0
            return super().modules()

        def read(self, address, size):
            self.requests += MOST_READS
            return super().read(address, size)

    engine = Dear(leaking())
    addresses = [0xFFFFF80001000000, 0xFFFFF80001000001]
    first, second = read_details(engine, addresses)
    assert len(engine.asked) == 1
    assert first.unknown == "the headers of its image are not in memory"
    assert second.unknown == USED_UP
    assert read_details(engine, [0xFFFFF80000000000]) == ()


def test_one_call_site_per_driver_the_foremost_first(tmp_path) -> None:
    site = hunted(Asked(leaking()), tmp_path).sites[0]

    def blamed_on(module: str, judgement: Judgement):
        symbol = replace(site.blame.symbol, module=module)
        return replace(site, blame=replace(site.blame, symbol=symbol), judgement=judgement)

    sites = [
        blamed_on("a", Judgement.ACCUSED),
        blamed_on("a", Judgement.ACCUSED),
        blamed_on("nt", Judgement.ACCUSED),
        blamed_on("b", Judgement.SUSPECTED),
        blamed_on("", Judgement.SUSPECTED),
        blamed_on("c", Judgement.CLEARED),
        blamed_on("d", Judgement.SUSPECTED),
        blamed_on("e", Judgement.SUSPECTED),
    ]
    assert [one.blame.symbol.module for one in foremost(sites)] == ["a", "b", "d"]
    assert len(foremost(sites)) == MOST_MODULES
    # Nobody is pointed at: the one that holds most is asked about.
    assert [one.blame.symbol.module for one in foremost(sites[5:6])] == ["c"]
    assert foremost([]) == ()
