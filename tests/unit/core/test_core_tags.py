"""Pool tags as users type them and as memory holds them."""

import pytest

from kdleak.errors import BadTag, ExitCode
from kdleak.tags import PoolTag


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Leak", 0x6B61654C),
        ("Abc ", 0x20636241),
        ("Abc", 0x20636241),
        ("A", 0x20202041),
        ("0x6b61654c", 0x6B61654C),
        ("Pro\xe3", 0x636F7250 & 0x00FFFFFF | 0x63000000),
    ],
)
def test_parse(text, value):
    assert PoolTag.parse(text).value == value


@pytest.mark.parametrize("text", ["", "Leaks", "ab\u20ac", "0x123456789", "0x0", "\0\0\0\0"])
def test_bad_tags_are_refused(text):
    with pytest.raises(BadTag) as caught:
        PoolTag.parse(text)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "Next:" in str(caught.value)


def test_text_is_what_windbg_shows():
    assert PoolTag.from_bytes(b"Io  ").text == "Io  "
    assert PoolTag.from_bytes(b"\x01ab\x7f").text == ".ab."
    assert PoolTag.parse("Abc ").reversed_text == " cbA"


def test_protected_bit_is_dropped():
    assert PoolTag.from_bytes(b"Pro\xe3") == PoolTag.parse("Proc")
