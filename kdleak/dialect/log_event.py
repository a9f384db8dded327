"""The events of a log: what was found in it, in its order."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Union

from kdleak.dialect.breaks import Break
from kdleak.dialect.engine_errors import EngineFailure
from kdleak.dialect.memory_dump import MemoryDump
from kdleak.dialect.modules import ModuleList
from kdleak.dialect.pointer_listing import PointerListing
from kdleak.dialect.pool import Pool
from kdleak.dialect.poolfind import PoolFind
from kdleak.dialect.poolmon import PoolMonScreen
from kdleak.dialect.pooltag import PoolTagList
from kdleak.dialect.poolused_table import PoolUsedTable
from kdleak.dialect.prompt import Prompt
from kdleak.dialect.registers import RegisterBlock
from kdleak.dialect.reload import ReloadOutput
from kdleak.dialect.stack import StackText
from kdleak.dialect.symbol_lines import SymbolLines
from kdleak.dialect.verifier import Verifier
from kdleak.dialect.verifier_log import VerifierLog
from kdleak.dialect.version import TargetVersion
from kdleak.dialect.vm import VmUsage


class TextKind(enum.Enum):
    """What a line is that is no output known here."""

    REMARK = "remark"
    """The author's own words behind a comment sign."""
    DEBUG_PRINT = "debug print"
    """Printed by the target while it ran."""
    NOTICE = "notice"
    """Words of the debugger that say nothing about the target."""
    OUTPUT = "output"
    """Below a command whose output is not read here."""
    LOOSE = "loose"
    """Anything else: prose, cut lines."""

    @property
    def understood(self) -> bool:
        """Whether nothing was missed by not reading it."""
        return self not in {TextKind.OUTPUT, TextKind.LOOSE}


@dataclass(frozen=True)
class Text:
    """One line that is no output known here.

    Attributes:
        kind: see TextKind.
        text: the line.
        line: number of the line.
    """

    kind: TextKind
    text: str
    line: int


@dataclass(frozen=True)
class Disassembly:
    """Code that ``u`` and its relatives show.

    Attributes:
        symbol: label above it, None where there is none.
        address: of the first instruction.
        line: number of the line.
    """

    symbol: Optional[str]
    address: int
    line: int


Value = Union[
    Prompt,
    Break,
    StackText,
    RegisterBlock,
    MemoryDump,
    PointerListing,
    Disassembly,
    ModuleList,
    SymbolLines,
    ReloadOutput,
    TargetVersion,
    PoolUsedTable,
    PoolMonScreen,
    PoolTagList,
    Pool,
    PoolFind,
    VmUsage,
    Verifier,
    VerifierLog,
    EngineFailure,
    Text,
]


@dataclass(frozen=True)
class Event:
    """One thing found in a log.

    Attributes:
        line: number of its first line.
        value: what it is.
        command: the prompt it answers; None before the first prompt, and for what the target
            does while it runs.
    """

    line: int
    value: Value
    command: Optional[Prompt] = None
