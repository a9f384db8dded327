"""Compressed PDBs of symbol stores: cabinets, by whatever tool the system has."""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib
from pathlib import Path

import pytest
from symbol_web_fakes import CONTENT, IDENTITY, PACKED, PLACE, symbol_server

from kdleak.nt.fetching import cabinet
from kdleak.nt.fetching.server import SymbolFetcher

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has a tool of its own")

KEPT = ("leakydrv.pdb", IDENTITY.key, "leakydrv.pdb")


def cabinet_of(name: str, content: bytes, *, compress: bool = True) -> bytes:
    """[MS-CAB]: one folder, one file, MSZIP or stored."""
    blocks = []
    for at in range(0, len(content), 0x8000):
        raw = content[at : at + 0x8000]
        packed = raw
        if compress:
            history = content[max(0, at - 0x8000) : at]
            packer = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=history)
            packed = b"CK" + packer.compress(raw) + packer.flush()
        blocks.append(struct.pack("<IHH", 0, len(packed), len(raw)) + packed)
    entry = struct.pack("<IIHHHH", len(content), 0, 0, 0x5A21, 0, 0x20) + name.encode() + b"\0"
    data_at = 36 + 8 + len(entry)
    folder = struct.pack("<IHH", data_at, len(blocks), int(compress))
    size = data_at + sum(map(len, blocks))
    header = struct.pack("<4sIIIIIBBHHHHH", b"MSCF", 0, size, 0, 44, 0, 3, 1, 1, 1, 0, 0, 0)
    return header + folder + entry + b"".join(blocks)


def fetcher_of(path, tmp_path):
    return SymbolFetcher(path, narrate=[].append, cache=tmp_path / "cache")


def commands(monkeypatch, *programs: str) -> None:
    """Let these Python programs be the tools there are; they get the cabinet's path."""
    monkeypatch.setattr(
        cabinet,
        "_commands",
        lambda path: [[sys.executable, "-c", program, str(path)] for program in programs],
    )


def expanded(tmp_path, limit=1000):
    stream = io.BytesIO()
    cabinet.expand(tmp_path / "x.pd_", tmp_path / "x.pdb", stream, limit)
    return stream.getvalue()


@pytest.mark.skipif(not cabinet._commands(Path()), reason="needs cabextract")
@pytest.mark.parametrize("compress", [True, False])
def test_a_compressed_pdb_of_a_server_and_of_a_share(tmp_path, compress):
    packed = cabinet_of("leakydrv.pdb", CONTENT, compress=compress)
    with symbol_server() as server:
        server.files[PACKED] = packed
        store = tmp_path / "store"
        path = fetcher_of(f"srv*{store}*{server.base}", tmp_path).pdb(IDENTITY)
        assert path == store.joinpath(*KEPT)
        assert path.read_bytes() == CONTENT
        assert server.paths == [PLACE, PACKED]
        assert list(path.parent.iterdir()) == [path]
    share = tmp_path / "share" / "leakydrv.pdb" / IDENTITY.key
    share.mkdir(parents=True)
    (share / "leakydrv.pd_").write_bytes(packed)
    near = fetcher_of(f"srv*{tmp_path / 'near'}*{tmp_path / 'share'}", tmp_path)
    assert near.pdb(IDENTITY) == (tmp_path / "near").joinpath(*KEPT)


@pytest.mark.parametrize("body", [b"MSCF" + bytes(100), b"<html>", b""])
def test_what_is_no_cabinet_leaves_nothing(tmp_path, body):
    with symbol_server() as server:
        server.files[PACKED] = body
        fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
        assert fetcher.pdb(IDENTITY) is None
    assert len(fetcher.remarks) == 1
    assert "leakydrv.pdb was not fetched" in fetcher.remarks[0]
    assert list(tmp_path.iterdir()) == []


def test_without_a_tool_the_remark_names_one(tmp_path, monkeypatch):
    commands(monkeypatch)
    with symbol_server() as server:
        server.files[PACKED] = cabinet_of("leakydrv.pdb", CONTENT)
        fetcher = fetcher_of(f"srv*{server.base}", tmp_path)
        assert fetcher.pdb(IDENTITY) is None
    assert "install cabextract" in fetcher.remarks[0]


def test_the_next_tool_is_tried_and_the_output_is_bounded(tmp_path, monkeypatch):
    broken = "import sys; print('half'); sys.exit(1)"
    commands(monkeypatch, broken, "print('whole', end='')")
    assert expanded(tmp_path) == b"whole"
    commands(monkeypatch, "while True: print('x' * 9999)")
    with pytest.raises(cabinet.CabinetError, match="larger than 1,000"):
        expanded(tmp_path)
    commands(monkeypatch, broken)
    with pytest.raises(cabinet.CabinetError, match="could not expand"):
        expanded(tmp_path)
    commands(monkeypatch, "")
    with pytest.raises(cabinet.CabinetError, match="could not expand"):
        expanded(tmp_path)
    monkeypatch.setattr(cabinet, "_commands", lambda _: [[str(tmp_path / "nothing")]])
    with pytest.raises(cabinet.CabinetError, match="could not be started"):
        expanded(tmp_path)
