"""A hunt for https://www.speedscope.app, in its published file format.

Two profiles of type "sampled": the same stacks weighed by outstanding bytes and by blocks. A
sample is a list of indices into the shared frames, outermost first.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence

from kdleak import __version__
from kdleak.report.result_document import Node
from kdleak.report.sanitise import sanitise
from kdleak.report.stack_weights import WeighedStack, Weight, weighed_stacks

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(hunt: Node) -> str:
    """A hunt as a speedscope file: ASCII JSON, ends with a newline.

    Raises:
        UsageError: the document is damaged.
    """
    stacks = list(weighed_stacks(hunt))
    frames: Dict[str, int] = {}
    samples = [[frames.setdefault(name, len(frames)) for name in stack.frames] for stack in stacks]
    tag = hunt.find_node("tag")
    subject = f"tag '{tag.text('text')}'" if tag is not None else "no tag"
    document = {
        "$schema": SCHEMA,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": [
            _profile(stacks, samples, Weight.BYTES, "bytes"),
            _profile(stacks, samples, Weight.BLOCKS, "none"),
        ],
        "name": sanitise(f"{subject} in {hunt.text('where')}"),
        "activeProfileIndex": 0,
        "exporter": f"kdleak@{__version__}",
    }
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _profile(
    stacks: Sequence[WeighedStack], samples: Sequence[List[int]], weight: Weight, unit: str
) -> Dict[str, Any]:
    weighed = [(sample, stack.of(weight)) for stack, sample in zip(stacks, samples)]
    weighed = [(sample, value) for sample, value in weighed if value]
    return {
        "type": "sampled",
        "name": weight.words,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(value for _, value in weighed),
        "samples": [sample for sample, _ in weighed],
        "weights": [value for _, value in weighed],
    }
