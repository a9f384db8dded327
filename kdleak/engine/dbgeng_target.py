"""What is under the debugger, from ``vertarget`` and ``.effmach``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from kdleak.dialect.engine_errors import find_engine_error
from kdleak.dialect.version import parse_version
from kdleak.engine.channels.base import DUMP, Channel
from kdleak.errors import UnsupportedTarget
from kdleak.model import Architecture, TargetInfo
from kdleak.nt.memory import sign_extend
from kdleak.quantities import amount


@dataclass(frozen=True)
class Identified:
    """A target as the debugger describes it.

    Attributes:
        info: the model's view of it.
        uptime: seconds since its boot, None where not shown.
    """

    info: TargetInfo
    uptime: Optional[float]

    def rebooted_since(self, earlier: Identified) -> bool:
        """Whether this is a later boot of the machine that was seen earlier."""
        if self.info.kernel_base != earlier.info.kernel_base:
            return True
        if self.uptime is None or earlier.uptime is None:
            return False
        return self.uptime < earlier.uptime


def identify(channel: Channel) -> Identified:
    """Ask the debugger about its target.

    Raises:
        UnsupportedTarget: it shows no Windows kernel.
        LinkLost: it does not answer.
    """
    text = channel.execute("vertarget")
    version = parse_version(text)
    if version.build is None or version.architecture is None:
        failure = find_engine_error(text)
        said = failure.sentence if failure is not None else " ".join(text.split())[:200]
        raise UnsupportedTarget(
            f"asking the debugger at {channel.where} about its target (vertarget)",
            said or "it printed nothing",
            "kdleak needs a kernel-mode session that is connected to Windows",
        )
    pointer_size = 4 if version.architecture is Architecture.X86 else 8
    processors = version.processors or 0
    count = f", {amount(processors, 'processor')}" if processors else ""
    lab = version.labels.get("Built by") or version.labels.get("Edition build lab", "")
    info = TargetInfo(
        architecture=version.architecture,
        pointer_size=pointer_size,
        build=version.build,
        live=channel.session != DUMP,
        processors=processors,
        kernel_base=sign_extend(version.kernel_base or 0, pointer_size),
        description=(
            f"Windows build {version.build} {version.architecture.value}{count}"
            + (f", {lab}" if lab else "")
        ),
    )
    return Identified(info, version.uptime)
