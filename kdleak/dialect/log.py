"""A whole debugger log: everything that is in it, in its order, and the hunt that it shows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple, Type, TypeVar

from kdleak.dialect.breaks import Break, starts_break, take_break
from kdleak.dialect.decoration import undecorate
from kdleak.dialect.engine_errors import EngineFailure, find_engine_error
from kdleak.dialect.fields import is_gap
from kdleak.dialect.log_event import Event, Text, TextKind, Value
from kdleak.dialect.log_readers import Reader, find_reader, is_disassembly_command
from kdleak.dialect.prompt import Prompt, find_prompt
from kdleak.dialect.registers import RegisterBlock
from kdleak.dialect.session import LogHit, PoolHitTagUse, Session, assemble, is_resume
from kdleak.dialect.source import Line, Source, Unparsed
from kdleak.dialect.stack import StackText, take_stack
from kdleak.dialect.stack_fold import unfold
from kdleak.dialect.tag_commands import split_commands
from kdleak.dialect.version import TargetVersion
from kdleak.model import Architecture
from kdleak.tags import PoolTag

_Found = TypeVar("_Found")

_LONGEST_LINE = 4000
"""More than any output of a debugger has in one line."""

_LONGEST_NOTICE = 400
"""A longer line that begins like one holds other output too: the ends of its lines were lost."""

_REMARK = re.compile(r"[ \t]*(?:#+[ \t]*[^\s#]|//|rem\b|\[[A-Za-z][^\[\]]*\][ \t]*\Z)")
_NOTICE = re.compile(
    r"[ \t]*(?:Microsoft \(R\) Windows Debugger|Copyright \(c\) Microsoft|Opened |"
    r"Waiting to reconnect|Waiting for pipe|Kernel Debugger connection established|"
    r"\*+ (?:Symbol|Path) .{0,40}(?:summary|validation)|Response[ ]+Time \(ms\)[ ]+Location|"
    r"(?:OK|Deferred|Error|WARNING)[ ]{2,}\S|No \.natvis files found|Using NET for debugging|"
    r"\"File not found\.\"|Please check your debugger configuration|ModLoad: |kdhost: |"
    r"Resetting default scope|ErrCode = [0-9a-f]{8}|Last set context:|"
    r"You can get the target MAC|[*=_~-]{4,}[ \t]*\Z|"
    r"\*(?: .*)?\*[ \t]*\Z|---+ .* ---+[ \t]*\Z|\.+[ \t]*\Z|quit:|Closing open log file|"
    r"Opened log file|Finding |Preferred dump)"
)


@dataclass(frozen=True)
class DebuggerLog:
    """A log, read.

    Attributes:
        lines: without decoration.
        events: what was found, in its order.
        session: the hunt in it.
        unparsed: lines, and parts of what was found, that were not understood.
    """

    lines: Tuple[Line, ...]
    events: Tuple[Event, ...]
    session: Session
    unparsed: Tuple[Unparsed, ...]

    def of(self, kind: Type[_Found]) -> Tuple[_Found, ...]:
        """Everything of one type that was found, in its order."""
        return tuple(event.value for event in self.events if isinstance(event.value, kind))

    @property
    def pool_hit_tag(self) -> Optional[PoolHitTagUse]:
        """What was armed; None if no command touches PoolHitTag."""
        return self.session.pool_hit_tag

    @property
    def hits(self) -> Tuple[LogHit, ...]:
        """The stops that are hits of the tag."""
        return self.session.hits

    @property
    def prompts(self) -> Tuple[Prompt, ...]:
        """Every prompt, empty ones too."""
        return self.of(Prompt)

    @property
    def commands(self) -> Tuple[str, ...]:
        """Every command as typed, without remarks."""
        return tuple(prompt.command for prompt in self.prompts if prompt.command)

    @property
    def tag(self) -> Optional[PoolTag]:
        """The tag hunted: armed in PoolHitTag, or compared by a breakpoint."""
        if self.pool_hit_tag and self.pool_hit_tag.tag:
            return self.pool_hit_tag.tag
        breakpoints = self.session.breakpoints
        return breakpoints[0].tag if breakpoints else None

    @property
    def failures(self) -> Tuple[EngineFailure, ...]:
        """Commands that failed, in the debugger's words and as sentences."""
        return self.of(EngineFailure)

    @property
    def version(self) -> TargetVersion:
        """What the log says about the target; a later line overrides an earlier one."""
        known = TargetVersion()
        for found in self.of(TargetVersion):
            said = {
                name: value
                for name, value in vars(found).items()
                if value not in (None, "", {}) and name not in {"line", "labels", "unparsed"}
            }
            labels = {**known.labels, **found.labels}
            known = replace(known, **said, labels=labels, line=known.line or found.line)
        return known

    @property
    def architecture(self) -> Optional[Architecture]:
        """Machine of the target; None where nothing in the log tells."""
        for version in self.of(TargetVersion):
            if version.architecture:
                return version.architecture
        for block in self.of(RegisterBlock):
            if block.architecture:
                return block.architecture
        for stop in self.of(Break):
            if stop.place and stop.place.instruction.startswith("brk "):
                return Architecture.ARM64
        widths = {stack.pointer_size for stack in self.of(StackText)}
        if widths == {4}:
            return Architecture.X86
        if widths == {8}:
            return Architecture.X64
        wide = any((stop.address or 0) > 0xFFFFFFFF for stop in self.of(Break))
        return Architecture.X64 if wide and widths <= {None} else None


