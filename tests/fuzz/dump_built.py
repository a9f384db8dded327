"""Dumps of machines that there are no samples of (32 bits, ARM64, old builds), built by hand.

What lies where in them is not walked: every word that is not zero is a place to damage.
"""

from __future__ import annotations

import struct
from pathlib import Path

from kdleak.engine.dump import open_dump_engine
from tests.dump_files.built_dump import add_debugger_data, add_module_list, write_built_dump
from tests.dump_files.built_kernel import VERSIONS, BuiltKernel
from tests.fuzz.dump_anatomy import Anatomy, Spot

MACHINES = ("xp-x86", "win7-x86", "win10-x86", "win10-x64", "win10-arm64", "win11-24h2-arm64")

_HEADER = {4: 0x1000, 8: 0x2000}
_MOST_WORDS = 20_000


def built_dump(name: str, folder: Path) -> Anatomy:
    """The dump of one machine, with a place for every word.

    Args:
        name: one of ``MACHINES``.
        folder: where to write it.
    """
    kernel = BuiltKernel(VERSIONS[name], processors=1 if name == "xp-x86" else 3)
    drivers = [("leaky.sys", kernel.base + 0x100_0000, 0x5000)]
    head = add_module_list(kernel, drivers)
    path = folder / f"{name}.dmp"
    data = add_debugger_data(kernel, head)
    write_built_dump(path, kernel, module_list=head, debugger_data=data)
    raw = path.read_bytes()
    width = 8 if raw[4:8] == b"DU64" else 4
    with open_dump_engine(path) as engine:
        found = Anatomy(path.name, raw, 1)
        found.truth = engine.pool_usage().rows
    form = "<Q" if width == 8 else "<I"
    words = [
        (at, struct.unpack_from(form, raw, at)[0])
        for at in range(_HEADER[width], len(raw) - width + 1, width)
        if any(raw[at : at + width])
    ]
    step = len(words) // _MOST_WORDS + 1
    found.spots["header"] = [Spot(at, width) for at in range(8, 0xA0, width)]
    found.spots["word"] = [Spot(at, width) for at, _ in words[::step]]
    low = 1 << (8 * width - 1)
    found.addresses["word"] = [value for _, value in words if value >= low][:_MOST_WORDS]
    return found
