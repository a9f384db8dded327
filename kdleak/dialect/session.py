"""The hunt in a log: which tag was armed, and which stops were hits of it.

A hit is a break instruction of the target's own code with the pool allocator of nt on top of the
stack. Without a stack, the label of the stop or the code at its return address must say so; a
stop in ``nt!DbgBreakPoint`` while a tag is armed counts as a hit of unknown kind. Ordinary
breakpoints, module loads, bug checks and break-ins are none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, List, Optional, Sequence, Tuple

from kdleak.dialect.addresses import NamedPlace, parse_place
from kdleak.dialect.breaks import Break, BreakReason
from kdleak.dialect.engine_errors import EngineFailure, FailureKind
from kdleak.dialect.hit_kind import FrameMeaning, is_driver, meaning_of, meaning_of_stack
from kdleak.dialect.log_event import Disassembly, Event
from kdleak.dialect.memory_dump import MemoryDump
from kdleak.dialect.prompt import Prompt
from kdleak.dialect.registers import RegisterBlock
from kdleak.dialect.stack import StackText
from kdleak.dialect.symbol_lines import SymbolLines
from kdleak.dialect.tag_commands import (
    TagBreakpoint,
    TagWrite,
    reads_tag,
    split_commands,
    tag_breakpoint,
    written_value,
)
from kdleak.model import HitKind
from kdleak.tags import PoolTag

_AT_CALLER = re.compile(
    r"[ \t]*(?:u|ub|ln)[ \t]+(?:@?\$ra\b|(?:poi|dwo|qwo)\(@?[er]sp\))", re.IGNORECASE
)


_NOTHING_DONE = frozenset(
    {
        FailureKind.LOCAL_KERNEL,
        FailureKind.NOT_SUPPORTED,
        FailureKind.NOT_CONNECTED,
        FailureKind.RUNNING,
        FailureKind.ACCESS_DENIED,
        FailureKind.UNKNOWN_SYMBOL,
        FailureKind.MEMORY,
        FailureKind.SYNTAX,
    }
)
"""A write that is answered so has changed nothing: one that succeeds prints nothing."""


@dataclass(frozen=True)
class PoolHitTagUse:
    """What the log says about the contents of PoolHitTag.

    Attributes:
        before: value shown before the first tag was armed; None if it was not shown.
        set: the first tag armed, four characters in memory order (dots for bytes that do not
            print); None if the log only reads.
        set_value: the same as a number.
        after: value shown after that and before the next write; None if it was not shown.
        writes: every write in order; the last one tells whether a tag was left behind.
        reads: every value shown, with the number of its line.
    """

    before: Optional[int]
    set: Optional[str]
    set_value: Optional[int]
    after: Optional[int]
    writes: Tuple[TagWrite, ...] = ()
    reads: Tuple[Tuple[int, int], ...] = ()

    @property
    def tag(self) -> Optional[PoolTag]:
        """The first tag armed."""
        return PoolTag.from_bytes(self.set_value.to_bytes(4, "little")) if self.set_value else None

    @property
    def left_armed(self) -> bool:
        """Whether the last write in the log arms a tag."""
        return bool(self.writes) and self.writes[-1].tag is not None


@dataclass(frozen=True)
class LogHit:
    """One hit, with all that was printed before the target was resumed.

    Attributes:
        number: 1 for the first.
        kind: allocation or free; None where nothing in the log tells.
        evidence: what the kind rests on: "stack", "label", "return address", "" for nothing.
        stop: the break itself.
        stacks: every stack printed at it.
        registers: every register block printed at it.
        memory: every dump printed at it.
        caller: code at the return address, where it was disassembled.
        cpu: number of the processor at the prompt below; None where not shown.
        commands: typed at this stop.
        tag: armed at that time; None where the log does not say.
    """

    number: int
    kind: Optional[HitKind]
    evidence: str
    stop: Break
    stacks: Tuple[StackText, ...] = ()
    registers: Tuple[RegisterBlock, ...] = ()
    memory: Tuple[MemoryDump, ...] = ()
    caller: Optional[NamedPlace] = None
    cpu: Optional[int] = None
    commands: Tuple[str, ...] = ()
    tag: Optional[PoolTag] = None

    @property
    def symbol(self) -> Optional[str]:
        """Label of the stop."""
        return self.stop.symbol

    @property
    def address(self) -> Optional[int]:
        """Address of the stop."""
        return self.stop.address

    @property
    def line(self) -> int:
        """Number of its first line."""
        return self.stop.line

    @property
    def stack(self) -> Optional[StackText]:
        """The stack with the most rows; None if none was printed."""
        return max(self.stacks, key=lambda stack: len(stack.frames), default=None)

    @property
    def driver_frame(self) -> Optional[int]:
        """Index of the first frame outside nt, Driver Verifier and KMDF; None if none is."""
        frames = self.stack.frames if self.stack else ()
        return next((index for index, row in enumerate(frames) if is_driver(row.module)), None)


@dataclass(frozen=True)
class Session:
    """The hunt that a log shows.

    Attributes:
        pool_hit_tag: None if no command touches it.
        breakpoints: breakpoints that stop for one tag only.
        hits: in their order.
    """

    pool_hit_tag: Optional[PoolHitTagUse]
    breakpoints: Tuple[TagBreakpoint, ...]
    hits: Tuple[LogHit, ...]


def assemble(events: Sequence[Event]) -> Session:
    """Find the hunt in the events of a log."""
    watch = _TagWatch()
    hits: List[LogHit] = []
    stop: Optional[_Stop] = None
    above: Optional[Event] = None
    for event in events:
        value = event.value
        if isinstance(value, Break):
            _close(stop, hits)
            stop = _Stop(value, watch)
            if above is not None and _printed_at(above, value):
                stop.see(above)
            above = None
            continue
        above = event if isinstance(value, StackText) and event.command is None else None
        watch.see(event)
        if stop is not None and not stop.see(event):
            _close(stop, hits)
            stop = None
    _close(stop, hits)
    return Session(watch.use(), tuple(watch.breakpoints), tuple(hits))


def _printed_at(above: Event, stop: Break) -> bool:
    """Whether the command of a breakpoint printed a stack before the stop was shown."""
    stack = above.value
    if stop.reason is not BreakReason.UNSAID or not isinstance(stack, StackText):
        return False
    top = stack.frames[0] if stack.frames else None
    label = stop.label
    return (
        top is not None
        and label is not None
        and (top.module, top.symbol, top.offset or 0)
        == (label.module, label.name, label.offset or 0)
    )


def _close(stop: Optional[_Stop], hits: List[LogHit]) -> None:
    hit = stop.hit(len(hits) + 1) if stop else None
    if hit:
        hits.append(hit)


class _TagWatch:
    """Follows the contents of PoolHitTag through a log."""

    def __init__(self) -> None:
        self.breakpoints: List[TagBreakpoint] = []
        self.armed: Optional[int] = None
        self._address: Optional[int] = None
        self._writes: List[TagWrite] = []
        self._reads: List[Tuple[int, int]] = []
        self._asked: Optional[Prompt] = None
        self._before: Optional[int] = None
        self._after: Optional[int] = None
        self._first: Optional[TagWrite] = None

    @property
    def tag(self) -> Optional[PoolTag]:
        """The tag armed at this point of the log; None where it does not say."""
        value = self.armed or 0
        if value and _printable(value):
            return PoolTag.from_bytes(value.to_bytes(4, "little"))
        return self.breakpoints[-1].tag if self.breakpoints else None

    def see(self, event: Event) -> None:
        """Take an event in."""
        value = event.value
        if isinstance(value, Prompt):
            for command in split_commands(value.command):
                self._command(command, value)
        elif isinstance(value, MemoryDump):
            if value.rows and event.command is not None and event.command is self._asked:
                self._asked = None
                self._address = value.rows[0].address
                self._read(value)
            elif self._address is not None and value.number_at(self._address, 4) is not None:
                self._read(value)
        elif isinstance(value, EngineFailure):
            if value.kind in _NOTHING_DONE and event.command is not None:
                self._take_back(event.command.line)
        elif isinstance(value, SymbolLines):
            self._address = value.address_of("nt!PoolHitTag") or self._address

    def _command(self, command: str, prompt: Prompt) -> None:
        written = written_value(command, self._address)
        if written is not None:
            write = TagWrite(written, prompt.line)
            self._writes.append(write)
            self.armed = written
            if self._first is None and written:
                self._first = write
        elif reads_tag(command, self._address):
            self._asked = prompt
        breakpoint_ = tag_breakpoint(command, prompt.line)
        if breakpoint_:
            self.breakpoints.append(breakpoint_)

    def _take_back(self, line: int) -> None:
        """The write typed in this line failed."""
        if not self._writes or self._writes[-1].line != line:
            return
        while self._writes and self._writes[-1].line == line:
            self._writes.pop()
        self._first = next((write for write in self._writes if write.value), None)
        self.armed = self._writes[-1].value if self._writes else self._before

    def _read(self, dump: MemoryDump) -> None:
        number = dump.number_at(self._address, 4) if self._address is not None else None
        if number is None and not dump.rows[0].width:
            number = _number_of_text(dump.rows[0].text or "")
        if number is None:
            return
        self._reads.append((dump.rows[0].line, number))
        if self._first is None:
            self._before = number
            self.armed = number if self.armed is None else self.armed
        elif self._after is None and self._writes[-1] is self._first:
            self._after = number

    def use(self) -> Optional[PoolHitTagUse]:
        """What was seen; None if nothing touched it."""
        if not self._writes and not self._reads:
            return None
        first = self._first
        text = None
        if first:
            raw = first.value.to_bytes(4, "little")
            text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in raw)
        return PoolHitTagUse(
            self._before,
            text,
            first.value if first else None,
            self._after,
            tuple(self._writes),
            tuple(self._reads),
        )


def _number_of_text(text: str) -> Optional[int]:
    """The tag in the text of ``da``; None where a dot may stand for any byte."""
    tag = text[:4]
    if len(tag) < 4 or not tag.isascii() or "." in tag:
        return None
    return int.from_bytes(tag.encode("ascii"), "little")


def _printable(value: int) -> bool:
    """Whether a value can be a tag; the kernel's own 0xffffff0f ("none") and 0 are none."""
    return all(0x20 <= byte < 0x7F for byte in value.to_bytes(4, "little"))


