"""Pool tags: four bytes that name the owner of a pool block."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kdleak.errors import BadTag

PROTECTED_POOL = 0x80000000
"""Bit 31 marks a block that must be freed with its tag; the tables and PoolHitTag never hold it."""

_HEX_FORM = re.compile(r"0x[0-9a-fA-F]{1,8}\Z")


@dataclass(frozen=True, order=True)
class PoolTag:
    """One pool tag.

    Attributes:
        value: the tag as the kernel's u32 (little-endian: ``'Leak'`` is 0x6b61654c).
    """

    value: int

    @classmethod
    def parse(cls, text: str) -> PoolTag:
        """Read a tag as a user types it: one to four characters, or ``0x`` and its value.

        Shorter tags are padded with blanks, as the kernel's own are. Bit 31 is dropped: a
        protected block's tag is compared without it.

        Raises:
            BadTag: not one to four single-byte characters, or the value 0.
        """
        if _HEX_FORM.match(text):
            value = int(text, 16)
        else:
            try:
                raw = text.encode("latin-1")
            except UnicodeEncodeError:
                raw = b""
            if not 1 <= len(raw) <= 4:
                raise BadTag(
                    f"reading the pool tag {text!r}",
                    "a pool tag is 1 to 4 single-byte characters",
                    "give the tag as !poolused shows it (blanks at the end may be left out), "
                    "or its value as 0x6b61654c",
                )
            value = int.from_bytes(raw.ljust(4, b" "), "little")
        value &= ~PROTECTED_POOL
        if value == 0:
            raise BadTag(f"reading the pool tag {text!r}", "its value is 0", "give another tag")
        return cls(value)

    @classmethod
    def from_bytes(cls, raw: bytes) -> PoolTag:
        """The tag held in 4 bytes of target memory, without the protected bit."""
        return cls(int.from_bytes(raw[:4], "little") & ~PROTECTED_POOL)

    @property
    def raw(self) -> bytes:
        """The 4 bytes as they lie in memory."""
        return self.value.to_bytes(4, "little")

    @property
    def text(self) -> str:
        """Four characters, blanks kept; bytes that do not print show as ``.``, as WinDbg does."""
        return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in self.raw)

    def __str__(self) -> str:
        return self.text

    @property
    def reversed_text(self) -> str:
        """The form ``ed nt!PoolHitTag '...'`` needs: characters from last to first."""
        return self.text[::-1]
