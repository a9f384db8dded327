"""``--symbols``: fetching PDBs for our own engines, and never while a machine stands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable

from kdleak.model import StopKind

if TYPE_CHECKING:
    from kdleak.engine.native import NativeEngine
    from kdleak.nt.fetching.server import SymbolFetcher


def with_stores(symbol_path: str, *, fetch: bool) -> str:
    """A symbol path for our own engines.

    What was fetched before is found again, whatever the path; ``--symbols`` without a path means
    Microsoft's server.

    Args:
        symbol_path: what the user gave, "" for nothing.
        fetch: whether ``--symbols`` was given.
    """
    from kdleak.nt.symbol_path import (  # noqa: PLC0415 - only with a target
        MICROSOFT_SERVER,
        default_cache,
    )

    store = default_cache()
    if not symbol_path and fetch:
        return "*".join(filter(None, ["srv", str(store or ""), MICROSOFT_SERVER]))
    # os.path: a home that this user may not look into is no error, as Path.is_dir makes it.
    if store is None or not (fetch or os.path.isdir(store)):  # noqa: PTH112
        return symbol_path  # a place that is not there would only look odd in messages
    return ";".join(filter(None, [symbol_path, f"cache*{store}"]))


def open_fetcher(symbol_path: str, narrate: Callable[[str], None]) -> SymbolFetcher:
    """What fetches PDBs along a symbol path.

    Raises:
        MissingDependency: requests or purepdb is not installed.
    """
    from kdleak.nt.fetching.server import SymbolFetcher  # noqa: PLC0415 - heavy, needs extras

    return SymbolFetcher(symbol_path, narrate=narrate)


def attach_with_symbols(
    attach: Callable[[], NativeEngine],
    fetcher: SymbolFetcher,
    narrate: Callable[[str], None],
) -> NativeEngine:
    """Attach to a live target with nt's symbols there.

    The machine stands while a debugger is attached and waiting, so nothing is fetched then: the
    target is left running, and attached to anew when the download is over. Of other images only
    what is on this machine is used.

    Args:
        attach: attaches; called once more after a download.
        fetcher: fetches.
        narrate: takes sentences for the user.
    """
    engine = attach()
    try:
        identity = engine.missing_kernel_pdb()
        if identity is None:
            return engine
        if engine.stop.kind is not StopKind.BREAK_IN:
            narrate(
                "nt's symbols are not fetched: the target stopped by itself, and would have to "
                "run meanwhile"
            )
            return engine
    except BaseException:
        engine.close()
        raise
    narrate("the target is let run while nt's symbols are fetched")
    said = len(engine.remarks)
    engine.close()
    for remark in engine.remarks[said:]:
        narrate(remark)
    fetcher.pdb(identity)
    for remark in fetcher.remarks:
        narrate(remark)
    return attach()
