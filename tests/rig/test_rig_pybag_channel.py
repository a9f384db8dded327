"""The channel over the real pybag and Microsoft's engine, against a practice target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kdleak.errors import LinkLost
from tests.rig.channel_session import HITS, hunt_by_hand, opened, runs_on
from tests.rig.conftest import KEY, Practice
from tests.rig.rig import Rig

BINDING = "pybag"
Start = Callable[..., Practice]


def test_hunt_by_hand(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    practice = practice_over_kdnet()
    with opened(BINDING, rig, practice, tmp_path) as channel:
        assert channel.session == "live kernel"
        assert KEY not in channel.where
        hunt_by_hand(channel)
    statistics = runs_on(practice)
    assert statistics["hits_alloc"] + statistics["hits_free"] == HITS
    assert statistics["pool_hit_tag"] != int.from_bytes(b"Leak", "little")
    assert statistics["requests"]["CONTINUE2"] == statistics["stops"], "left stopped"


def test_left_stopped_on_request(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    practice = practice_over_kdnet()
    with opened(BINDING, rig, practice, tmp_path) as channel:
        channel.close(leave_stopped=True)
    statistics = runs_on(practice)
    assert statistics["requests"].get("CONTINUE2", 0) == statistics["stops"] - 1


def test_dead_target(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    practice = practice_over_kdnet()
    with opened(BINDING, rig, practice, tmp_path) as channel:
        assert channel.resume(0.2).running
        practice.kill()
        with pytest.raises(LinkLost):
            channel.interrupt(2.0)
    assert rig.processes() == []
