"""The practice target in its own process, over KDNET and over a byte stream."""

from __future__ import annotations

import struct
import time

import pytest

from kdleak.errors import TargetRestarted
from kdleak.kd.connection import open_host
from kdleak.kd.packets import (
    Api,
    Continue2,
    PacketType,
    build_manipulate,
    continue2_union,
    memory_union,
    parse_manipulate,
    parse_state_change,
    u32_union,
)
from kdleak.kd.structures import parse_version
from kdleak.practice.images import image_files, load_symbols

pytestmark = pytest.mark.e2e

SECONDS = 10.0


class Host:
    """Just enough of a debugger, written out by hand."""

    def __init__(self, link):
        self.link = link

    def wait(self, timeout=SECONDS):
        packet = self.link.receive(timeout)
        assert packet is not None, "the target did not stop"
        assert packet.type == PacketType.STATE_CHANGE64
        return parse_state_change(packet.payload)

    def ask(self, api, union=b"", data=b"", processor=0):
        self.link.send(
            PacketType.STATE_MANIPULATE, build_manipulate(api, processor, union, data), SECONDS
        )
        packet = self.link.receive(SECONDS)
        assert packet is not None, "the target did not answer"
        reply = parse_manipulate(packet.payload)
        assert reply.api == api
        return reply

    def go(self, change, delta=1):
        processor = change.processor
        record = bytearray(self.ask(Api.GET_CONTEXT, processor=processor).data)
        struct.pack_into("<Q", record, 0xF8, change.program_counter + delta)
        self.ask(Api.SET_CONTEXT, u32_union(0), bytes(record), processor)
        self.resume(processor)

    def resume(self, processor=0):
        payload = build_manipulate(Api.CONTINUE2, processor, continue2_union(Continue2()))
        self.link.send(PacketType.STATE_MANIPULATE, payload, SECONDS)


@pytest.fixture
def attach(connections, start_target):
    links = []

    def make(*options):
        host_side, target_side = connections
        if host_side.startswith("net"):
            links.append(open_host(host_side))
            running = start_target(target_side, *options)
        else:
            running = start_target(target_side, *options)
            links.append(open_host(host_side))
        links[0].connect(SECONDS)
        return Host(links[0]), running

    yield make
    for link in links:
        link.close()


def symbols(host):
    base = parse_version(host.ask(Api.GET_VERSION).union).kernel_base
    return {name: base + rva for name, rva in load_symbols(image_files()[0]).items()}


def test_break_in_hunt_and_go(attach):
    host, running = attach()
    began = time.monotonic()
    host.link.break_in()
    change = host.wait()
    assert time.monotonic() - began < 0.5
    names = symbols(host)
    assert change.program_counter == names["DbgBreakPointWithStatus"]
    assert host.ask(Api.READ_VIRTUAL, memory_union(names["PoolHitTag"], 4)).data == (
        b"\x0f\xff\xff\xff"
    )
    host.ask(Api.WRITE_VIRTUAL, memory_union(names["PoolHitTag"], 4), b"Leak")
    allocs = frees = 0
    for _ in range(40):
        host.go(change)
        change = host.wait()
        assert change.exception.code == 0x80000003
        inside = change.program_counter - names["ExAllocateHeapPool"]
        if 0 <= inside < names["ExFreeHeapPool"] - names["ExAllocateHeapPool"]:
            allocs += 1
        else:
            assert change.program_counter > names["ExFreeHeapPool"]
            frees += 1
    host.ask(Api.WRITE_VIRTUAL, memory_union(names["PoolHitTag"], 4), b"\x0f\xff\xff\xff")
    host.go(change)
    time.sleep(0.3)
    result = running.finish()
    statistics = result["statistics"]
    assert (statistics["hits_alloc"], statistics["hits_free"]) == (allocs, frees)
    assert statistics["pool_hit_tag"] == 0xFFFFFF0F
    assert statistics["seconds_stopped_in_hits"] / 40 < 0.1
    leak = {
        site["function"]: site
        for site in result["ground_truth"]
        if site["tag"] == "Leak" and site["allocs"]
    }
    assert leak["TrackRequest"]["outstanding"] > leak["CloneHeader"]["outstanding"] == 0


def test_turnaround_is_short(attach):
    host, _ = attach()
    host.link.break_in()
    host.wait()
    base = parse_version(host.ask(Api.GET_VERSION).union).kernel_base
    rounds = []
    for _ in range(100):
        began = time.perf_counter()
        host.ask(Api.READ_VIRTUAL, memory_union(base, 512))
        rounds.append(time.perf_counter() - began)
    # Both ends and the acknowledgements; the limit leaves room for a busy machine.
    assert sorted(rounds)[50] < 0.005


def test_break_nobody_asked_for_waits_for_a_debugger(attach):
    host, _ = attach("--break-at-tick", "5")
    change = host.wait()
    assert change.program_counter == symbols(host)["DbgBreakPoint"]
    host.go(change)
    host.link.break_in()
    assert host.wait().program_counter == symbols(host)["DbgBreakPointWithStatus"]


def test_second_debugger_takes_over(attach, connections):
    host, _ = attach()
    host.link.break_in()
    change = host.wait()
    host.go(change)
    host.link.close()
    again = open_host(connections[0])
    try:
        again.connect(SECONDS)
        other = Host(again)
        if connections[0].startswith("com"):
            again.reset()
        again.break_in()
        change = other.wait()
        assert change.program_counter == symbols(other)["DbgBreakPointWithStatus"]
    finally:
        again.close()


def test_reboot_comes_back_elsewhere(attach, connections):
    host, running = attach()
    host.link.break_in()
    host.wait()
    old = parse_version(host.ask(Api.GET_VERSION).union).kernel_base
    payload = build_manipulate(Api.REBOOT)
    host.link.send(PacketType.STATE_MANIPULATE, payload, SECONDS)
    if connections[0].startswith("net"):
        with pytest.raises(TargetRestarted):
            host.link.receive(SECONDS)
    host.link.break_in()
    host.wait()
    assert parse_version(host.ask(Api.GET_VERSION).union).kernel_base != old
    assert running.finish()["statistics"]["reboots"] == 1
