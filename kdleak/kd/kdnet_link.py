"""Blocking KD links over KDNET, both roles."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from collections.abc import Callable

from kdleak.errors import NoTarget
from kdleak.kd.blocking import BlockingHost, BlockingTarget
from kdleak.kd.kdnet_crypto import KdnetKey
from kdleak.kd.kdnet_machine import KdnetHostMachine, KdnetTargetMachine
from kdleak.kd.media import UdpMedium

MAX_READ = 0x440
"""Bytes per read request; the limit of the wire is 1096."""

BREAK_IN_SECONDS = 1.0

TARGET_VERSION = 4
"""What our target speaks: debuggers answer older versions than their own but not newer ones
(DbgEng of Windows 10 1703 refuses 5), and nothing in the layout differs."""


class KdnetHost(BlockingHost):
    """The debugger's end of a KDNET link, listening on a UDP port.

    Args:
        port: UDP port to listen on, 0 for any (tests).
        key: control key of the target.
        target: address of the target when it has to be called first, "" otherwise.
        clock: seconds, monotonic.
        random_bytes: source of nonces.
        bind: local address, "" for all.

    Raises:
        PortInUse: another program has the port.
        NoTarget: ``target`` is no address and no known name.
    """

    medium: UdpMedium

    def __init__(
        self,
        port: int,
        key: KdnetKey,
        *,
        target: str = "",
        clock: Callable[[], float] = time.perf_counter,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        bind: str = "",
    ) -> None:
        where = f"net:port={port}" + (f",target={target}" if target else "")
        address = resolve(target) if target else ""
        medium = UdpMedium(where, port, ipv6=_is_ipv6(address or bind), bind=bind)
        machine = KdnetHostMachine(
            key, random_bytes=random_bytes, call=(address, medium.port) if address else None
        )
        super().__init__(
            machine,
            medium,
            where=where,
            max_read=MAX_READ,
            clock=clock,
            handshakes=True,
            break_in_interval=BREAK_IN_SECONDS,
        )

    @property
    def port(self) -> int:
        """The UDP port we listen on."""
        return self.medium.port


class KdnetTarget(BlockingTarget):
    """The debuggee's end of a KDNET link; it pokes the host from the moment it exists.

    Args:
        host: address or name of the host.
        port: UDP port of the host.
        key: control key.
        source_port: own UDP port, 0 for any; a real target uses ``port`` here too, which
            cannot work on the host's own machine.
        version: protocol version byte.
        clock: seconds, monotonic.
        random_bytes: source of the first nonce.

    Raises:
        PortInUse: another program has ``source_port``.
        NoTarget: ``host`` is no address and no known name.
    """

    medium: UdpMedium

    def __init__(
        self,
        host: str,
        port: int,
        key: KdnetKey,
        *,
        source_port: int = 0,
        version: int = TARGET_VERSION,
        clock: Callable[[], float] = time.perf_counter,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        where = f"net:host={host},port={port}"
        address = resolve(host)
        ipv6 = _is_ipv6(address)
        medium = UdpMedium(where, source_port, ipv6=ipv6)
        machine = KdnetTargetMachine(
            key,
            host=(address, port),
            own=(_own_address(address, port, ipv6=ipv6), medium.port),
            version=version,
            random_bytes=random_bytes,
        )
        super().__init__(machine, medium, where=where, max_read=MAX_READ, clock=clock)


def resolve(name: str) -> str:
    """The numeric address of a name.

    Raises:
        NoTarget: no such name.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise NoTarget(
            f"looking up the address of {name}", str(error), "give a numeric IP address"
        ) from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def _is_ipv6(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).version == 6


def _own_address(host: str, port: int, *, ipv6: bool) -> str:
    """The address this machine would use towards the host; nothing is sent."""
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
        except OSError:
            # Without a route the poke says 0.0.0.0; the host goes by the source of the datagram.
            return "::" if ipv6 else "0.0.0.0"  # noqa: S104
