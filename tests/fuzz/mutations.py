"""What mails, pages, editors and scanners do to a log, and worse; all of it seeded."""

from __future__ import annotations

import html
import random
from typing import Callable, Sequence, Tuple

Mutation = Callable[[random.Random, str, Sequence[str]], str]

_ODD = (
    "\x00\x01\x1a\x1b\x7f\x85\xa0\xad\u2028\u200b\ufeff\ufffd\u00e9\u4e2d\U0001f41b\u0660\uff11"
    "\u2019\u2013\u2026\t\v\f`'\"\\<>&;:!*#|/[](){}+-=.@$%^~,_"
)
_TOKENS = (
    "0: kd> ", "kd> !poolused 2\n", "kd&gt; k\n", "nt!", "nt!a+0x", "0x", "`", "Tag", "Allocs",
    "TOTAL", "ChildEBP RetAddr", "Child-SP", "Call Site", "(Inline)", "(FPO: [", "WARNING: ",
    "*** ERROR: ", " size: ", " previous size: ", "(Allocated)", "Pool block ", "[X] (0x", "//",
    "Break instruction exception - code 80000003", "eax=", "rax=", "r8=", "Nonp", "Paged", "rem",
    "start             end", "Unloaded modules:", "ed nt!PoolHitTag '", " Kb", "Memory:", "> ",
    "ffffffff`ffffffff", "18446744073709551616", "00000000", "-1", "<unknown>", "\r", "\r\n",
    " : tag ", "...", "\n\n",
)  # fmt: skip


def _lines(text: str) -> list[str]:
    return text.split("\n")


def _position(rng: random.Random, text: str) -> int:
    return rng.randint(0, len(text))


