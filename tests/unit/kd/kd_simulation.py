"""A bad network in simulated time, between two KD state machines. No threads, no sleeping."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

HOST = ("10.0.0.1", 50000)
TARGET = ("10.0.0.2", 50000)


@dataclass(frozen=True)
class Weather:
    """Probabilities per datagram (or per write), and delays in seconds."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    corruption: float = 0.0
    delay: float = 0.001
    late: float = 0.3


class Network:
    """Carries parcels between machines at addresses; ``run`` advances simulated time."""

    def __init__(self, seed: int, weather: Weather = Weather(), ordered: bool = False) -> None:
        self.now = 1000.0
        self.random = random.Random(seed)
        self.weather = weather
        self.machines = {}
        self.recorded: List[Tuple[bytes, tuple, tuple]] = []
        self._ordered = ordered
        self._queue: List[tuple] = []
        self._count = 0
        self._last_arrival = {}

    def attach(self, address: tuple, machine) -> None:
        self.machines[address] = machine
        machine.start(self.now)

    def detach(self, address: tuple) -> None:
        del self.machines[address]

    def inject(self, data: bytes, source: tuple, destination: tuple) -> None:
        """Deliver exactly these bytes."""
        self.machines[destination].receive(data, source, self.now)

    def _send(self, data: bytes, source: tuple, destination: tuple) -> None:
        self.recorded.append((data, source, destination))
        weather = self.weather
        copies = 1
        if self.random.random() < weather.loss:
            copies = 0
        elif self.random.random() < weather.duplication:
            copies = 2
        for _ in range(copies):
            body = data
            if self.random.random() < weather.corruption:
                body = self.damage(body)
            delay = weather.delay
            if self.random.random() < weather.reordering:
                delay += self.random.random() * weather.late
            arrival = self.now + delay
            if self._ordered:
                arrival = max(arrival, self._last_arrival.get(destination, 0.0))
                self._last_arrival[destination] = arrival
            self._count += 1
            heapq.heappush(self._queue, (arrival, self._count, body, source, destination))

    def damage(self, data: bytes) -> bytes:
        """Change, lose or insert one byte."""
        body = bytearray(data)
        place = self.random.randrange(len(body))
        kind = self.random.randrange(3)
        if kind == 0:
            body[place] ^= self.random.randrange(1, 256)
        elif kind == 1:
            del body[place]
        else:
            body.insert(place, self.random.randrange(256))
        return bytes(body)

    def _flush(self) -> None:
        for address, machine in list(self.machines.items()):
            other_end = TARGET if address == HOST else HOST
            for data, destination in machine.take_output():
                self._send(data, address, destination or other_end)

    def run(
        self,
        until: Callable[[], bool],
        seconds: float = 3600.0,
        each: Optional[Callable[[], None]] = None,
    ) -> bool:
        """Run until the condition holds; False when simulated time runs out first."""
        end = self.now + seconds
        while True:
            for machine in list(self.machines.values()):
                machine.tick(self.now)
            if each is not None:
                each()
            self._flush()
            if until():
                return True
            due = [m.next_deadline() for m in self.machines.values()]
            times = [t for t in due if t is not None]
            if self._queue:
                times.append(self._queue[0][0])
            if not times:
                self.now = end
                return False
            following = max(self.now, min(times))
            if following > end:
                self.now = end
                return until()
            self.now = following
            while self._queue and self._queue[0][0] <= self.now:
                _, _, data, source, destination = heapq.heappop(self._queue)
                machine = self.machines.get(destination)
                if machine is not None:
                    machine.receive(data, source, self.now)
                    if each is not None:
                        each()
                    self._flush()


class Mailbox:
    """The host's place in the network when a blocking link drives its own machine."""

    def __init__(self) -> None:
        self.arrived: List[tuple] = []
        self.outgoing: List[tuple] = []

    def start(self, now: float) -> None:
        pass

    def tick(self, now: float) -> None:
        pass

    def next_deadline(self) -> None:
        return None

    def receive(self, data: bytes, source: tuple, now: float) -> None:
        self.arrived.append((data, source))

    def take_output(self) -> List[tuple]:
        out, self.outgoing = self.outgoing, []
        return out


class SimulatedMedium:
    """A medium whose waiting advances the simulated network."""

    where = "simulated"

    def __init__(self, network: Network, each: Callable[[], None], stream: bool) -> None:
        self.mailbox = Mailbox()
        self.closed = False
        self._network = network
        self._each = each
        self._stream = stream
        network.attach(HOST, self.mailbox)

    def clock(self) -> float:
        return self._network.now

    def read(self, timeout: Optional[float]) -> List[tuple]:
        # No test waits for ever: an hour of silence means that the test has failed.
        seconds = 3600.0 if timeout is None else timeout
        arrived = self._network.run(
            lambda: bool(self.mailbox.arrived), seconds=seconds, each=self._each
        )
        assert arrived or timeout is not None
        parcels, self.mailbox.arrived = self.mailbox.arrived, []
        return [(data, None if self._stream else source) for data, source in parcels]

    def write(self, data: bytes, destination: Optional[tuple]) -> None:
        self.mailbox.outgoing.append((data, destination))

    def wake(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
