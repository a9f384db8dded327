"""The recorded sessions of Microsoft's engine in samples/transcripts replay as hunts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdleak.engine.blocks import block_finder
from kdleak.engine.channels.replay import open_replay
from kdleak.engine.dbgeng import open_dbgeng
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.result import DisarmStatus, Judgement, StopReason
from kdleak.tags import PoolTag

FOLDER = Path(__file__).resolve().parents[3] / "samples" / "transcripts"
SITES = {
    "leakydrv!TrackRequest+0x1d",
    "leakydrv!BuildContext+0x4b",
    "leakydrv!CloneHeader+0x27",
}


@pytest.mark.parametrize("name", ["kd", "pykd"])
def test_replayed(name: str, tmp_path: Path) -> None:
    channel = open_replay(FOLDER / f"{name}-hunt.jsonl")
    with open_dbgeng(channel, clock=channel.clock) as engine:
        assert engine.name == f"dbgeng over {name} (replayed)"
        result = hunt(
            engine,
            HuntOptions(
                tag=PoolTag.parse("Leak"),
                max_hits=90,
                hits_per_second=None,
                max_stopped_share=None,
            ),
            journal=Journal(tmp_path),
            block_finder_factory=block_finder,
            clock=channel.clock,
            wall_clock=lambda: 0.0,
        )
    assert result.stop_reason is StopReason.HITS
    assert result.completeness.hits == 90
    assert result.completeness.broken_stacks == 0
    assert result.completeness.unaddressed <= 2
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert result.disarm.value == 0xFFFFFF0F
    first = result.sites[0]
    assert str(first.frame.symbol) == "leakydrv!TrackRequest+0x1d"
    assert first.judgement is Judgement.ACCUSED
    assert {str(site.frame.symbol) for site in result.sites if site.allocs} == SITES
    assert first.stack.frames[-1].symbol.module == "nt"


@pytest.mark.parametrize("name", ["kd", "pykd"])
def test_documented_commands_and_nothing_of_the_machine(name: str) -> None:
    lines = (FOLDER / f"{name}-hunt.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    commands = [event["command"] for event in events if event.get("op") == "execute"]
    for wanted in (".reload", "ed nt!PoolHitTag 0x6b61654c", "ed nt!PoolHitTag 0xffffff0f"):
        assert wanted in commands
    text = "\n".join(lines).lower()
    for secret in ("1.2.3.4", "z:\\\\", "/root", "/home"):
        assert secret not in text
