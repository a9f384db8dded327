"""On whose behalf a call site allocates: the first frame outside framework layers.

Frameworks and the helper layers of nt allocate for whoever called them; which these are stands in
``kdleak.blaming.frameworks``. Nothing is looked for beyond the place where a stack begins: what
lies further out was only interrupted, or waits for a system call.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import List, Optional, Tuple

from kdleak.allocator_frames import call_site_index
from kdleak.blamed import LayerUse
from kdleak.blaming.frameworks import Frameworks, Place, built_in_frameworks
from kdleak.model import Stack


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
    through: List[Tuple[str, str]] = []
    for index in range(site, len(frames)):
        symbol = frames[index].symbol
        place = frameworks.place_of(symbol)
        if place is Place.ORIGIN:
            return Blame(last_layer, _runs(through), found=False)
        if place is Place.NOWHERE:
            continue  # no name to judge by: what called it is named instead
        if place is Place.DRIVER:
            return Blame(index, _runs(through))
        last_layer = index
        through.append((symbol.module, frameworks.words_of(symbol)))
    return Blame(last_layer, _runs(through), found=False)


def _runs(through: List[Tuple[str, str]]) -> Tuple[LayerUse, ...]:
    return tuple(
        LayerUse(module, words, len(list(run)))
        for (module, words), run in itertools.groupby(through)
    )
