"""What mails, web pages, chats and source comments put around debugger text, taken off again.

Done once for a whole log, before any parser sees it. A sign is removed only where it is certain
(an HTML entity, an escaped backtick inside an address) or where several lines agree (a quote sign
in front of each); everything else is left to the parsers. Lines keep their numbers, TABs stay
TABs, and the columns of a block keep their distances.
"""

from __future__ import annotations

import html
import re
from typing import Callable, List, Optional, Sequence, Tuple

from kdleak.dialect.prompt import PROMPT_PATTERN
from kdleak.dialect.source import Line, Source, lines_of

_BLANKS = "\N{NO-BREAK SPACE}\N{FIGURE SPACE}\N{NARROW NO-BREAK SPACE}"
_INVISIBLE = (
    "\N{ZERO WIDTH NO-BREAK SPACE}\N{ZERO WIDTH SPACE}\N{ZERO WIDTH JOINER}"
    "\N{ZERO WIDTH NON-JOINER}\N{WORD JOINER}\N{SOFT HYPHEN}"
    "\N{LEFT-TO-RIGHT MARK}\N{RIGHT-TO-LEFT MARK}"
)
_CONTROLS = "".join(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) != "\t")
_TRANSLATION = {
    **{ord(sign): " " for sign in _BLANKS},
    **{ord(sign): None for sign in _INVISIBLE + _CONTROLS},
}
_UNPRINTED = re.compile(f"[{re.escape(_BLANKS + _INVISIBLE + _CONTROLS)}]")
_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")

_ENTITY = re.compile(r"&(?:gt|lt|amp|quot|apos|nbsp|#[0-9]{1,6}|#[xX][0-9a-fA-F]{1,5});")
_TWICE_ESCAPED = re.compile(r"&amp;(?:gt|lt|quot|apos|nbsp|#[0-9]{1,6});")

_FEW_LINES = 3

_FENCE = re.compile(r"(?:`{3,}|~{3,})[ \t]*[\w+.#-]{0,20}\Z")
_BLOCK_TAG = re.compile(
    r"[ \t]*(?:</?(?:pre|code|blockquote|div|p)(?: [^<>]{0,200})?>|\[/?(?:code|quote|pre)\])+",
    re.IGNORECASE,
)
_LINE_END_TAG = re.compile(
    r"(?:</?(?:pre|code|blockquote|div|p)>|<br ?/?>|\[/(?:code|quote|pre)\]){1,8}[ \t]*\Z",
    re.IGNORECASE,
)

_ESCAPE = re.compile(r"\\([_*`#<>])")
_CERTAIN_ESCAPE = re.compile(
    r"[0-9a-f]{8}\\`[0-9a-f]{8}"  # the backtick inside an address
    r"|\\\*\\\*\\\*"  # the three stars of an error line
    r"|k[dD]\\>"
    r"|\A[ \t]*\\#[ \t]"  # the header of a stack
    r"|\w\\_\w*!|!\w*\\_"  # no symbol holds a backslash
)
_ESCAPED_QUOTE = re.compile(r"[ \t]{0,12}\\>")
_BARE_UNDERSCORE = re.compile(r"(?<!\\)_")
_PATH = re.compile(r"\\[A-Za-z0-9.]")

_DEBUGGER_TEXT = re.compile(
    rf"(?:{PROMPT_PATTERN}"
    r"|(?:[0-9a-f]{1,3}[ ]+)?[0-9a-f]{8}[`']?[0-9a-f]{8}[ ]"
    r"|(?:[0-9a-f]{2,3}[ ]+)?[0-9a-f]{8}[ ]+[0-9a-f]{8}[ ]"
    r"|[0-9a-f]{1,3}[ ]+\(Inline"
    r"|(?:\#[ ]+)?(?:ChildEBP|Child-SP|RetAddr|Call[ ]Site)\b"
    r"|Tag[ ]+(?:Type[ ]+)?Allocs\b"
    r"|Break[ ]instruction[ ]exception"
    r"|WARNING:[ ]|\*\*\*[ ](?:ERROR|WARNING):"
    r"|\w+![\w:~]+(?:\+0x[0-9a-f]+)?:?[ \t]*\Z"
    r"|[ ]?.{4}[ ]+[0-9]+[ ]+[0-9]+[ ]+[0-9]+[ ]+[0-9]+[ \t]"
    r"|[a-z0-9]{2,4}=[0-9a-f]{8}"
    # PoolMon: titles, a row, the lines above
    r"|(?:\#+[ ]+)?Tag[ ]+Type[ ]+Allocs\b|.{1,4}[ ]{1,8}(?:Nonp|Paged)[ ]{1,40}[0-9]+[ ]"
    r"|(?:Memory|Commit):[ ]{0,12}[0-9]+K[ ]"
    # !pool and !poolfind
    r"|\*?[0-9a-f]{8}[0-9a-f`]{0,9}[ ](?:size:|:[ ](?:tag|large)[ ])|Pool[ ]page[ ][0-9a-f]"
    r"|(?:Scanning|Searching)[ ][\w ]{1,40}[ ](?:table|pool)[ ]"
    # !vm and !verifier
    r"|[A-Z][\w ]{2,40}:[ ]+[0-9]+[ ]+\([ ]{0,20}[0-9]+[ ]?Kb\)"
    r"|(?:Current|Minimum):[ ]+[0-9]+[ ]?Kb"
    r"|0x[0-9a-f]{8}[0-9a-f`]{0,9}[ ]+0x[0-9a-f]{8}[ ]|\[[X ]\][ ]\(0x"
    r"|(?:Current|Peak)[ ]Pool[ ]\w+:?[ ]+[(0-9a-f]"
    r"|[0-9a-f]{8}(?:`?[0-9a-f]{8})?[ ]\w+![\w:~]+\+0x)"
)
_AT_PROMPT = re.compile(rf"[ \t]*{PROMPT_PATTERN}")

