"""Outputs of !poolfind, !pool, !vm and !verifier as JSON values."""

from __future__ import annotations

from typing import Optional

from kdleak.dialect.log import DebuggerLog
from kdleak.dialect.pool import Pool, PoolBlock, PoolPage
from kdleak.dialect.poolfind import FoundBlock, PoolFind, PoolSearch
from kdleak.dialect.verifier import Verifier, VerifierDriver, VerifierReport
from kdleak.dialect.verifier_log import VerifierLog, VerifierOperation, VerifierSearch
from kdleak.dialect.verifier_rows import VerifierAllocation
from kdleak.dialect.vm import VmUsage
from kdleak.report.json_values import (
    Absent,
    Document,
    hexadecimal,
    name_of,
    or_absent,
    with_absent,
)

_NOT_SHOWN = "this log does not show it"
_UNCERTAIN = "the four characters are not certain"


def outputs(log: DebuggerLog) -> Document:
    """Every such output of a log, by command."""
    return {
        "poolfind": [_search(one) for found in log.of(PoolFind) for one in found.searches],
        "pool": [_page(one) for found in log.of(Pool) for one in found.pages],
        "vm": [_vm(usage) for usage in log.of(VmUsage)],
        "verifier": [_report(one) for found in log.of(Verifier) for one in found.reports],
        "verifier_log": [_entries(one) for found in log.of(VerifierLog) for one in found.searches],
    }


def _address(value: Optional[int]) -> object:
    return Absent(_NOT_SHOWN) if value is None else hexadecimal(value)


def _search(search: PoolSearch) -> Document:
    return with_absent(
        command=or_absent(search.command, _NOT_SHOWN),
        tag=or_absent(search.tag, _NOT_SHOWN),
        area=or_absent(search.area_text or None, _NOT_SHOWN),
        interrupted_at=Absent("the search was not stopped")
        if search.interrupted_at is None
        else hexadecimal(search.interrupted_at),
        blocks=[_found(block) for block in search.blocks],
    )


def _found(block: FoundBlock) -> Document:
    return with_absent(
        address=hexadecimal(block.address),
        size=block.size,
        tag=or_absent(block.tag, _UNCERTAIN),
        state=name_of(block.state) if block.state else Absent(_NOT_SHOWN),
        pool=or_absent(block.pool, _NOT_SHOWN),
        line=block.line,
    )


def _page(page: PoolPage) -> Document:
    owner = page.owning_component
    if page.pooltag is not None:
        owner = ", ".join(filter(None, [page.pooltag.description, page.pooltag.binary]))
    return with_absent(
        command=or_absent(page.command, _NOT_SHOWN),
        address=_address(page.address),
        region=or_absent(page.region, _NOT_SHOWN),
        owner=or_absent(owner, _NOT_SHOWN),
        messages=list(page.messages),
        blocks=[_block(block) for block in page.blocks],
    )


def _block(block: PoolBlock) -> Document:
    return with_absent(
        address=hexadecimal(block.address),
        size=block.size,
        tag=or_absent(block.tag, _UNCERTAIN),
        state=name_of(block.state),
        current=block.current,
        line=block.line,
    )


def _vm(usage: VmUsage) -> Document:
    return with_absent(
        command=or_absent(usage.command, _NOT_SHOWN),
        line=usage.line,
        alerts=list(usage.alerts),
        values=[
            with_absent(
                label=value.label,
                kb=value.signed_kb,
                pages=or_absent(value.signed_pages, "only KB are printed"),
                session=or_absent(value.session or None, "of the whole system"),
                line=value.line,
            )
            for value in usage.values
        ],
    )


def _report(report: VerifierReport) -> Document:
    return with_absent(
        command=or_absent(report.command, _NOT_SHOWN),
        level=_address(report.level),
        messages=list(report.messages),
        drivers=[_driver(driver) for driver in report.drivers],
    )


def _driver(driver: VerifierDriver) -> Document:
    return with_absent(
        name=or_absent(driver.name, _NOT_SHOWN),
        current_allocations=_pair(driver.current_allocations),
        current_bytes=_pair(driver.current_bytes),
        cut=driver.cut,
        allocations=[_allocation(row) for row in driver.allocations],
    )


def _pair(pair: object) -> object:
    return list(pair) if isinstance(pair, tuple) else Absent(_NOT_SHOWN)


def _allocation(row: VerifierAllocation) -> Document:
    return with_absent(
        address=hexadecimal(row.address),
        size=row.length,
        tag=or_absent(row.tag, _UNCERTAIN),
        caller=hexadecimal(row.caller),
        symbol=or_absent(row.symbol, _NOT_SHOWN),
        line=row.line,
    )


def _entries(search: VerifierSearch) -> Document:
    return with_absent(
        command=or_absent(search.command, _NOT_SHOWN),
        address=_address(search.address),
        messages=list(search.messages),
        operations=[_operation(one) for one in search.operations],
    )


def _operation(one: VerifierOperation) -> Document:
    return with_absent(
        operation=name_of(one.operation) if one.operation else Absent(_NOT_SHOWN),
        block=hexadecimal(one.block),
        size=one.size,
        thread=hexadecimal(one.thread),
        frames=[
            {"return_address": hexadecimal(frame.return_address), "text": frame.text}
            for frame in one.frames
        ],
        line=one.line,
    )
