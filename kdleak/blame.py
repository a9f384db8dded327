"""On whose behalf a call site allocates: the first frame outside framework layers.

Frameworks and the helper layers of nt allocate for whoever called them; which these are stands in
``kdleak.frameworks``. Nothing is looked for beyond the place where a stack begins: what lies
further out was only interrupted, or waits for a system call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from kdleak.allocator_frames import call_site_index, in_kernel
from kdleak.blamed import LayerUse
from kdleak.frameworks import Frameworks, built_in_frameworks
from kdleak.model import Stack

_ORIGIN = re.compile(
    r"_?(?:KiSystem|KiService|KiFastCall|KiUser|KiStart|KiThreadStartup|KiSwapThread|"
    r"KiExceptionDispatch|KiInterrupt|KiDpcInterrupt|KiDispatchInterrupt|KiIsr|"
    r"K[ix](?:RetireDpc|ExecuteAllDpcs|ExecuteDpc)|KiDeliverApc|KiApcInterrupt|KiIdleLoop|PoIdle|"
    r"PspSystemThread|PspUserThread|ExpWorkerThread|IopProcessWorkItem)"
)
"""Functions of nt that begin something: system calls, threads, work items, interrupts, DPCs."""


@dataclass(frozen=True)
class Blame:
    """The answer for one stack.

    Attributes:
        index: of the frame blamed.
        through: layers between the call site and that frame, innermost first.
        found: False where there was nothing but layers: then the outermost of them is named.
    """

    index: int
    through: Tuple[LayerUse, ...] = ()
    found: bool = True


def blame(stack: Stack, frameworks: Optional[Frameworks] = None) -> Blame:
    """Whom to blame for a block allocated over this stack.

    Args:
        stack: innermost frame first, allocator frames included.
        frameworks: layers to look through; None for the built-in list.
    """
    frameworks = built_in_frameworks() if frameworks is None else frameworks
    frames = stack.frames
    last_layer = site = call_site_index(stack)
    through: List[LayerUse] = []
    for index in range(site, len(frames)):
        symbol = frames[index].symbol
        kernel = in_kernel(symbol)
        if kernel and _ORIGIN.match(symbol.name):
            break
        if not symbol.module:
            continue  # no name to judge by: what called it is named instead
        rule = frameworks.layer_of(symbol)
        if rule is None and (symbol.name or not kernel):
            return Blame(index, tuple(through))
        last_layer = index
        words = rule.words if rule is not None else ""
        if through and (through[-1].module, through[-1].words) == (symbol.module, words):
            through[-1] = LayerUse(symbol.module, words, through[-1].frames + 1)
        else:
            through.append(LayerUse(symbol.module, words, 1))
    return Blame(last_layer, tuple(through), found=False)


def blame_index(stack: Stack, frameworks: Optional[Frameworks] = None) -> int:
    """Index of the frame to blame; see ``blame``."""
    return blame(stack, frameworks).index