def cut_end(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return text[: _position(rng, text)]


def cut_start(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return text[_position(rng, text) :]


def cut_middle(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    first, second = sorted((_position(rng, text), _position(rng, text)))
    return text[:first] + text[second:]


def join_two(rng: random.Random, text: str, others: Sequence[str]) -> str:
    return text + rng.choice(["", "\n", " "]) + rng.choice(others)


def splice(rng: random.Random, text: str, others: Sequence[str]) -> str:
    lines = _lines(text)
    foreign = _lines(rng.choice(others))
    begin = rng.randrange(len(foreign))
    at = rng.randint(0, len(lines))
    lines[at:at] = foreign[begin : begin + rng.randint(1, 8)]
    return "\n".join(lines)


def interleave(rng: random.Random, text: str, others: Sequence[str]) -> str:
    result: list[str] = []
    rows, foreign = _lines(text), _lines(rng.choice(others))
    while rows or foreign:
        source = rows if rows and (not foreign or rng.random() < 0.7) else foreign
        result.append(source.pop(0))
    return "\n".join(result)


def duplicate(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    lines = _lines(text)
    at = rng.randrange(len(lines))
    block = lines[at : at + rng.randint(1, 5)]
    lines[at:at] = block * rng.choice([1, 1, 2, 30])
    return "\n".join(lines)


def swap_lines(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    lines = _lines(text)
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    return "\n".join(lines)


def drop_line(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    lines = _lines(text)
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def break_line(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    at = _position(rng, text)
    return text[:at] + rng.choice(["\n", "\n\n", "\n> ", "=\n"]) + text[at:]


def wrap_lines(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    width = rng.choice([20, 40, 72, 80])
    return "\n".join(
        line[at : at + width] for line in _lines(text) for at in range(0, max(len(line), 1), width)
    )


def join_lines(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    lines = _lines(text)
    at = rng.randrange(len(lines))
    lines[at : at + 2] = [rng.choice(["", " "]).join(lines[at : at + 2])]
    return "\n".join(lines)


def one_line(_rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return " ".join(_lines(text))


def delete_blanks(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    share = rng.choice([0.05, 0.5, 1.0])
    return "".join(char for char in text if char != " " or rng.random() > share)


def collapse_blanks(_rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return "\n".join(" ".join(line.split()) for line in _lines(text))


def widen_blanks(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return text.replace(" ", rng.choice(["  ", "\t", "\xa0", " \t "]))


def blank_lines(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return "\n" * rng.choice([0, 40]) + text.replace(
        "\n", rng.choice(["\n\n", "\n \n", "\n\n\n\n"])
    )


def digits_to_letters(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    table = str.maketrans("01358", "OlESB")
    return "".join(
        char.translate(table) if char in "01358" and rng.random() < 0.03 else char for char in text
    )


def decimal_to_hex(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    words = text.split(" ")
    for at, word in enumerate(words):
        if word.isascii() and word.isdigit() and len(word) < 20 and rng.random() < 0.2:
            words[at] = rng.choice(["{:x}", "0x{:x}", "{:X}", "{:,}", "-{}", "{}.5"]).format(
                int(word)
            )
    return " ".join(words)


def grow_number(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    digits = [at for at, char in enumerate(text) if char in "0123456789"]
    if not digits:
        return text
    at = rng.choice(digits)
    return text[:at] + rng.choice(["9" * 12, "9" * 5000, "f" * 40, "-", "\u0663"]) + text[at:]


def escape_html(_rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return html.escape(text)


def unescape_html(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    at = _position(rng, text)
    odd = ["&#0;", "&#x110000;", "&#999999999999;", "&lt", "&nbsp;", "&amp;amp;gt;", "&#xd800;"]
    return text[:at] + rng.choice(odd) + text[at:]


def escape_markdown(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    for sign in rng.sample("`*_#>", 3):
        text = text.replace(sign, "\\" + sign)
    return text


def quote(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    prefix = rng.choice(["> ", ">> ", "//   ", "* : ", "# ", "    ", "\t", "| ", "`"])
    share = rng.choice([1.0, 0.8])
    return "\n".join((prefix if rng.random() < share else "") + line for line in _lines(text))


def insert_odd(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    for _ in range(rng.choice([1, 3, 20])):
        at = _position(rng, text)
        text = text[:at] + rng.choice(_ODD) + text[at:]
    return text


def insert_token(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    for _ in range(rng.choice([1, 1, 4])):
        at = _position(rng, text)
        text = text[:at] + rng.choice(_TOKENS) + text[at:]
    return text


def replace_characters(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    characters = list(text)
    for _ in range(rng.choice([1, 5, 50])):
        if characters:
            characters[rng.randrange(len(characters))] = rng.choice(_ODD + "09afAFxzZ \n")
    return "".join(characters)


def delete_characters(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    share = rng.choice([0.002, 0.02])
    return "".join(char for char in text if rng.random() > share)


def long_line(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    at = _position(rng, text)
    piece = rng.choice([" ", "0", "a", "(", "!", "`", "nt!a+0x", ".", "[", "kd> ", "\t"])
    return text[:at] + piece * rng.choice([300, 3000]) + text[at:]


def change_case(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return rng.choice([text.upper, text.lower, text.swapcase])()


def line_ends(rng: random.Random, text: str, _others: Sequence[str]) -> str:
    return text.replace("\n", rng.choice(["\r\n", "\r", "\n\r", "\x85", "\u2028", "\x00", "\x0b"]))


MUTATIONS: Tuple[Mutation, ...] = (
    cut_end, cut_start, cut_middle, join_two, splice, interleave, duplicate, swap_lines, drop_line,
    break_line, wrap_lines, join_lines, one_line, delete_blanks, collapse_blanks, widen_blanks,
    blank_lines, digits_to_letters, decimal_to_hex, grow_number, escape_html, unescape_html,
    escape_markdown, quote, insert_odd, insert_token, replace_characters, delete_characters,
    long_line, change_case, line_ends,
)  # fmt: skip


def encode(rng: random.Random, text: str) -> bytes:
    """The text as a file: mostly UTF-8, sometimes UTF-16, sometimes damaged."""
    coding = rng.choice(
        ["utf-8"] * 6 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"]
    )
    data = text.encode(coding, errors="replace")
    if rng.random() < 0.1 and data:
        at = rng.randrange(len(data))
        data = data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at + rng.randint(0, 3) :]
    return data


def mutate(rng: random.Random, texts: Sequence[str]) -> bytes:
    """One case: a text of the corpus, changed one to five times."""
    text = rng.choice(texts)
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        text = rng.choice(MUTATIONS)(rng, text, texts)[:60_000]
        if not text:
            text = "\n"
    return encode(rng, text)
