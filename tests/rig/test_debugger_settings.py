"""The hunt whatever its user has set in the debugger before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kdleak.engine.blocks import block_finder
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.model import SymbolKind
from kdleak.result import DisarmStatus, StopReason
from kdleak.tags import PoolTag
from tests.rig.conftest import Practice
from tests.rig.engines import opened
from tests.rig.rig import MARK, Rig

SETTINGS = {
    "C++ evaluator": (".expr /s c++",),
    "decimal": ("n 10",),
    "noisy symbols": ("!sym noisy",),
    "source mode": (".lines -e", "l+*"),
    "short prompt": (".prompt_allow -reg -dis -ea -src -sym",),
    "aliases": ("as Leak nothing", "as nt!Pool nothing"),
}


SHOWN_IN_STACKS = ("C++ evaluator", "source mode")


@pytest.mark.parametrize(
    ("name", "use_kb"),
    [(name, False) for name in SETTINGS] + [(name, True) for name in SHOWN_IN_STACKS],
)
def test_hunt_with(
    name: str,
    use_kb: bool,
    rig: Rig,
    tmp_path: Path,
    practice_over_kdnet: Callable[..., Practice],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MARK, rig.session)
    monkeypatch.delenv("_NT_SYMBOL_PATH", raising=False)
    practice = practice_over_kdnet("--leak-permille", "900", late=True)
    with opened("kd", practice, rig, tmp_path, use_kb=use_kb) as engine:
        channel = engine.channel  # type: ignore[attr-defined]
        for command in SETTINGS[name]:
            channel.execute(command)
        result = hunt(
            engine,
            HuntOptions(
                tag=PoolTag.parse("Leak"), max_hits=12, max_seconds=60, hits_per_second=None
            ),
            journal=Journal(tmp_path / "journal"),
            block_finder_factory=block_finder,
        )
    assert result.stop_reason is StopReason.HITS
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert result.completeness.broken_stacks == 0
    top = result.sites[0].frame.symbol
    assert (top.module, top.kind) == ("leakydrv", SymbolKind.PDB)
    assert not [gap for gap in result.completeness.gaps if "symbol" in gap]
    assert practice.statistics["pool_hit_tag"] == 0xFFFFFF0F
