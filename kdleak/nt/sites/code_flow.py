"""Follows a tag from the instruction that loads it to the calls that are given it.

All paths from a starting point are walked through branches and jumps, with what each register
and stack slot holds; where paths meet, a place may hold what either left in it. So a use that is
reported exists on at least one path through the code, with no other write in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from kdleak.nt.sites.allocators import Routine
from kdleak.nt.sites.call_targets import Called, CallTargets
from kdleak.nt.sites.code_step import CodePointer, Effect, Flow, Place, State, Step, TagValue

_MAXIMUM_STEPS = 6000  # different instructions of one walk
_MAXIMUM_VISITS = 4  # of one instruction, with more known each time
_VISITS = 4  # of instructions that were decoded before, for the price of decoding one


class Decoder(Protocol):
    """What an architecture's decoder offers; see ``code_x86.X86Decoder``."""

    @property
    def volatile(self) -> tuple[str, ...]:
        """Registers that a call may change."""

    def decode(self, address: int) -> Step | None:
        """The instruction at an address."""

    def argument(self, routine: Routine, *, tail: bool) -> Place:
        """Where a routine finds its tag."""

    def arguments(self) -> tuple[tuple[int, Place], ...]:
        """The first arguments of any routine."""

    def pointer_register(self, step: Step, holds: Callable[[str], bool]) -> str:
        """The register with the routine that is called."""

    def call_pointer(self, step: Step) -> CodePointer | None:
        """The routine that a call through memory leads to."""


@dataclass(frozen=True)
class TagUse:
    """A call that is given the tag.

    Attributes:
        load: the instruction that loads the tag.
        call: the call, or the jump that stands for it.
        called: what is called.
        sure: the tag is the routine's tag argument; not: it is another argument, or what is
            called is known only by its looks.
    """

    load: int
    call: int
    called: Called
    sure: bool


class CodeWalk:
    """Walks the code of one image.

    Args:
        decoder: of the architecture.
        targets: what calls lead to.
        budget: instructions that may be decoded.

    Attributes:
        steps: every instruction reached so far, by address.
        uses: what was found.
        calls: address of every call (and jump that stands for one) of a routine that takes a tag.
        budget: instructions that may still be decoded.
    """

    def __init__(self, decoder: Decoder, targets: CallTargets, budget: int) -> None:
        self.steps: dict[int, Step] = {}
        self.uses: set[TagUse] = set()
        self.calls: dict[int, Called] = {}
        self.budget = budget
        self._visits = 0
        self._decoder = decoder
        self._targets = targets
        self._refine = getattr(decoder, "refine", None)

    def step(self, address: int) -> Step | None:
        """The instruction at an address, decoded once."""
        known = self.steps.get(address)
        if known is None and self.budget > 0:
            self.budget -= 1
            known = self._decoder.decode(address)
            if known is not None:
                self.steps[address] = known
        return known

    def walk(self, start: int) -> set[int]:
        """Walk all paths from an address, of which nothing is known there.

        Returns:
            The addresses of the instructions reached.
        """
        states: dict[int, State] = {start: State()}
        visits: dict[int, int] = {}
        queue = [start]
        while queue and self.budget > 0:
            address = queue.pop()
            if visits.get(address, 0) >= _MAXIMUM_VISITS or len(visits) >= _MAXIMUM_STEPS:
                continue
            step = self.step(address)
            if step is None:
                continue
            visits[address] = visits.get(address, 0) + 1
            self._visits += 1
            self.budget -= self._visits % _VISITS == 0
            state = states[address].copy()
            for following in self._follow(step, state):
                known = states.get(following)
                if known is None:
                    states[following] = state.copy()
                    queue.append(following)
                elif known.join(state):
                    queue.append(following)
        return set(visits)

    def _follow(self, step: Step, state: State) -> Iterable[int]:
        """Change the state by an instruction; the addresses where execution goes on."""
        after = step.address + step.size
        if step.flow is Flow.STOP:
            return ()
        if step.flow is Flow.BRANCH:
            return (after, step.target)
        if step.flow is Flow.CALL:
            self._call(step, state, tail=False)
            for register in self._decoder.volatile:
                state.values.pop(register, None)
            state.forget_stack()
            return (after,)
        if step.flow is Flow.JUMP:
            self._call(step, state, tail=True)
            onward = self._targets.direct(step.target) if step.target else None
            if not step.target or (onward is not None and onward.routine is not None):
                return ()
            return (step.target,)
        effects: tuple[Effect, ...] = step.effects
        if self._refine is not None:
            effects = self._refine(state, step)
        state.apply(effects)
        return (after,)

    # ---- calls ----

    def _call(self, step: Step, state: State, *, tail: bool) -> None:
        found = False
        for pointer in self._pointers(step, state, tail=tail):
            routine = pointer.called.routine
            if routine is None:
                continue
            self.calls[step.address] = pointer.called
            if not routine.argument:
                continue
            place = self._decoder.argument(routine, tail=tail)
            for value in state.at(place):
                if isinstance(value, TagValue):
                    found = True
                    self._add(value, step, pointer.called, sure=pointer.sure)
        if not found and not tail:
            self._by_its_looks(step, state)

    def _pointers(self, step: Step, state: State, *, tail: bool) -> list[CodePointer]:
        """What a call may lead to."""
        if step.target:
            called = self._targets.direct(step.target)
            if called is not None and called.routine is not None:
                return [CodePointer(called)]
            if tail:
                return []
        pointer = self._decoder.call_pointer(step)
        if pointer is not None:
            return [pointer]

        def holds(place: str) -> bool:
            return any(isinstance(value, CodePointer) for value in state.at(place))

        register = self._decoder.pointer_register(step, holds)
        if not register:
            return []
        return [value for value in state.at(register) if isinstance(value, CodePointer)]

    def _by_its_looks(self, step: Step, state: State) -> None:
        """The tag is some argument of a function that is called like an allocator."""
        tags = [
            value
            for _, place in self._decoder.arguments()
            for value in state.at(place)
            if isinstance(value, TagValue)
        ]
        if not tags or not step.target:
            return
        called = self._targets.named(step.target)
        if called is not None and called.like_allocator:
            for value in tags:
                self._add(value, step, called, sure=False)

    def _add(self, value: TagValue, step: Step, called: Called, *, sure: bool) -> None:
        self.uses.add(TagUse(value.address, step.address, called, sure))
