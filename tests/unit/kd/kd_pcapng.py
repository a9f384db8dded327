"""Reads the UDP datagrams of a pcapng capture: just enough of the format for the KDNET capture."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Tuple

SECTION_HEADER = 0x0A0D0D0A
ENHANCED_PACKET = 6
ETHERNET_IPV4 = 0x0800
UDP = 17


@dataclass(frozen=True)
class CapturedDatagram:
    """One UDP datagram: (address, port) pairs and its payload."""

    source: Tuple[str, int]
    destination: Tuple[str, int]
    payload: bytes


def _frames(raw: bytes) -> Iterator[bytes]:
    offset = 0
    while offset + 12 <= len(raw):
        kind, length = struct.unpack_from("<II", raw, offset)
        if kind == ENHANCED_PACKET:
            (captured,) = struct.unpack_from("<I", raw, offset + 20)
            yield raw[offset + 28 : offset + 28 + captured]
        offset += length


def read_datagrams(path: Path) -> Iterator[CapturedDatagram]:
    """Every IPv4/UDP datagram of a little-endian Ethernet capture, in order."""
    raw = gzip.decompress(path.read_bytes())
    assert struct.unpack_from("<I", raw)[0] == SECTION_HEADER
    for frame in _frames(raw):
        if struct.unpack_from(">H", frame, 12)[0] != ETHERNET_IPV4:
            continue
        ip = frame[14:]
        if ip[9] != UDP:
            continue
        udp = ip[(ip[0] & 15) * 4 :]
        source_port, destination_port, length = struct.unpack_from(">HHH", udp)
        yield CapturedDatagram(
            (".".join(map(str, ip[12:16])), source_port),
            (".".join(map(str, ip[16:20])), destination_port),
            bytes(udp[8:length]),
        )
