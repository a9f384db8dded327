"""Prompts of the debugger, and the command behind each.

Kernel prompts (``0: kd>``, ``kd>``, ``lkd>``, ``0: Kd>``, ``## kd>``), user-mode ones
(``2:041>``), two on one line (``2:000>1: kd>``), prompts whose signs a page removed (``0 kd``),
and the echo of a program that drives the engine (``kd>> k``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from kdleak.dialect.source import Line

_NUMBERED = r"(?:\|\|?[0-9]{1,3}:)?(?:(?:[0-9]{1,2}\.)?[0-9]{1,4}: ?)?"
_KERNEL = rf"{_NUMBERED}l?[kK][dD](?::[a-z0-9]{{2,6}})?>{{1,2}}"
_USER = r"(?:\|[0-9]{1,3}:)?[0-9]{1,3}:[0-9]{3,5}(?::[a-z0-9]{2,6})?>"

PROMPT_PATTERN = rf"(?:## )?(?:(?P<outer>{_USER}) ?)?(?P<prompt>{_KERNEL})"
"""A kernel prompt, for use inside other patterns; it has the groups ``outer`` and ``prompt``."""

_KERNEL_PROMPT = re.compile(rf"[ \t]*(?P<signs>## )?(?:(?P<outer>{_USER}) ?)?(?P<prompt>{_KERNEL})")
_USER_PROMPT = re.compile(rf"[ \t]*(?P<prompt>{_USER})(?![0-9])")
_BARE_PROMPT = re.compile(r"[ \t]*(?P<prompt>>)(?=[ \t]|\Z)")
_SIGNLESS_PROMPT = re.compile(r"[ \t]*(?P<prompt>[0-9]{1,4} l?kd)(?=[ \t]|\Z)")
_CPU = re.compile(r"([0-9]{1,4})(?:: ?| )l?[kK][dD]")

_COMMAND_WORD = re.compile(
    r"[ \t]*(?:[!.|~?][!.\w?*|~]*|"
    r"k[bcdfLMnpPstv]{0,4}|d[abcdDfpqstuvwWy]|dps|dqs|dds|d[pqd][aus]|e[abdDfpquwza]|"
    r"g|gh|gn|gu|gc|p|pa|pc|pt|t|ta|tb|tc|tt|wt|r|rdmsr|wrmsr|u|ub|uf|up|a|ln|lm\w*|ld|ls[apf]?|"
    r"x|s|sx\w*|b[acdelmpsu]\d?|q|qq|qd|z|j|as|ad|al|vertarget|version|poolhittag)"
    r"(?=[ \t@/;\"']|\Z)",
    re.IGNORECASE,
)
"""The first word of a command: needed only where the sign before it is no certain prompt."""

_QUOTED_VALUE = re.compile(r"e[a-z]{0,2}[ \t]+[^\s'\"]{1,64}[ \t]+(['\"]).{1,4}\1", re.IGNORECASE)
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?: [AP]M)?\Z")
_LONGEST_CLOCK = len("00:00:00 AM")
_SENTENCE = re.compile(r"[A-Za-z]+(?: [A-Za-z,']+){2,}[ .!]*\Z")


@dataclass(frozen=True)
class Prompt:
    """A prompt and what was typed behind it.

    Attributes:
        prompt: as printed ("0: kd>"), without blanks around it.
        command: as typed, without prompt and remarks; "" at an empty prompt.
        cpu: number of the processor, None where the prompt shows none.
        line: number of the line.
        remark: what the author wrote behind the command, without its sign; "" if nothing.
        stamp: stamp of a remote session ("Local        8:38 AM"), "" if there is none.
        outer: user-mode prompt in front of this one ("2:000>"), "" if there is none.
    """

    prompt: str
    command: str
    cpu: Optional[int]
    line: int
    remark: str = ""
    stamp: str = ""
    outer: str = ""

    @property
    def local_kernel(self) -> bool:
        """Whether the debugger looks at the machine it runs on (``lkd>``)."""
        return "lkd" in self.prompt


def is_prompt(text: str) -> bool:
    """Whether a line begins with a prompt."""
    return _match(text) is not None


def _match(text: str) -> Optional[re.Match[str]]:
    if ">" in text:
        found = _KERNEL_PROMPT.match(text) or _USER_PROMPT.match(text)
        if found:
            return found
        found = _BARE_PROMPT.match(text)
    elif "kd" in text:
        found = _SIGNLESS_PROMPT.match(text)
    else:
        return None
    if found and (found.end() == len(text.rstrip()) or _COMMAND_WORD.match(text, found.end())):
        return found
    return None


def find_prompt(line: Line) -> Optional[Prompt]:
    """The prompt at the start of a line with its command; None if there is none."""
    found = _match(line.text)
    if found is None:
        return None
    groups = found.groupdict()
    prompt = (groups.get("signs") or "") + found["prompt"]
    cpu = _CPU.search(prompt)
    rest = line.text[found.end() :].strip()
    stamp = ""
    bracket = _bracket_at_end(rest)
    if bracket >= 0 and _CLOCK.search(rest[bracket + 1 : -1][-_LONGEST_CLOCK:]):
        rest, stamp = rest[:bracket].rstrip(), rest[bracket + 1 : -1].strip()
    # A tag may hold the sign of a remark: what is quoted belongs to the command.
    quoted = _QUOTED_VALUE.match(rest)
    begin = quoted.end() if quoted else 0
    command, remark = split_remark(rest[begin:]) if rest[begin:] else ("", "")
    command = (rest[:begin] + command).rstrip() if begin else command
    return Prompt(
        prompt,
        command,
        int(cpu.group(1)) if cpu else None,
        line.number,
        remark,
        stamp,
        groups.get("outer") or "",
    )


def split_remark(text: str) -> tuple[str, str]:
    """A command as typed, and the author's remark behind it ("" if there is none).

    ``//`` and ``#`` behind a blank, a bracketed sentence at the end, and words behind a
    semicolon that are no command are remarks.
    """
    slashes = _sign_apart(text, "//")
    if slashes >= 0:
        return text[:slashes].rstrip(), text[slashes + 2 :].strip()
    bracket = _bracket_at_end(text)
    if bracket >= 0:
        inner = text[bracket + 1 : -1]
        if any(char.isascii() and char.isalpha() for char in inner):
            return text[:bracket].rstrip(), inner.strip()
    hash_sign = _hash_apart(text)
    if hash_sign >= 0:
        return text[:hash_sign].rstrip(), text[hash_sign + 1 :].strip()
    semicolon = text.rfind(";")
    remark = text[semicolon + 1 :].lstrip(" \t")
    words = '"' not in remark and remark[:1].isascii() and remark[:1].isalpha()
    if semicolon < 0 or not words:
        return text, ""
    if _COMMAND_WORD.match(remark) and not _SENTENCE.match(remark):
        return text, ""
    return text[:semicolon].rstrip(), remark.strip()


# Searched by hand: patterns that begin with a run of blanks, or hold a letter between two runs of
# anything, take quadratic time on a line of blanks or of words.


def _bracket_at_end(text: str) -> int:
    """Index of the bracket that opens the last word of a line, behind a blank; -1 if none does."""
    if not text.endswith("]"):
        return -1
    begin = text.rfind("[")
    if begin < 1 or text[begin - 1] not in " \t" or "]" in text[begin:-1]:
        return -1
    return begin


def _sign_apart(text: str, sign: str) -> int:
    """Index of the first sign at the start or behind a blank; -1 if there is none."""
    at = text.find(sign)
    while at > 0 and text[at - 1] not in " \t":
        at = text.find(sign, at + 1)
    return at


def _hash_apart(text: str) -> int:
    """Index of the first ``#`` between two blanks; -1 if there is none."""
    at = text.find("#", 1)
    while at > 0 and not (text[at - 1] in " \t" and text[at + 1 : at + 2] in (" ", "\t")):
        at = text.find("#", at + 1)
    return at
