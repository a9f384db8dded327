"""Version resources of loaded images: of practice drivers, hand-made ones, damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pefile
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdleak.practice.images as practice_images
from kdleak.errors import MemoryUnreadable
from kdleak.nt.image_version import (
    DAMAGED,
    NO_HEADERS,
    NO_RESOURCE,
    NOT_THERE,
    ImageVersion,
    parse_version,
    read_image_version,
)
from kdleak.practice.scenarios import VERSIONS

IMAGES = Path(practice_images.__file__).parent
BASE = 0xFFFFF80012340000
PAGE = 0x1000


class Mapped:
    """An image in memory of which pages may be absent; counts what is read."""

    def __init__(self, image: bytes, absent: set[int] | None = None) -> None:
        self.image = image
        self.absent = absent or set()
        self.reads: list[tuple[int, int]] = []

    def read(self, address: int, size: int) -> bytes:
        self.reads.append((address - BASE, size))
        start = address - BASE
        pages = range(start // PAGE, (start + max(size, 1) - 1) // PAGE + 1)
        if start < 0 or start + size > len(self.image) or self.absent.intersection(pages):
            raise MemoryUnreadable(address, size)
        return self.image[start : start + size]


def mapped(name: str) -> bytes:
    folder = IMAGES / "scenarios" if name in VERSIONS or name == "takerdrv" else IMAGES
    with pefile.PE(folder / f"{name}.sys") as image:
        raw = bytes(image.get_memory_mapped_image())
        return raw.ljust(image.OPTIONAL_HEADER.SizeOfImage, b"\0")


@pytest.mark.parametrize("driver", VERSIONS)
def test_practice_drivers(driver: str) -> None:
    memory = Mapped(mapped(driver))
    version = VERSIONS[driver]
    assert read_image_version(memory, BASE) == ImageVersion(
        ".".join(map(str, version.number)),
        version.company,
        version.description,
        "kdleak practice target",
    )
    assert len(memory.reads) <= 3
    assert max(size for _, size in memory.reads) <= 0x1000


@pytest.mark.parametrize("driver", ["takerdrv", "leakydrv"])
def test_an_image_without_a_version_resource(driver: str) -> None:
    memory = Mapped(mapped(driver))
    assert read_image_version(memory, BASE) == ImageVersion(unknown=NO_RESOURCE)
    assert len(memory.reads) == 1


def resource_page(image: bytes) -> int:
    with pefile.PE(data=image, fast_load=True) as headers:
        return int(headers.OPTIONAL_HEADER.DATA_DIRECTORY[2].VirtualAddress) // PAGE


def test_pages_that_are_absent() -> None:
    image = mapped("hiddendrv")
    page = resource_page(image)
    assert read_image_version(Mapped(image, {0}), BASE).unknown == NO_HEADERS
    assert read_image_version(Mapped(image, {page}), BASE).unknown == NOT_THERE
    assert read_image_version(Mapped(b""), BASE).unknown == NO_HEADERS
    assert read_image_version(Mapped(b"no image" * 0x400), BASE).unknown == NO_HEADERS


def test_data_on_a_page_that_is_absent() -> None:
    image = bytearray(mapped("hiddendrv"))
    page = resource_page(bytes(image))
    entry = image.index(struct.pack("<I", page * PAGE + 0x60), page * PAGE)
    image[entry : entry + 4] = struct.pack("<I", PAGE)
    version = read_image_version(Mapped(bytes(image), {1}), BASE)
    assert version.unknown == NOT_THERE


def test_a_place_outside_the_image() -> None:
    image = bytearray(mapped("hiddendrv"))
    page = resource_page(bytes(image))
    entry = image.index(struct.pack("<I", page * PAGE + 0x60), page * PAGE)
    image[entry : entry + 4] = struct.pack("<I", len(image) + PAGE)
    assert read_image_version(Mapped(bytes(image)), BASE).unknown == DAMAGED


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 0x31F), st.integers(0, 255)), min_size=1, max_size=20),
)
def test_damage_is_told_or_harmless(changes: list[tuple[int, int]]) -> None:
    image = bytearray(DAMAGED_START)
    for offset, value in changes:
        image[DAMAGED_AT + offset] = value
    memory = Mapped(bytes(image))
    version = read_image_version(memory, BASE)
    assert len(memory.reads) <= 12
    assert all(size <= 0x1000 for _, size in memory.reads)
    assert all(len(text) <= 256 for text in (version.company, version.description))


DAMAGED_START = mapped("hiddendrv")
DAMAGED_AT = resource_page(DAMAGED_START) * PAGE


# --- the resource itself, by hand


def block(key: str, value: bytes = b"", *children: bytes, text: bool = False, length=None) -> bytes:
    """A block with its padding inside; ``length`` is what is written for its value."""
    body = bytearray(6) + key.encode("utf-16-le") + b"\0\0"
    body += bytes(-len(body) % 4) + value
    for child in children:
        body += bytes(-len(body) % 4) + child
    shown = len(value) if length is None else length
    struct.pack_into("<HHH", body, 0, len(body), shown, int(text))
    return bytes(body)


def string(key: str, text: str, *, in_bytes: bool = False, ended: bool = True) -> bytes:
    value = (text + "\0" * ended).encode("utf-16-le")
    return block(key, value, text=True, length=len(value) if in_bytes else len(value) // 2)


def fixed(*numbers: int, signature: int = 0xFEEF04BD) -> bytes:
    high, low = numbers[0] << 16 | numbers[1], numbers[2] << 16 | numbers[3]
    return struct.pack("<4I", signature, 0x10000, high, low) + bytes(36)


def resource(value: bytes, *children: bytes) -> bytes:
    return block("VS_VERSION_INFO", value, *children)


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_lengths_as_resource_compilers_write_them(*, in_bytes: bool, ended: bool) -> None:
    strings = [
        string("CompanyName", "Contoso", in_bytes=in_bytes, ended=ended),
        string("FileDescription", "Odd one", in_bytes=in_bytes, ended=ended),
        string("ProductName", "", in_bytes=in_bytes, ended=ended),
    ]
    raw = resource(
        fixed(10, 0, 22621, 4317),
        block("VarFileInfo", b"", block("Translation", bytes(4))),
        block("StringFileInfo", b"", block("040904b0", b"", *strings)),
    )
    assert parse_version(raw) == ImageVersion("10.0.22621.4317", "Contoso", "Odd one", "")


def test_the_first_language_that_says_something_counts() -> None:
    tables = [
        block("040704b0", b"", string("CompanyName", " \t"), string("FileDescription", "Treiber")),
        block("040904b0", b"", string("CompanyName", "Contoso"), string("FileDescription", "x")),
    ]
    version = parse_version(resource(fixed(1, 2, 3, 4), block("StringFileInfo", b"", *tables)))
    assert (version.company, version.description) == ("Contoso", "Treiber")


def test_text_is_cut_and_put_on_one_line() -> None:
    strings = [string("CompanyName", "a\r\nb\tc"), string("FileDescription", "x" * 4000)]
    raw = resource(b"", block("StringFileInfo", b"", block("000004b0", b"", *strings)))
    version = parse_version(raw)
    assert version.file_version == ""
    assert version.company == "a b c"
    assert version.description == "x" * 256


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(0x200),
        b"\xff" * 0x200,
        resource(fixed(1, 2, 3, 4, signature=1)),
        block("SOMETHING_ELSE", fixed(1, 2, 3, 4)),
        resource(b""),
    ],
)
def test_nothing_that_makes_sense(raw: bytes) -> None:
    assert parse_version(raw) == ImageVersion(unknown=DAMAGED)


def test_what_is_cut_off_is_used_as_far_as_it_goes() -> None:
    strings = [string("CompanyName", "Contoso"), string("FileDescription", "Odd one")]
    whole = resource(
        fixed(1, 2, 3, 4), block("StringFileInfo", b"", block("040904b0", b"", *strings))
    )
    for size in range(len(whole)):
        version = parse_version(whole[:size])
        assert version.company in ("", "Contoso"[: len(version.company)])
        assert version.file_version in ("", "1.2.3.4")
    assert parse_version(whole[: 0x2A + 52 + 2]).file_version == "1.2.3.4"


@given(st.binary(max_size=600))
def test_any_bytes(raw: bytes) -> None:
    version = parse_version(raw)
    assert version.unknown or version != ImageVersion()
