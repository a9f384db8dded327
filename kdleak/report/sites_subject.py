"""What a report about code that asks for a tag says beside the finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Tuple

from kdleak.blaming.pooltag_file import TagOwner
from kdleak.model import TargetInfo


@dataclass(frozen=True)
class SitesSubject:
    """The target, how it was searched, and who is known to own the tag.

    Attributes:
        where: the target as the user named it, without secrets.
        target: what it is.
        engine: what read it.
        only: the modules that were asked for; none: all.
        data_sections: sections without code were looked through, too.
        owner: what a tag list says; None where none knows the tag.
        tag_lists: the lists that were asked.
    """

    where: str
    target: TargetInfo
    engine: str
    only: Tuple[str, ...] = ()
    data_sections: bool = True
    owner: Optional[TagOwner] = None
    tag_lists: Tuple[Path, ...] = ()
