"""Ways to damage a sample dump where it hurts, each by a seeded ``random.Random``."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz.dump_anatomy import BITMAP_AT, PAGE, Anatomy, Spot

_NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 0x0F, 0x10, 0xFF, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0xFFFF, 0x10000),
    *(0x00FF_FFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF, 1 << 32, 1 << 40),
    *((1 << 47) - 1, 1 << 47, 0xFFFF_8000_0000_0000, 0xFFFF_FFFF_FFFF_F000, (1 << 64) - 1),
    *(0x7FFE_0000, 0xFFFF_F6FB_7DBE_D000, 1 << 63, (1 << 63) - 1, 0x0000_8000_0000_0000),
)

EVIL_TEXTS = (
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31mred",
    "\u202egnp.exe",
    "\u2066\u2069\u200b\ufeff",
    "a\r\nkdleak: the target is fine",
    "tab\there\x00rest",
    "../../../../../../etc/passwd",
    "\\\\server\\share\\evil.pdb",
    "//server/share/evil.pdb",
    "C:\\Windows\\..\\evil.pdb",
    "%s%s%n{0}{x!r}",
    "[bold red]markup[/]",
    "\ud800\udfff\ud800",
    "nt",
    "NT",
    ".",
    "..",
    " ",
    "\u0085\u2028\u2029",
    '*?"<>|',
    "\U000e0041\U0001f4a9",
    "x" * 4096,
    "\x1b" * 512,
    "A\u0301" * 200,
)


@dataclass
class Wounded:
    """A damaged dump and what was done to it.

    Attributes:
        anatomy: of the sample it was.
        data: the damaged file.
        done: what was damaged, in order, as "kind: how".
        kinds: of structures that were touched.
        removed: kinds of structures that lost a page, with the dump's map saying so.
        gone: offsets of those pages.
        end: where the file is cut off, None for nowhere.
    """

    anatomy: Anatomy
    data: bytearray
    done: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    gone: list[int] = field(default_factory=list)
    end: int | None = None

    def note(self, kind: str, how: str) -> None:
        """Remember a wound."""
        self.kinds.add(kind)
        self.done.append(f"{kind}: {how}")


def wound(anatomy: Anatomy, rng: random.Random) -> Wounded:
    """A damaged copy: mostly one wound, sometimes several."""
    wounded = Wounded(anatomy, bytearray(anatomy.raw))
    wounds = rng.choice((1, 1, 1, 1, 2, 3, 8))
    while len(wounded.done) < wounds:  # some find nothing of their kind
        rng.choice(_WOUNDS)(wounded, rng)
    # Last, because they move what the other wounds aim at.
    for at in sorted(wounded.gone, reverse=True):
        del wounded.data[at : at + PAGE]
    if wounded.end is not None:
        del wounded.data[wounded.end :]
    return wounded


def _pick(wounded: Wounded, rng: random.Random) -> tuple[str, Spot]:
    kind = rng.choice(sorted(wounded.anatomy.spots))
    return kind, rng.choice(wounded.anatomy.spots[kind])


def _number(wounded: Wounded, rng: random.Random, width: int) -> int:
    addresses = wounded.anatomy.addresses
    kind = rng.choice(sorted(addresses))
    address = rng.choice(addresses[kind])
    value = rng.choice(
        (
            rng.choice(_NUMBERS),
            rng.choice(_NUMBERS),
            rng.getrandbits(rng.randrange(1, 65)),
            address,
            address + rng.choice((-8, 1, 4, 8, 16, 0x1000)),
            len(wounded.data),
        )
    )
    return value & ((1 << 8 * width) - 1)


def _put(data: bytearray, at: int, value: int, width: int) -> None:
    if at >= 0 and at + width <= len(data):
        data[at : at + width] = value.to_bytes(width, "little")


def _set_number(wounded: Wounded, rng: random.Random) -> None:
    """A number or pointer in a structure becomes another."""
    kind, spot = _pick(wounded, rng)
    width = min(rng.choice((2, 4, 8, 8)), spot.size) if spot.size in (2, 4, 8) else 0
    width = width or rng.choice((2, 4, 8))
    at = spot.at + rng.randrange(0, max(spot.size - width, 0) + 1, 4)
    value = _number(wounded, rng, width)
    _put(wounded.data, at, value, width)
    wounded.note(kind, f"0x{value:x} ({width} bytes) at 0x{at:x}")


def _nudge(wounded: Wounded, rng: random.Random) -> None:
    """A number grows or shrinks a little, or a bit of it flips."""
    kind, spot = _pick(wounded, rng)
    at = spot.at + rng.randrange(0, max(spot.size - 3, 1), 4)
    old = int.from_bytes(wounded.data[at : at + 4], "little")
    new = rng.choice((old + 1, old - 1, old ^ 1 << rng.randrange(32), old << 8, old >> 8))
    _put(wounded.data, at, new & 0xFFFF_FFFF, 4)
    wounded.note(kind, f"0x{old:x} -> 0x{new & 0xFFFF_FFFF:x} at 0x{at:x}")


def _noise(wounded: Wounded, rng: random.Random) -> None:
    """Random bytes, zeros or ones over a structure."""
    kind, spot = _pick(wounded, rng)
    size = rng.randrange(1, spot.size + 1)
    at = spot.at + rng.randrange(spot.size - size + 1)
    fill = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))
    wounded.data[at : at + size] = fill
    wounded.note(kind, f"{size} bytes at 0x{at:x}")


def _copy(wounded: Wounded, rng: random.Random) -> None:
    """One part of a structure over another of its kind: cycles, twins, the wrong order."""
    kind = rng.choice([k for k, spots in sorted(wounded.anatomy.spots.items()) if len(spots) > 1])
    one, other = (rng.choice(wounded.anatomy.spots[kind]) for _ in range(2))
    size = min(one.size, other.size)
    wounded.data[other.at : other.at + size] = wounded.data[one.at : one.at + size]
    wounded.note(kind, f"0x{one.at:x} over 0x{other.at:x}")


def _evil_name(wounded: Wounded, rng: random.Random) -> None:
    """A text that means harm, where a name of a module, a PDB, an export or a tag stands."""
    kind = rng.choice(
        ("module name", "module name", "RSDS", "exports", "imports", "tag tables", "comment", "lab")
    )
    text = rng.choice(EVIL_TEXTS)
    wide = text.encode("utf-16-le", "surrogatepass")
    narrow = text.encode("utf-8", "surrogatepass")
    if kind == "module name":
        if kind not in wounded.anatomy.spots:
            return
        _evil_module(wounded, rng, wide)
    elif kind == "comment":
        wounded.data[0x0FB0 : 0x0FB0 + 128] = narrow[:128].ljust(128, b"\0")
    else:
        spots = wounded.anatomy.spots.get("variable" if kind == "lab" else kind, [])
        if not spots:
            return
        spot = rng.choice(spots[-1:] if kind == "lab" else spots)
        if kind == "tag tables":
            raw = rng.choice((b"\x1b[1m", b"\r\n\x07\x00", b"\xe2\x80\xae ", b"'\"\\\x7f"))
            at = spot.at + rng.randrange(0, spot.size - 4, 8)
        elif kind == "RSDS":
            raw, at = narrow + b"\0", spot.at + 24
        else:
            raw, at = narrow + b"\0", spot.at + rng.randrange(max(1, min(spot.size, 0x400)))
        raw = raw[: max(4, PAGE - at % PAGE)]
        wounded.data[at : at + len(raw)] = raw
    wounded.note(kind, f"text {text[:12]!r}")


def _evil_module(wounded: Wounded, rng: random.Random, wide: bytes) -> None:
    names, entries = (wounded.anatomy.spots[kind] for kind in ("module name", "module entry"))
    number = rng.randrange(len(names))
    wide = wide[: PAGE - names[number].at % PAGE]
    wounded.data[names[number].at : names[number].at + len(wide)] = wide
    # Its UNICODE_STRING: FullDllName at 0x48, BaseDllName at 0x58, in this order in ``names``.
    at = entries[number // 2].at + (0x48, 0x58)[number % 2]
    length = rng.choice((len(wide), len(wide) | 1, 0xFFFE, 0xFFFF))
    struct.pack_into("<HH", wounded.data, at, length, length)


def _cycle(wounded: Wounded, rng: random.Random) -> None:
    """The module list leads back into itself, or elsewhere."""
    if "module entry" not in wounded.anatomy.spots:
        return
    entries = wounded.anatomy.spots["module entry"]
    addresses = wounded.anatomy.addresses["module entry"]
    one = rng.randrange(len(entries))
    to = rng.choice((rng.choice(addresses), 0, addresses[one] + 8, rng.choice(_NUMBERS)))
    struct.pack_into("<Q", wounded.data, entries[one].at, to & ((1 << 64) - 1))
    wounded.note("module entry", f"Flink of number {one} -> 0x{to:x}")


def _absurd_big_pages(wounded: Wounded, rng: random.Random) -> None:
    """Rows of the big page table with sizes and addresses that cannot be."""
    if "big pages" not in wounded.anatomy.spots:
        return
    for _ in range(rng.randrange(1, 40)):
        spot = rng.choice(wounded.anatomy.spots["big pages"])
        at = spot.at + rng.randrange(spot.size // 32) * 32
        row = (_number(wounded, rng, 8), 0x6B61654C, rng.getrandbits(32), _number(wounded, rng, 8))
        wounded.data[at : at + 24] = struct.pack("<QIIQ", *row)
    wounded.note("big pages", "absurd rows")


def _absurd_headers(wounded: Wounded, rng: random.Random) -> None:
    """Pool headers whose sizes cannot be."""
    if "pool header" not in wounded.anatomy.spots:
        return
    for _ in range(rng.randrange(1, 60)):
        spot = rng.choice(wounded.anatomy.spots["pool header"])
        struct.pack_into("<I", wounded.data, spot.at, rng.getrandbits(32))
    wounded.note("pool header", "absurd headers")


def _strings_in_block(wounded: Wounded, rng: random.Random) -> None:
    """Texts that mean harm inside of a block."""
    if "pool block" not in wounded.anatomy.spots:
        return
    spot = rng.choice(wounded.anatomy.spots["pool block"])
    code = rng.choice(("utf-8", "utf-16-le"))
    raw = rng.choice(EVIL_TEXTS).encode(code, "surrogatepass")[: spot.size]
    wounded.data[spot.at : spot.at + len(raw)] = raw
    wounded.note("pool block", "a text")


def _self_map(wounded: Wounded, rng: random.Random) -> None:
    """An entry of a page table leads to the table of another level, or to itself."""
    if "page table 3" not in wounded.anatomy.spots:
        return
    kinds = [kind for kind in wounded.anatomy.spots if kind.startswith("page table")]
    one, other = rng.choice(kinds), rng.choice(kinds)
    to = rng.choice(wounded.anatomy.spots[one])
    entry = int.from_bytes(wounded.data[to.at : to.at + 8], "little")
    flags = rng.choice((0x63, 0x21, 0x1, 0x80, 0xE3, 0x400, 0x800, 0x8000_0000_0000_0063))
    value = rng.choice((entry, entry & ~0xFFF | flags))
    for _ in range(rng.choice((1, 1, 5, 100))):
        spot = rng.choice(wounded.anatomy.spots[other])
        _put(wounded.data, spot.at, value & ((1 << 64) - 1), 8)
    wounded.note(other, f"0x{value:x}")


def _remove_page(wounded: Wounded, rng: random.Random) -> None:
    """A page is not in the dump, and the bitmap says so."""
    if wounded.anatomy.dump_type not in (5, 6):
        return
    kind = rng.choice(sorted(wounded.anatomy.pages))
    frame, at = rng.choice(wounded.anatomy.pages[kind])
    bits = BITMAP_AT + 0x38 + frame // 8
    if not wounded.data[bits] & 1 << frame % 8:
        return
    wounded.data[bits] &= ~(1 << frame % 8)
    wounded.gone.append(at)
    touched = {k for k, pages in wounded.anatomy.pages.items() if (frame, at) in pages}
    wounded.removed |= touched
    wounded.kinds |= touched
    wounded.done.append(f"{', '.join(sorted(touched))}: frame 0x{frame:x} removed")


def _cut(wounded: Wounded, rng: random.Random) -> None:
    """The end is missing."""
    keep = rng.choice((rng.randrange(len(wounded.data)), rng.randrange(len(wounded.data) // PAGE)))
    keep = keep * PAGE if keep < len(wounded.data) // PAGE else keep
    wounded.end = keep
    wounded.note("end", f"cut at 0x{keep:x}")


def _flip(wounded: Wounded, rng: random.Random) -> None:
    """Bits of any page flip."""
    for _ in range(rng.choice((1, 8, 200))):
        if wounded.data:
            wounded.data[rng.randrange(len(wounded.data))] ^= 1 << rng.randrange(8)
    wounded.note("anything", "bits")


_WOUNDS: tuple[Callable[[Wounded, random.Random], None], ...] = (
    *(_set_number,) * 5,
    *(_nudge,) * 2,
    *(_noise,) * 2,
    _copy,
    *(_evil_name,) * 3,
    _cycle,
    _absurd_big_pages,
    _absurd_headers,
    _strings_in_block,
    *(_self_map,) * 2,
    *(_remove_page,) * 3,
    _cut,
    _flip,
)
