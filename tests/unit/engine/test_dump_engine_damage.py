"""Damaged dumps: words instead of tracebacks, in bounded time."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import pytest

from kdleak.engine.dump import open_dump_engine
from kdleak.errors import KdleakError
from kdleak.tags import PoolTag
from tests.dump_files.built_dump import add_debugger_data, add_module_list, write_built_dump
from tests.dump_files.built_kernel import VERSIONS, BuiltKernel


@pytest.fixture(scope="module", params=["win7-x86", "win11-x64"])
def original(request, tmp_path_factory):
    kernel = BuiltKernel(VERSIONS[request.param], big_rows=0x200)
    head = add_module_list(kernel, [("leaky.sys", kernel.base + 0x100_0000, 0x5000)])
    block = add_debugger_data(kernel, head)
    path = tmp_path_factory.mktemp("dumps") / "whole.dmp"
    write_built_dump(path, kernel, module_list=head, debugger_data=block)
    return path.read_bytes()


def use(path):
    """Everything a command may ask of an engine; only errors in words may leave it."""
    try:
        engine = open_dump_engine(path)
    except KdleakError:
        return
    with engine:
        for attempt in (
            engine.pool_usage,
            lambda: engine.pool_usage(PoolTag.parse("Proc")),
            engine.stack,
            engine.registers,
            engine.reload,
            lambda: engine.symbol("nt!PoolBigPageTableSize"),
            lambda: engine.read(engine.target.kernel_base, 0x1000),
            lambda: [engine.nearest(module.base + 1) for module in engine.modules()],
        ):
            with suppress(KdleakError):
                attempt()


@pytest.mark.parametrize("seed", range(24))
def test_random_damage(original, tmp_path, seed):
    rng = random.Random(seed)
    raw = bytearray(original)
    header = 0x1000 if raw[4:8] == b"DUMP" else 0x2000
    for _ in range(rng.choice((1, 8, 200))):
        low, high = rng.choice(((8, 0x100), (header, len(raw)), (header, header + 0x3000)))
        at = rng.randrange(low, high - 8)
        value = rng.choice((rng.randbytes(8), b"\xff" * 8, bytes(8), raw[at + 8 : at + 16]))
        raw[at : at + len(value)] = value
    path = tmp_path / "damaged.dmp"
    path.write_bytes(raw)
    begun = time.perf_counter()
    use(path)
    assert time.perf_counter() - begun < 10  # well under a second on a quiet machine


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9, 0.999])
def test_cut_off(original, tmp_path, share):
    path = tmp_path / "cut.dmp"
    path.write_bytes(original[: int(len(original) * share)])
    use(path)