def parse_log(source: Source) -> DebuggerLog:
    """Read a whole log: one debugging session, several, or pieces of some.

    Every line is looked at once; what nobody understands is in ``unparsed``.
    """
    lines = undecorate(source)
    walker = _Walker(lines)
    walker.walk()
    unparsed = (*walker.unparsed, *_run_together(lines, walker.unparsed))
    return DebuggerLog(lines, tuple(walker.events), assemble(walker.events), unparsed)


def _run_together(lines: Sequence[Line], known: Sequence[Unparsed]) -> List[Unparsed]:
    """Lines so long that a reader can only have taken their beginning."""
    said = {entry.line for entry in known}
    why = "the ends of lines were lost: only its beginning was read"
    return [
        Unparsed(line.number, line.text, why)
        for line in lines
        if len(line.text) > _LONGEST_LINE and line.number not in said
    ]


class _Walker:
    """Goes through a log once and asks the readers whose each line is."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.events: List[Event] = []
        self.unparsed: List[Unparsed] = []
        self._lines = lines
        self._prompt: Optional[Prompt] = None
        self._running = False
        self._before_resume = 0

    def walk(self) -> None:
        """Read every line."""
        index = 0
        while index < len(self._lines):
            index = max(self._step(index), index + 1)

    @property
    def _command(self) -> str:
        return self._prompt.command if self._prompt else ""

    def _step(self, index: int) -> int:
        line = self._lines[index]
        if not line.text.strip():
            return index + 1
        prompt = find_prompt(line)
        if prompt:
            return self._take_prompt(prompt, index)
        if self._is_break(index):
            stop, index = take_break(self._lines, index)
            self._running = False
            # What follows answers no command but the next one.
            self._add(stop, stop.line, answers=False)
            self._prompt = None
            return index
        reader = find_reader(self._lines, index, self._command)
        if reader:
            return self._read(reader, index)
        self._take_text(line)
        return index + 1

    def _take_prompt(self, prompt: Prompt, index: int) -> int:
        folded = unfold(self._lines[index]) if "RetAddr" in prompt.command else None
        if folded:
            prompt = replace(prompt, command=folded.command or "")
        self._prompt = prompt
        commands = split_commands(prompt.command)
        resumes = [at for at, command in enumerate(commands) if is_resume(command)]
        self._running = bool(resumes)
        # "k; g" prints a stack and lets the target run behind it.
        self._before_resume = resumes[0] if resumes else 0
        self.events.append(Event(prompt.line, prompt, prompt))
        if folded:
            stack, end = take_stack(self._lines, index, prompt.command)
            self._add(stack, prompt.line)
            self.unparsed.extend(stack.unparsed)
            return end
        if "!" in prompt.command:
            reader = find_reader(self._lines, index, prompt.command, at_command=True)
            if reader:
                return self._read(reader, index)
        return index + 1

    def _is_break(self, index: int) -> bool:
        # A label with an instruction below it is a stop only where the target could run.
        if is_disassembly_command(self._command):
            return False
        return starts_break(self._lines, index)

    def _read(self, reader: Reader, index: int) -> int:
        value, end = reader.take(self._lines, index, self._command)
        self._add(value, self._lines[index].number)
        self.unparsed.extend(getattr(value, "unparsed", ()))
        said = (*getattr(value, "errors", ()), *getattr(value, "messages", ()))
        failure = find_engine_error("\n".join(str(text) for text in said)) if said else None
        if failure:
            self._add(failure, self._lines[index].number)
        return end

    def _add(self, value: Value, line: int, answers: bool = True) -> None:
        answers = answers and (not self._running or self._answers_before_resume(value))
        prompt = self._prompt if answers else None
        self.events.append(Event(line, value, prompt))

    def _answers_before_resume(self, value: Value) -> bool:
        """Whether an output belongs to a command in front of the one that resumes the target."""
        if isinstance(value, Text) or not self._before_resume:
            return False
        self._before_resume -= 1
        return True

    def _take_text(self, line: Line) -> None:
        kind = self._kind_of(line.text)
        failure = None if kind is TextKind.NOTICE else find_engine_error(line.text)
        if failure:
            self._add(failure, line.number)
            return
        self._add(Text(kind, line.text, line.number), line.number)
        if not kind.understood:
            why = "no output known here"
            if kind is TextKind.OUTPUT:
                why = f"output of '{self._command[:60]}' is not read"
            self.unparsed.append(Unparsed(line.number, line.text, why))

    def _kind_of(self, text: str) -> TextKind:
        if _REMARK.match(text):
            return TextKind.REMARK
        if len(text) <= _LONGEST_NOTICE and (_NOTICE.match(text) or is_gap(text)):
            return TextKind.NOTICE
        if self._command and text.strip() == self._command:
            return TextKind.NOTICE  # some hosts echo what was typed
        if self._running:
            return TextKind.DEBUG_PRINT
        return TextKind.OUTPUT if self._command else TextKind.LOOSE
