"""After a restart nothing goes to the new system that was meant for the old one."""

from __future__ import annotations

import pytest

from kdleak.errors import TargetRestarted
from kdleak.kd.host import KdHost
from kdleak.kd.packets import ExceptionRecord, Packet, PacketType, build_exception_change

STOP = Packet(
    PacketType.STATE_CHANGE64,
    build_exception_change(ExceptionRecord(0x80000003, address=0x1000), program_counter=0x1000),
)


class RestartingLink:
    """Stops at once, then tells of one restart, as the KDNET link does."""

    where = "net:port=50000"
    max_read = 0x400
    handshakes = True
    break_in_interval = 1.0
    generation = 0

    def __init__(self):
        self.inbox = [STOP]
        self.restarted = False
        self.sent = []

    def connect(self, timeout):
        self.restarted = False

    def send(self, packet_type, payload, timeout):
        self._tell()
        self.sent.append(packet_type)

    def receive(self, timeout):
        self._tell()
        return self.inbox.pop(0) if self.inbox else None

    def _tell(self):
        if self.restarted:
            self.restarted = False  # told once
            raise TargetRestarted("talking to the target", "it has started again", "attach anew")

    def break_in(self):
        self.sent.append("break-in")

    def reset(self):
        self.sent.append("reset")

    def close(self):
        pass


@pytest.fixture
def host():
    host = KdHost(RestartingLink(), clock=iter(range(1000)).__next__)
    host.attach(10)
    host.link.restarted = True
    with pytest.raises(TargetRestarted):
        host.write_virtual(0xFFFFF80181205020, b"Leak")
    return host


@pytest.mark.parametrize(
    "use",
    [
        lambda host: host.break_in(5),
        lambda host: host.wait(1),
    ],
    ids=["break_in", "wait"],
)
def test_said_again_until_attach(host, use):
    host.link.sent.clear()
    for _ in range(2):
        with pytest.raises(TargetRestarted, match="it has started again"):
            use(host)
    assert host.link.sent == []


def test_attach_ends_it(host):
    host.link.inbox.append(STOP)
    assert host.attach(10).program_counter == 0x1000
    host.link.inbox.append(STOP)
    host.stopped = False
    assert host.break_in(5).program_counter == 0x1000
