"""Outputs of !poolfind, !pool, !vm and !verifier in short: a title and sentences for each kind."""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, List, Sequence, Tuple

from kdleak.dialect.log import DebuggerLog
from kdleak.dialect.pool import BlockState, Pool, PoolBlock, PoolPage
from kdleak.dialect.poolfind import PoolFind, PoolSearch
from kdleak.dialect.verifier import Verifier, VerifierDriver, VerifierReport
from kdleak.dialect.verifier_log import PoolOperation, VerifierLog, VerifierSearch
from kdleak.dialect.verifier_rows import VerifierAllocation
from kdleak.dialect.vm import VmUsage
from kdleak.errors import format_address
from kdleak.quantities import amount
from kdleak.report.secrets import without_secrets

_ABOUT_POOL = ("pool", "commit", "available pages", "physical memory", "free system ptes")
"""Quantities of ``!vm`` worth a line here, by a part of their label."""


def output_lines(log: DebuggerLog, top: int) -> Iterator[Tuple[str, List[str]]]:
    """Title and sentences of every kind of output that the log has.

    Args:
        log: as parsed.
        top: sentences of each kind; the rest is counted.
    """
    searches = [search for found in log.of(PoolFind) for search in found.searches]
    pages = [page for found in log.of(Pool) for page in found.pages]
    reports = [report for found in log.of(Verifier) for report in found.reports]
    operations = [search for found in log.of(VerifierLog) for search in found.searches]
    for title, lines in (
        ("!poolfind", map(_search, searches)),
        ("!pool", map(_page, pages)),
        ("!vm", (line for usage in log.of(VmUsage) for line in _vm(usage))),
        ("!verifier", (line for report in reports for line in _verifier(report))),
        ("!verifier 0x80", map(_operations, operations)),
    ):
        said = [without_secrets(line) for line in lines]
        if len(said) > top:
            said[top:] = [f"... {len(said) - top:,} more"]
        if said:
            yield title, said


def _search(search: PoolSearch) -> str:
    area = f" in {search.area_text} pool" if search.area_text else ""
    held = [block for block in search.blocks if block.state is not BlockState.FREE]
    free = len(search.blocks) - len(held)
    text = (
        f"tag '{search.tag or '?'}'{area}: {amount(len(held), 'block')}, "
        f"{sum(block.size for block in held):,} bytes"
    )
    if free:
        text += f", and {free:,} free ones"
    if search.interrupted_at is not None:
        text += f"; the search was stopped at {format_address(search.interrupted_at)}"
    return text + "."


def _page(page: PoolPage) -> str:
    region = f"{page.region}: " if page.region else ""
    marked = next((block for block in page.blocks if block.current), None)
    if marked is None:
        held = sum(block.state is BlockState.ALLOCATED for block in page.blocks)
        text = f"{region}{len(page.blocks):,} blocks, {held:,} of them allocated"
        return "; ".join([text, *page.messages]) + "."
    return f"{region}{_block(marked)}{_owner(page)}."


def _block(block: PoolBlock) -> str:
    return (
        f"{format_address(block.address)}, {block.size:,} bytes, {block.state.value}, "
        f"tag '{block.tag or '?'}'"
    )


def _owner(page: PoolPage) -> str:
    if page.pooltag is not None:
        binary = f", {page.pooltag.binary}" if page.pooltag.binary else ""
        return f" ({page.pooltag.description}{binary})"
    return f" ({page.owning_component})" if page.owning_component else ""


def _vm(usage: VmUsage) -> Iterable[str]:
    for value in usage.values:
        if not value.session and any(part in value.label.lower() for part in _ABOUT_POOL):
            yield f"{value.label}: {value.signed_kb:,} KB."
    for alert in usage.alerts:
        yield f"{alert.rstrip('.')}."


def _verifier(report: VerifierReport) -> Iterable[str]:
    for driver in report.drivers:
        yield _driver(driver)
        for (caller, tag), rows in _by_caller(driver.allocations):
            size = sum(row.length for row in rows)
            yield f"{caller} holds {amount(len(rows), 'block')} of tag '{tag}', {size:,} bytes."
    yield from (f"{message.rstrip('.')}." for message in report.messages)


def _driver(driver: VerifierDriver) -> str:
    name = driver.name or "a driver"
    if driver.current_allocations is None or driver.current_bytes is None:
        return f"{name}: {len(driver.allocations):,} blocks listed."
    (nonpaged, paged), (nonpaged_bytes, paged_bytes) = (
        driver.current_allocations,
        driver.current_bytes,
    )
    return (
        f"{name} has {nonpaged:,} nonpaged blocks, {nonpaged_bytes:,} bytes, and {paged:,} paged "
        f"ones, {paged_bytes:,} bytes."
    )


_Rows = List[VerifierAllocation]


def _by_caller(rows: Sequence[VerifierAllocation]) -> List[Tuple[Tuple[str, str], _Rows]]:
    """Blocks by who asked for them, most bytes first."""
    groups: Dict[Tuple[str, str], _Rows] = {}
    for row in rows:
        key = (row.symbol or format_address(row.caller), row.tag or "?")
        groups.setdefault(key, []).append(row)
    return sorted(groups.items(), key=lambda item: -sum(row.length for row in item[1]))


def _operations(search: VerifierSearch) -> str:
    allocs = sum(one.operation is PoolOperation.ALLOC for one in search.operations)
    frees = sum(one.operation is PoolOperation.FREE for one in search.operations)
    of = "" if search.address is None else f" of {format_address(search.address)}"
    unknown = len(search.operations) - allocs - frees
    rest = f", {unknown:,} of which the log does not tell" if unknown else ""
    return (
        f"{len(search.operations):,} shown{of}: {amount(allocs, 'allocation')}, "
        f"{amount(frees, 'free')}{rest}."
    )
