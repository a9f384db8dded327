"""What is known of whom a hunt points at: layers looked through, the driver, the tag's owner.

Plain values; ``kdleak.blaming.blame`` and ``kdleak.blaming.blamed_modules`` make them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerUse:
    """Frames of one framework layer between the call site and the frame blamed.

    Attributes:
        module: as the debugger names it: untrusted text.
        words: what the layer is, from the list of framework layers ("KMDF"); "" where the frame
            has no name to look up.
        frames: how many in a row.
    """

    module: str
    words: str
    frames: int


@dataclass(frozen=True)
class ModuleDetails:
    """What a driver's image says about itself. All text comes from the target: untrusted.

    Attributes:
        name: as the debugger names it.
        file_name: as the target names it, "" where unknown.
        path: full path in the target, "" where unknown.
        timestamp: TimeDateStamp of its PE header, 0 where unknown.
        file_version: four numbers with dots, "" where unknown.
        company: CompanyName, "" where there is none.
        description: FileDescription, "" where there is none.
        product: ProductName, "" where there is none.
        unknown: why the version could not be read, "" when it was.
    """

    name: str
    file_name: str = ""
    path: str = ""
    timestamp: int = 0
    file_version: str = ""
    company: str = ""
    description: str = ""
    product: str = ""
    unknown: str = ""

    def __str__(self) -> str:
        known = [self.file_name or self.name]
        if self.file_version:
            known.append(f"version {self.file_version}")
        if self.company:
            known.append(self.company)
        if self.description:
            known.append(self.description)
        words = ", ".join(known)
        return f"{words} (version not known: {self.unknown})" if self.unknown else words


@dataclass(frozen=True)
class KnownOwner:
    """What the user's pooltag.txt says of the tag.

    Attributes:
        tag: as the list writes it, wildcards included.
        binary: the driver named there, "" where the list leaves it open.
        description: "" where there is none.
        source: file name of the list, without its folder.
        words: all of it in one line.
    """

    tag: str
    binary: str
    description: str
    source: str
    words: str
