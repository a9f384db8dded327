"""WinDbg's connection strings."""

from __future__ import annotations

import pytest

from kdleak.errors import BadConnection, NoTarget, UnsupportedTarget
from kdleak.kd.connection import (
    DeviceConnection,
    NetConnection,
    PipeConnection,
    TcpConnection,
    open_host,
    parse_connection,
)
from kdleak.kd.kdnet_crypto import KdnetKey

KEY_TEXT = "2steg4fzbj2sz.23418vzkd4ko3.1g34ou07z4pev.1sp3yo9yz874p"
KEY = KdnetKey.parse(KEY_TEXT)


@pytest.mark.parametrize(
    ("text", "connection"),
    [
        (f"net:port=50000,key={KEY_TEXT}", NetConnection(50000, KEY)),
        (f"NET:Port=50010,Key={KEY_TEXT}", NetConnection(50010, KEY)),
        (f'"net:port=50000, key={KEY_TEXT}"', NetConnection(50000, KEY)),
        (f"net:key={KEY_TEXT}", NetConnection(50000, KEY)),
        (
            f"net:port=50000,key={KEY_TEXT},target=10.0.0.2",
            NetConnection(50000, KEY, target="10.0.0.2"),
        ),
        (
            f"net:host=127.0.0.1,port=50000,key={KEY_TEXT},source=50001",
            NetConnection(50000, KEY, host="127.0.0.1", source=50001),
        ),
        ("com:port=COM1,baud=9600", DeviceConnection("COM1", 9600)),
        ("com:port=/dev/ttyS0", DeviceConnection("/dev/ttyS0", 115200)),
        (r"com:pipe,port=\\.\pipe\com_1", PipeConnection(r"\\.\pipe\com_1")),
        (r"com:pipe,port=\\.\pipe\x,resets=0,reconnect", PipeConnection(r"\\.\pipe\x")),
        ("com:pipe,port=/run/vm.sock", PipeConnection("/run/vm.sock")),
        ("com:ipport=4445,port=vmhost", TcpConnection(4445, "vmhost")),
        ("com:ipport=4445", TcpConnection(4445, "127.0.0.1")),
        ("com:listen=4445", TcpConnection(4445)),
        ("com:listen=4445,host=0.0.0.0", TcpConnection(4445, bind="0.0.0.0")),
        ("tcp:4445", TcpConnection(4445)),
    ],
)
def test_understood(text: str, connection: object) -> None:
    assert parse_connection(text) == connection


@pytest.mark.parametrize(
    "text",
    [
        "",
        "net",
        "usb:targetname=x",
        "net:port=50000",
        f"net:port=0,key={KEY_TEXT}",
        f"net:port=65536,key={KEY_TEXT}",
        f"net:port=x,key={KEY_TEXT}",
        f"net:port=50000,key={KEY_TEXT},key={KEY_TEXT}",
        f"net:port=50000,kez={KEY_TEXT}",
        f"net:port=50000,{KEY_TEXT}",
        "net:port=50000,key=",
        f"net:port=50000,key={KEY_TEXT}.1",
        "com:",
        "com:baud=9600",
        "com:pipe",
        "com:port=COM1,baud=fast",
        "com:listen=",
        "tcp:",
        "tcp:99999",
    ],
)
def test_refused_without_quoting_a_key(text: str) -> None:
    with pytest.raises(BadConnection) as caught:
        parse_connection(text)
    message = f"{caught.value} {caught.value!r}"
    assert "steg4" not in message
    assert caught.value.next_step


def test_a_connection_does_not_show_its_key() -> None:
    connection = parse_connection(f"net:port=50000,key={KEY_TEXT},target=10.0.0.2")
    shown = f"{connection} {connection!r} {connection.where}"
    assert "steg4" not in shown
    assert connection.where == "net:port=50000,target=10.0.0.2"


@pytest.mark.parametrize(
    "text", ["com:port=/dev/x", "com:pipe,port=/x", "com:ipport=1,port=h", "com:listen=1"]
)
def test_where_is_the_string_itself(text: str) -> None:
    assert parse_connection(text).where == text


def test_what_cannot_be_opened() -> None:
    with pytest.raises(NoTarget):
        open_host("com:pipe,port=/no/such/socket")
    with pytest.raises(NoTarget):
        open_host("com:port=/no/such/device")
    with pytest.raises(UnsupportedTarget):
        open_host("com:port=/dev/null")
    with pytest.raises(UnsupportedTarget):
        open_host("com:port=/dev/null,baud=12345")
    with pytest.raises(NoTarget):
        open_host("com:ipport=1,port=127.0.0.1")
