"""Documents for the tests of what is made from results: samples, and such that mean harm."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from kdleak.report.result_document import Node

SAMPLES = Path(__file__).parents[3] / "samples" / "hunts"

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "<!--<script>",
    "]]><svg onload=alert(3)>",
    '"onmouseover="alert(4)',
    "'; alert(5); '",
    "evil\u202egpj.sys",
    "a\x00b\x1b[31mred\r\n\u2028c",
    "semi;colon",
    "${alert(6)} $data {{7*7}}",
    "N" * 10240,
    "\ud800lone",
    "https://example.com/x.js",
)


def sample(name: str = "practice-leak") -> dict[str, Any]:
    """A sample result as JSON values."""
    return json.loads((SAMPLES / f"{name}.json").read_text(encoding="utf-8"))


def node(document: dict[str, Any]) -> Node:
    return Node(document, "", "test.json")


def hostile() -> dict[str, Any]:
    """A hunt in which every text of the target means harm."""
    document = sample()
    names = iter(range(10**6))

    def spoil(frame: dict[str, Any]) -> None:
        name = HOSTILE[next(names) % len(HOSTILE)]
        frame.update(module=name, symbol=name, text=f"{name}!{name}+0x1d")

    for site in document["call_sites"]:
        for frame in (site["frame"], site["blame"], *site["stack"]["frames"]):
            spoil(frame)
        site["sentence"] = " ".join(HOSTILE)
    for stack in document["stacks"]:
        for frame in stack["frames"]:
            spoil(frame)
    for key in ("description", "architecture"):
        document["target"][key] = HOSTILE[1] + HOSTILE[4]
    document["verdict"] = [*HOSTILE]
    document["remarks"] = [*HOSTILE]
    document["completeness"]["gaps"] = [*HOSTILE]
    document["where"] = HOSTILE[0]
    document["engine"] = HOSTILE[1]
    document["started_at"] = HOSTILE[4]
    document["tag"]["text"] = "</s>"
    document["tag_reason"] = HOSTILE[2]
    document["generator"] = {"name": HOSTILE[1], "version": HOSTILE[0]}
    document["change"]["address"] = HOSTILE[1]
    document["rank"]["rows"][0]["tag"]["text"] = "<b>"
    document["rank"]["rows"][0]["trend"] = HOSTILE[1]
    document["rank"]["rows"][1]["pool"] = HOSTILE[4]
    disarm = document["disarm"]
    disarm.update(
        safe=False, status="not_confirmed", sentence=f"DISARM NOT CONFIRMED: {HOSTILE[0]}"
    )
    disarm["repair"] = [*HOSTILE]
    return document


def many_stacks(stacks: int, hits: int, *, name_length: int = 12) -> dict[str, Any]:
    """A hunt with so many different stacks, frames and hits."""
    document = sample()
    pattern = document["stacks"][0]
    document["stacks"], document["call_sites"] = [], []
    site = sample()["call_sites"][0]
    for index in range(stacks):
        frames = deepcopy(pattern["frames"])
        for depth in range(16):
            name = f"F{(index * 7 + depth * 13) % 4099}_{'x' * name_length}"
            frames.insert(
                4,
                {
                    **frames[3],
                    "symbol": name,
                    "module": f"drv{depth}",
                    "text": f"drv{depth}!{name}+0x{index % 64:x}",
                    "address": f"0x{0xFFFFF80000000000 + index * 64 + depth:x}",
                },
            )
        address = frames[3]["address"] = f"0x{0xFFFFF80100000000 + index:x}"
        frames[3]["text"] = f"leakydrv!Site{index}+0x1d"
        document["stacks"].append(
            {**pattern, "call_site": address, "frames": frames, "outstanding_bytes": index + 1}
        )
        document["call_sites"].append(
            {
                **site,
                "frame": frames[3],
                "blame": frames[3],
                "outstanding_bytes": index + 1,
                "stack": {"frames": frames, "end": "complete"},
            }
        )
    hit = sample()["hits"][0]
    document["hits"] = [
        {
            **hit,
            "number": index + 1,
            "at": index / 1000,
            "stack": index % stacks,
            "block": {**hit["block"], "address": f"0x{0xFFFF900000000000 + index * 16:x}"},
        }
        for index in range(hits)
    ]
    return document