_QUOTE = re.compile(r"[ \t]{0,12}>(?: ?>)*")
_COMMENT = re.compile(r"[ \t]*(?://+!?|--|;+|\|(?!\|)|\*(?![* \t]*\*)(?: :)?|rem(?=[ \t]|\Z)|'|%)")
_CHAT = re.compile(
    r"[ \t]*\[?[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?: ?[AP]M)?\]?[ \t]?"
    r"(?:<[^<>\s]{1,32}>|\w{1,32}:)?"
    r"|[ \t]*<[^<>\s]{1,32}>"
)
_BEFORE_PROMPT = re.compile(rf"[ \t]*(?:\*[ ]:|\*|//+|\#|--|;)[ \t]*(?={PROMPT_PATTERN})")

_CODE_SPAN = re.compile(r"[ \t]*(`{1,2})(?!`)(.*[^`])\1[ \t]*\Z")
_BOLD_COMMAND = re.compile(rf"\A([ \t]*{PROMPT_PATTERN}[ ]?)(\*\*|__)(.+)\4[ \t]*\Z")
_BOLD_LINE = re.compile(rf"\A[ \t]*\*\*({PROMPT_PATTERN}.*)\*\*[ \t]*\Z")
_GLUED_PROMPT = re.compile(rf"(?<=[^\s0-9A-Fa-f:>#|]){PROMPT_PATTERN}[ ]")


def undecorate(source: Source) -> Tuple[Line, ...]:
    """Lines as the debugger printed them, as far as that is certain.

    Every line of the source is there again under its number, an empty one where it was nothing
    but decoration. Only where two outputs were glued together without a line end, a prompt in the
    middle of a line begins a second line of the same number.
    """
    lines = list(lines_of(source))
    for stage in _STAGES:
        stage(lines)
    return _unglue(lines)


def _unprinted(lines: List[Line]) -> None:
    for index, line in enumerate(lines):
        text = line.text
        if not text.isprintable() and _UNPRINTED.search(text):
            text = _TERMINAL_COLOUR.sub("", text).translate(_TRANSLATION)
            lines[index] = Line(line.number, text)


def _trailing_blanks(lines: List[Line]) -> None:
    """Blanks that every line has at its end: they hide where a terminal broke rows."""
    texts = [line.text for line in lines if line.text.strip()]
    if len(texts) < _FEW_LINES or not all(text.endswith(" ") for text in texts):
        return
    margin = min(len(text) - len(text.rstrip(" ")) for text in texts)
    for index, line in enumerate(lines):
        cut = line.text[:-margin] if line.text.strip() else ""
        lines[index] = Line(line.number, cut)


def _entities(lines: List[Line]) -> None:
    twice = False
    found = [index for index, line in enumerate(lines) if "&" in line.text]
    for index in found:
        twice = twice or _TWICE_ESCAPED.search(lines[index].text) is not None
    for index in found:
        text = _ENTITY.sub(_unescape_entity, lines[index].text)
        if twice:
            text = _ENTITY.sub(_unescape_entity, text)
        lines[index] = Line(lines[index].number, text)


def _unescape_entity(found: re.Match[str]) -> str:
    sign = html.unescape(found.group())
    return sign.translate(_TRANSLATION)


def _page_tags(lines: List[Line]) -> None:
    for index, line in enumerate(lines):
        text = line.text
        if "```" in text or "~~~" in text:
            if _FENCE.match(text.strip(" \t")):
                lines[index] = Line(line.number, "")
            continue
        stripped = text.strip()
        if not stripped:
            continue
        if stripped[0] in "<[":
            text = _BLOCK_TAG.sub("", text, count=1) if _BLOCK_TAG.match(text) else text
        if stripped[-1] in ">]":
            text = _LINE_END_TAG.sub("", text)
        if text != line.text:
            lines[index] = Line(line.number, text)


def _markdown(lines: List[Line]) -> None:
    escaped = [index for index, line in enumerate(lines) if _has_escape(line.text)]
    certain = {index for index in escaped if _CERTAIN_ESCAPE.search(lines[index].text)}
    if not certain:
        return
    before = list(lines)
    all_escaped = not any(_BARE_UNDERSCORE.search(line.text) for line in lines)
    for index in escaped:
        if index in certain or len(certain) > 1:
            text = lines[index].text
            lines[index] = Line(lines[index].number, _unescape_markdown(text, all_escaped))
    if any(_ESCAPED_QUOTE.match(line.text) for line in before):
        _quotes(lines)