class _Stop:
    """A break and all that was printed before the target ran again."""

    def __init__(self, stop: Break, watch: _TagWatch) -> None:
        self._stop = stop
        self._tag = watch.tag
        self._breakpoints = tuple(watch.breakpoints)
        self._stacks: List[StackText] = []
        self._registers: List[RegisterBlock] = [stop.registers] if stop.registers else []
        self._memory: List[MemoryDump] = []
        self._caller: Optional[NamedPlace] = None
        self._cpu: Optional[int] = None
        self._prompts: List[Prompt] = []
        self._last: Optional[Prompt] = None

    def see(self, event: Event) -> bool:
        """Take an event in; False when it resumes the target, or the target runs already."""
        value = event.value
        if isinstance(value, Prompt):
            return self._last is None and self._prompt(value)
        if self._last is not None and event.command is not self._last:
            return True
        if isinstance(value, StackText) and value.frames and not value.rejected:
            self._stacks.append(value)
        elif isinstance(value, RegisterBlock):
            self._registers.append(value)
        elif isinstance(value, MemoryDump):
            self._memory.append(value)
        elif event.command is not None and _AT_CALLER.match(event.command.command):
            if isinstance(value, Disassembly) and value.symbol:
                self._caller = parse_place(value.symbol)
            elif isinstance(value, SymbolLines) and value.near:
                self._caller = value.near[0].below.name
        return True

    def _prompt(self, prompt: Prompt) -> bool:
        if not self._prompts:
            self._cpu = prompt.cpu
        self._prompts.append(prompt)
        commands = split_commands(prompt.command)
        if not any(map(is_resume, commands)):
            return True
        # "k; g": what the commands in front of the resuming one print still belongs here.
        self._last = prompt
        return not is_resume(commands[0])

    def hit(self, number: int) -> Optional[LogHit]:
        """The hit, None if the stop is none."""
        evidence = self._evidence()
        if evidence is None:
            return None
        kind, rests_on = evidence
        return LogHit(
            number,
            kind,
            rests_on,
            self._stop,
            tuple(self._stacks),
            tuple(self._registers),
            tuple(self._memory),
            self._caller,
            self._cpu,
            tuple(prompt.command for prompt in self._prompts if prompt.command),
            self._tag,
        )

    def _evidence(self) -> Optional[Tuple[Optional[HitKind], str]]:
        """Kind and what it rests on; None for a stop that is no hit."""
        place = self._stop.label
        label = meaning_of(place.module, place.name) if place else FrameMeaning.OTHER
        if not self._may_be_hit() or label is FrameMeaning.BREAK_IN:
            return None
        stack = max(self._stacks, key=lambda found: len(found.frames), default=None)
        top = meaning_of_stack(self._meanings(stack)) if stack else label
        if top.kind:
            return top.kind, "stack" if stack else "label"
        if label.kind:
            return label.kind, "label"
        if not (top.undecided and label.undecided):
            return None
        caller = self._caller and meaning_of(self._caller.module, self._caller.name).kind
        if caller:
            return caller, "return address"
        return (None, "") if self._tag is not None else None

    @staticmethod
    def _meanings(stack: StackText) -> Iterable[FrameMeaning]:
        return (meaning_of(row.module, row.symbol) for row in stack.frames if not row.inline)

    def _may_be_hit(self) -> bool:
        stop = self._stop
        if stop.bug_check or stop.ctrl_c or stop.process is not None:
            return False
        if stop.reason is BreakReason.EXCEPTION:
            return stop.break_instruction
        if stop.reason is BreakReason.BUG_CHECK:
            return False
        # A breakpoint that compares a tag takes the place of PoolHitTag on newer systems.
        return any(known.stops_at(stop.symbol, stop.address) for known in self._breakpoints)


_RESUME = re.compile(r"(?:~[\d.*]+[ ]*)?(?:g[hnucN]?|p[act]?|pt|t[abct]?|wt)(?=[ \t@]|\Z)")


def is_resume(command: str) -> bool:
    """Whether a command lets the target run: ``g`` and its relatives, steps."""
    return _RESUME.match(command.strip()) is not None
