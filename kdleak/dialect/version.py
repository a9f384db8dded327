"""What the debugger says about its target: the banner, ``vertarget`` and ``||``."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import Dict, Optional, Sequence, Tuple

from kdleak.dialect.addresses import ADDRESS, parse_address
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.model import Architecture

_KERNEL_VERSION = re.compile(
    r"[ \t]*(?P<product>Windows .{1,60}?) Kernel Version (?P<build>[0-9]{3,6})"
    r"(?:\.[0-9]+)?(?: \((?P<service_pack>[^()]{1,60})\))?(?P<rest>(?: .*)?)\Z"
)
_PROCESSORS = re.compile(r"\bMP \((?P<count>[0-9]{1,4}) procs?\)")
_UNIPROCESSOR = re.compile(r"\bUP\b")
_CONNECTED = re.compile(
    r"[ \t]*Connected to (?P<product>Windows .{1,60}?) (?P<build>[0-9]{3,6}) "
    r"(?P<machine>(?:x86|x64|ARM|Itanium|IA64).{0,40}?) target(?: at "
    r"\((?P<when>.*?)\))?, ptr64 (?P<ptr64>TRUE|FALSE)"
)
_KERNEL_BASE = re.compile(
    rf"[ \t]*Kernel base = 0x(?P<base>{ADDRESS}) PsLoadedModuleList = 0x(?P<list>{ADDRESS})"
)
_UPTIME = re.compile(
    r"[ \t]*System Uptime: (?:(?P<days>[0-9]{1,6}) days? )?"
    r"(?P<hours>[0-9]{1,3}):(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2}(?:\.[0-9]{1,6})?)"
)
_LABELLED = re.compile(
    r"[ \t]*(?P<label>Built by|Edition build lab|Machine Name|Product|Debug session time|"
    r"Debugger \(not debuggee\) time|"
    r"Symbol search path is|Executable search path is|Primary image base|"
    r"Loaded (?:dump|image) file)"
    r"(?:: ?| = ?| ?\[)(?P<value>.*?)[ \t]*\]?\Z"
)
_SESSION = re.compile(
    r"(?P<dump>\b(?:Dump|dump file|Mini Kernel Dump File|Kernel (?:Summary|Bitmap|Complete)? ?Dump"
    r" File|(?:full|triage|summary|bitmap|complete|small|mini) (?:kernel )?(?:mini)?dump)\b)"
    r"|(?P<local>\bLocal kernel\b)"
    r"|(?P<remote>KdSrv:Server=|Remote KD:|Kernel Debugger connection established)",
    re.IGNORECASE,
)
_SESSION_LINE = re.compile(
    r"[ \t]*(?:[.*#]{1,2}[ ]+[0-9]{1,3} |Kernel Debugger connection established|"
    r"Loading Dump File|Mini Kernel Dump File|Kernel (?:Summary|Bitmap|Complete)? ?Dump File|"
    r"Local kernel|Windows .{0,40} Kernel .*local)"
)

_MACHINES = (
    ("ARM 64-bit", Architecture.ARM64),
    ("AArch64", Architecture.ARM64),
    ("x64", Architecture.X64),
    ("x86 compatible", Architecture.X86),
)


class SessionKind(enum.Enum):
    """What a debugging session works on."""

    LIVE = "live"
    """A second machine over a debug link."""
    LOCAL = "local"
    """The machine the debugger runs on: cannot stop it."""
    DUMP = "dump"


@dataclass(frozen=True)
class TargetVersion:
    """What is known of the target; None or "" for what the text does not say.

    Attributes:
        build: Windows build number.
        processors: number of processors.
        checked: whether it is a checked (debug) build.
        architecture: machine.
        product: "Windows 10", "Windows Server 2003".
        service_pack: what stands in brackets behind the build.
        kernel_base: load address of nt.
        loaded_module_list: address of PsLoadedModuleList.
        uptime: seconds since boot.
        session: what kind of session it is.
        labels: other ``label: value`` lines, by label.
        line: number of the first line.
    """

    build: Optional[int] = None
    processors: Optional[int] = None
    checked: Optional[bool] = None
    architecture: Optional[Architecture] = None
    product: str = ""
    service_pack: str = ""
    kernel_base: Optional[int] = None
    loaded_module_list: Optional[int] = None
    uptime: Optional[float] = None
    session: Optional[SessionKind] = None
    labels: Dict[str, str] = field(default_factory=dict)
    line: int = 0
    unparsed: Tuple[Unparsed, ...] = ()


def parse_version(source: Source) -> TargetVersion:
    """Everything a text says about its target; a later line overrides an earlier one."""
    reader = _VersionReader()
    for line in lines_of(source):
        reader.take(line)
    return reader.version()


def starts_version(lines: Sequence[Line], index: int) -> bool:
    """Whether a line that describes the target stands here."""
    return _VersionReader().take(lines[index])


def take_version(lines: Sequence[Line], index: int) -> Tuple[TargetVersion, int]:
    """Read from a line for which ``starts_version`` holds."""
    reader = _VersionReader()
    while index < len(lines) and reader.take(lines[index]):
        index += 1
    return reader.version(), index


class _VersionReader:
    """Takes the lines that describe a target."""

    def __init__(self) -> None:
        self._known: Dict[str, object] = {}
        self._labels: Dict[str, str] = {}
        self._line = 0

    def take(self, line: Line) -> bool:
        """Whether a line describes the target."""
        text = line.text
        taken = self._take_kernel(text) or self._take_address(text) or self._take_session(text)
        if not taken:
            labelled = _LABELLED.match(text)
            if labelled:
                self._labels[labelled["label"]] = labelled["value"]
                taken = True
        if taken and not self._line:
            self._line = line.number
        return taken

    def _take_kernel(self, text: str) -> bool:
        if "Windows " not in text:
            return False
        found = _KERNEL_VERSION.match(text)
        if found:
            rest = found["rest"]
            count = _PROCESSORS.search(rest)
            if count:
                self._known["processors"] = int(count["count"])
            elif _UNIPROCESSOR.search(rest):
                self._known["processors"] = 1
            if "Checked" in rest or "Free" in rest:
                self._known["checked"] = "Checked" in rest
            self._known["service_pack"] = found["service_pack"] or ""
        else:
            found = _CONNECTED.match(text)
            if found is None:
                return False
            rest = found["machine"]
            self._known.setdefault("session", SessionKind.LIVE)
        self._known["product"] = found["product"]
        self._known["build"] = int(found["build"])
        for words, machine in _MACHINES:
            if words in rest:
                self._known["architecture"] = machine
                break
        return True

    def _take_address(self, text: str) -> bool:
        if "Kernel base" in text:
            found = _KERNEL_BASE.match(text)
            if found:
                self._known["kernel_base"] = parse_address(found["base"])
                self._known["loaded_module_list"] = parse_address(found["list"])
            return found is not None
        found = _UPTIME.match(text) if "Uptime" in text else None
        if found:
            self._known["uptime"] = (
                int(found["days"] or 0) * 86400
                + int(found["hours"]) * 3600
                + int(found["minutes"]) * 60
                + float(found["seconds"])
            )
        return found is not None

    def _take_session(self, text: str) -> bool:
        if not _SESSION_LINE.match(text):
            return False
        found = _SESSION.search(text)
        if found is None:
            return False
        kinds = {"dump": SessionKind.DUMP, "local": SessionKind.LOCAL, "remote": SessionKind.LIVE}
        self._known["session"] = kinds[found.lastgroup or "remote"]
        return True

    def version(self) -> TargetVersion:
        """What was read."""
        return TargetVersion(labels=self._labels, line=self._line, **self._known)  # type: ignore[arg-type]