def _has_escape(text: str) -> bool:
    return "\\" in text and _ESCAPE.search(text) is not None


def _unescape_markdown(text: str, all_escaped: bool) -> str:
    if all_escaped or not _PATH.search(text):
        return _ESCAPE.sub(r"\1", text)
    # A backslash inside a path may be a separator: words with paths are left alone.
    words = re.split(r"([ \t]+)", text)
    return "".join(word if _PATH.search(word) else _ESCAPE.sub(r"\1", word) for word in words)


def _code_spans(lines: List[Line]) -> None:
    spans: List[Tuple[int, str]] = []
    for index, line in enumerate(lines):
        text = line.text
        found = _CODE_SPAN.match(text) if text.lstrip().startswith("`") else None
        if found:
            spans.append((index, found.group(2)))
            continue
        if text.strip():
            _open_spans(lines, spans)
            spans = []
    _open_spans(lines, spans)


def _open_spans(lines: List[Line], spans: Sequence[Tuple[int, str]]) -> None:
    if len(spans) > 1 or (spans and _is_debugger_text(spans[0][1])):
        for index, text in spans:
            lines[index] = Line(lines[index].number, text)


def _quotes(lines: List[Line]) -> None:
    _strip_runs(lines, _QUOTE, lambda rests: len(rests) > 2 or _evidence(rests) > 0)


def _comments(lines: List[Line]) -> None:
    _strip_runs(lines, _COMMENT, _certainly_a_log)


def _chats(lines: List[Line]) -> None:
    _strip_runs(lines, _CHAT, lambda rests: len(rests) > 2 and _certainly_a_log(rests))


def _certainly_a_log(rests: Sequence[str]) -> bool:
    return _evidence(rests) > 1


def _is_debugger_text(text: str) -> bool:
    # the blanks in front are taken off first: a pattern that tries them one by one is quadratic
    return _DEBUGGER_TEXT.match(text.lstrip(" \t")) is not None


def _evidence(rests: Sequence[str]) -> int:
    return sum(_is_debugger_text(rest) for rest in rests)


def _strip_runs(
    lines: List[Line], prefix: re.Pattern[str], certain: Callable[[Sequence[str]], bool]
) -> None:
    """Take a prefix off runs of lines that all have it, where the rest shows what they are.

    As many blanks behind the prefix go as every line of the run has; one at most for each of
    them when they differ, so that columns keep their distances.
    """
    run: List[Tuple[int, str]] = []
    kind: Optional[str] = None
    for index, line in enumerate(lines):
        if not line.text:
            continue  # double spacing: an empty line has no sign and ends no run
        found = prefix.match(line.text)
        sign = _kind_of(found.group()) if found else None
        if sign != kind and run:
            _strip_run(lines, run, certain)
            run = []
        kind = sign
        if found:
            run.append((index, line.text[found.end() :]))
    if run:
        _strip_run(lines, run, certain)


def _kind_of(prefix: str) -> str:
    """The sign a run shares: quotes of any depth, comments of one sign, chats of any name."""
    sign = prefix.strip()[:1]
    return "<" if sign.isalnum() or sign in "[<" else sign


def _strip_run(
    lines: List[Line], run: Sequence[Tuple[int, str]], certain: Callable[[Sequence[str]], bool]
) -> None:
    rests = [rest for _, rest in run]
    broken = run[-1][0] - run[0][0] >= len(run)
    if not certain(rests) or (broken and not _evidence(rests)):
        return
    margin = min((len(rest) - len(rest.lstrip(" ")) for rest in rests if rest.strip()), default=0)
    for index, rest in run:
        lines[index] = Line(lines[index].number, rest[margin:] if rest.strip() else "")


def _prompts(lines: List[Line]) -> None:
    for index, line in enumerate(lines):
        text = line.text
        if "kd>" not in text and "Kd>" not in text:
            continue
        text = _BEFORE_PROMPT.sub("", text, count=1) if _BEFORE_PROMPT.match(text) else text
        text = _BOLD_LINE.sub(r"\1", text)
        text = _BOLD_COMMAND.sub(r"\1\5", text)
        if text != line.text:
            lines[index] = Line(line.number, text)


def _unglue(lines: Sequence[Line]) -> Tuple[Line, ...]:
    """A second line where a prompt follows directly behind other output."""
    parted: List[Line] = []
    for line in lines:
        text = line.text
        if "kd> " in text and not _AT_PROMPT.match(text):
            found = _GLUED_PROMPT.search(text)
            if found and _is_debugger_text(text):
                parted.append(Line(line.number, text[: found.start()]))
                text = text[found.start() :]
        parted.append(line if text is line.text else Line(line.number, text))
    return tuple(parted)


_STAGES: Tuple[Callable[[List[Line]], None], ...] = (
    _unprinted,
    _trailing_blanks,
    _entities,
    _quotes,
    _comments,
    _chats,
    _page_tags,
    _code_spans,
    _markdown,
    _prompts,
)
