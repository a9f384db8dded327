"""One decoded instruction as far as the search for tags needs it, and the state of a path.

A *place* is a register (64-bit name, or ``x0`` ... on ARM64) or ``(offset,)``, a stack slot by its
distance from the stack pointer at the start of the path. What is in a place is a set of values:
on different paths to an instruction it may hold different ones.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Optional, Tuple, Union

from kdleak.nt.sites.call_targets import Called

Place = Union[str, Tuple[int]]
"""A register, or a slot relative to the stack pointer *now* (in effects) or at the start."""


@dataclass(frozen=True)
class TagValue:
    """The tag, and the instruction that put it there."""

    address: int


@dataclass(frozen=True)
class Constant:
    """A number under construction (ARM64: the halves of an immediate, the page of a variable)."""

    number: int


@dataclass(frozen=True)
class CodePointer:
    """The address of a routine.

    Attributes:
        called: the routine.
        sure: it is; not: it is what usually stands in that place of a function table.
    """

    called: Called
    sure: bool = True


Value = Union[TagValue, Constant, CodePointer]


class Op(enum.Enum):
    """What an effect does."""

    SET = "set"
    COPY = "copy"
    MERGE = "merge"
    """Conditional copy: the place may keep what it has."""
    KILL = "kill"
    MOVE_STACK = "move the stack pointer"
    FORGET_STACK = "forget the stack"


@dataclass(frozen=True)
class Effect:
    """One change of state. Sources are read before any place of the instruction changes."""

    op: Op
    place: Place = ""
    source: Place = ""
    value: Optional[Value] = None
    amount: int = 0


class Flow(enum.Enum):
    """Where execution goes on."""

    NEXT = "next"
    CALL = "call"
    JUMP = "jump"
    BRANCH = "branch"
    STOP = "stop"


@dataclass(frozen=True)
class Step:
    """An instruction.

    Attributes:
        address: of its first byte.
        size: bytes.
        text: disassembled.
        flow: where execution goes on.
        target: of a direct call, jump or branch.
        slot: address of the pointer that is called or jumped through.
        register: register that is called or jumped through.
        effects: what it changes.
        loads: addresses of immediates are not kept: whether it has the tag as an immediate.
        compares: it only looks at its operands.
    """

    address: int
    size: int
    text: str
    flow: Flow = Flow.NEXT
    target: int = 0
    slot: int = 0
    register: str = ""
    effects: Tuple[Effect, ...] = ()
    loads: bool = False
    compares: bool = False


@dataclass
class State:
    """What is known at one instruction.

    Attributes:
        stack: of the stack pointer, bytes from where it was at the start of the path.
        values: what the places hold; slots by their distance from the start.
    """

    stack: int = 0
    values: dict[Place, frozenset[Value]] = field(default_factory=dict)

    def copy(self) -> State:
        """A state that can be changed on its own."""
        return State(self.stack, dict(self.values))

    def at(self, place: Place) -> frozenset[Value]:
        """What a place of an effect holds."""
        return self.values.get(self._absolute(place), frozenset())

    def _absolute(self, place: Place) -> Place:
        return place if isinstance(place, str) else (place[0] + self.stack,)

    def _put(self, place: Place, values: frozenset[Value]) -> None:
        if values:
            self.values[self._absolute(place)] = values
        else:
            self.values.pop(self._absolute(place), None)

    def apply(self, effects: Tuple[Effect, ...]) -> None:
        """Change the state as an instruction does."""
        sources = [self.at(effect.source) if effect.source else frozenset() for effect in effects]
        for effect, source in zip(effects, sources):
            if effect.op is Op.SET and effect.value is not None:
                self._put(effect.place, frozenset({effect.value}))
            elif effect.op is Op.COPY:
                self._put(effect.place, source)
            elif effect.op is Op.MERGE:
                self._put(effect.place, self.at(effect.place) | source)
            elif effect.op is Op.KILL:
                self._put(effect.place, frozenset())
            elif effect.op is Op.MOVE_STACK:
                self.stack += effect.amount
            elif effect.op is Op.FORGET_STACK:
                self.forget_stack()

    def forget_stack(self) -> None:
        """Nothing is known of the stack any more."""
        for place in [place for place in self.values if not isinstance(place, str)]:
            del self.values[place]

    def join(self, other: State) -> bool:
        """Add what holds on another path to the same instruction; whether that was news."""
        news = False
        same_stack = self.stack == other.stack
        for place, values in other.values.items():
            if not isinstance(place, str) and not same_stack:
                continue
            known = self.values.get(place, frozenset())
            if not values <= known:
                self.values[place] = known | values
                news = True
        return news
