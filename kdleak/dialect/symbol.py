"""A symbol as a stack row prints it: ``module!name+0x1a`` and everything that may stand behind it.

The text behind the address columns of a row is never split at blanks: names may hold them
(``nt! ?? ::FNODOBFM::`string'``, ``operator new``, template arguments, the parameter list of
``kp``). What follows the name is taken off from the left: offset, parameters, ``(FPO: ...)``,
``(CONV: ...)``, ``(TrapFrame @ ...)``, ``[path @ line]``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Optional, Tuple

_PLAIN = re.compile(r"([\w.$~]+)!([\w:$~@?.]+)(?:\+0x([0-9a-fA-F]+))?\Z")
"""By far the most common form; names that end like a missing "+" go the long way."""

LONG_WAY = re.compile(r"0x|(?:operator|\?)\Z")
"""Simple names that may be cut, or may have lost the "+" before their offset."""

_SCAN = re.compile(
    r"(?P<string>\"[^\"]*\")|(?P<open>[(\[])|(?P<close>[)\]])"
    r"|\+(?:0x)?(?P<offset>[0-9a-fA-F]+(?:`[0-9a-fA-F]+)?)(?=[\s\[(]|\Z)"
    r"|(?P<tail>\s{2,}|\s(?=\[|\((?:FPO|CONV|TrapFrame|!|Inline)|//|<-|;|#\s))"
)
"""What can end a name: an offset, two blanks, or a blank before a known suffix or a remark.

Strings in the lists of ``kp`` are stepped over: they may hold brackets."""

_MODULE = re.compile(r"<?[^\s!:()`\"'=,+<>\[\]]+>?\Z")
_NAME = re.compile(r"(?=[?@$~:<>*&.\-,`'=/]*\w)[\w?@$~:<>*&.\-,`'=/]+\Z")
_ADDRESS = re.compile(
    r"0x(?P<digits>[0-9a-fA-F]{1,8}\\?[`'][0-9a-fA-F]{8}|[0-9a-fA-F]{1,16})\Z"
    r"|(?P<bare>[0-9a-fA-F]{8}\\?[`'][0-9a-fA-F]{8}|[0-9a-fA-F]{16}|[0-9a-fA-F]{8})\Z"
)
_NO_PLUS = re.compile(r"(?<=[\w)])0x([0-9a-fA-F]+)\Z")
_DECORATED = re.compile(r"::|[<?`]|@\d+\Z")
_OPERATOR_SIGNS = re.compile(r"operator(?:<=>|<<=?|<=?|->\*?|>>=?|>=?)|->")
_WITH_BLANKS = re.compile(r"\boperator (?:new|delete)|\?\? (?=::)|`[^`']*'")
_TEMPLATE = re.compile(r"<[^<>]*>")
_DEEPEST_TEMPLATE = 16
_AT_ADDRESS = re.compile(r"@\s*(?:0x)?([0-9a-fA-F]+(?:\\?[`'][0-9a-fA-F]{8})?)")
_PARENS = re.compile(r"[()]")
_NO_FUNCTION = "[No function listed.]"


@dataclass(frozen=True)
class SymbolExpression:
    """What stands in the call site column of a row.

    Attributes:
        module: name before the ``!``, or before the ``+`` where there are no symbols.
        symbol: name of the function; None for ``module+0x...`` and for a bare address.
        offset: bytes from the symbol (from the module base without one); None when none is printed.
        address: the call site is a bare address.
        parameters: text between the brackets of ``kp`` and ``kP``.
        source: ``path @ line``.
        fpo: text of ``(FPO: ...)``.
        convention: text of ``(CONV: ...)``.
        trap_frame: address behind ``TrapFrame @``.
        inline_address: address of ``(Inline Function @ ...)``.
        rest: text behind all this that belongs to none of it (an author's remark).
        open: a bracket was opened and not closed: the row goes on in the next line.
    """

    module: Optional[str] = None
    symbol: Optional[str] = None
    offset: Optional[int] = None
    address: Optional[int] = None
    parameters: Optional[str] = None
    source: Optional[str] = None
    fpo: Optional[str] = None
    convention: Optional[str] = None
    trap_frame: Optional[int] = None
    inline_address: Optional[int] = None
    rest: str = ""
    open: bool = False

    @property
    def certain(self) -> bool:
        """The text can be nothing but a call site: it has a ``!``, an offset or an address."""
        return (
            (self.module is not None and self.symbol is not None)
            or self.offset is not None
            or self.address is not None
        )


class _Tail(NamedTuple):
    """What stands behind name and offset."""

    source: Optional[str] = None
    fpo: Optional[str] = None
    convention: Optional[str] = None
    trap_frame: Optional[int] = None
    inline_address: Optional[int] = None
    rest: str = ""
    open: bool = False


class _Name(NamedTuple):
    """Module, function and parameter list of a name without its offset."""

    module: Optional[str] = None
    symbol: Optional[str] = None
    parameters: Optional[str] = None


def address_of(digits: str) -> int:
    """The value of an address as printed, with a backtick, an apostrophe, or neither."""
    return int(digits.replace("`", "").replace("'", "").replace("\\", ""), 16)


def blanks_belong(name: str) -> bool:
    """Whether every blank of a name stands where the names of C++ have them."""
    bare = _WITH_BLANKS.sub("", name.partition(" [")[0].partition(" (")[0])
    for _ in range(_DEEPEST_TEMPLATE):
        bare, changed = _TEMPLATE.subn("", bare)
        if not changed:
            break
    return " " not in bare.strip()


def parse_symbol(text: str) -> Optional[SymbolExpression]:
    """Read a call site.

    Args:
        text: everything behind the address columns of a row, possibly joined from several lines.

    Returns:
        The expression (all fields None for an empty text), or None when the text cannot be one.
    """
    text = text.strip()
    plain = _PLAIN.match(text)
    if plain and not LONG_WAY.search(plain.group(2)):
        module, symbol, digits = plain.groups()
        return SymbolExpression(module, symbol, None if digits is None else int(digits, 16))
    if not text:
        return SymbolExpression()
    end, offset, tail_start, unclosed = _end_of_name(text)
    name = text[:end].strip()
    tail = _read_tail(text[tail_start:].strip()) if tail_start < len(text) else _Tail()
    if unclosed:
        # Nothing behind the bracket can be told yet; the row shows what came before it.
        tail = tail._replace(open=True)
    literal = _ADDRESS.match(name) if offset is None else None
    if literal:
        return _expression(
            _Name(), None, address_of(literal.group("digits") or literal.group("bare")), tail
        )
    if offset is None:
        name, offset = _offset_without_plus(name)
    split = _split_name(name, offset is not None)
    if split is not None and offset is None and _is_cut(split, name):
        tail = tail._replace(open=True)
    if split is None or (split.module is None and offset is None and tail.rest):
        return None
    return _expression(split, offset, None, tail)


def _is_cut(split: _Name, name: str) -> bool:
    """Whether a name that holds blanks was broken at one of them, or behind its ``!``."""
    if split.symbol is None or split.parameters is not None:
        return split.symbol is None
    bare = _OPERATOR_SIGNS.sub("operator", name)
    return bare.count("<") > bare.count(">") or name.endswith(("operator", "??"))


def _expression(
    name: _Name, offset: Optional[int], address: Optional[int], tail: _Tail
) -> SymbolExpression:
    return SymbolExpression(
        name.module,
        name.symbol,
        offset,
        address,
        name.parameters,
        tail.source,
        tail.fpo,
        tail.convention,
        tail.trap_frame,
        tail.inline_address,
        tail.rest,
        tail.open,
    )


def _end_of_name(text: str) -> Tuple[int, Optional[int], int, bool]:
    """Where the name ends, the offset, where the suffixes begin, and whether a bracket is open."""
    depth = 0
    first_open = 0
    for found in _SCAN.finditer(text):
        kind = found.lastgroup
        if kind == "open":
            if not depth:
                first_open = found.start()
            depth += 1
        elif kind == "close":
            depth = max(0, depth - 1)
        elif not depth and kind == "offset":
            return found.start(), address_of(found.group("offset")), found.end(), False
        elif not depth and kind == "tail":
            return found.start(), None, found.end(), False
    if depth:
        return first_open, None, len(text), True
    return len(text), None, len(text), False


def _offset_without_plus(name: str) -> Tuple[str, Optional[int]]:
    """Verifier logs lose the sign now and then: ``Driver!Name0x75``."""
    found = _NO_PLUS.search(name)
    if found is None or "!" not in name[: found.start()]:
        return name, None
    return name[: found.start()], int(found.group(1), 16)


def _split_name(name: str, has_offset: bool) -> Optional[_Name]:
    module, bang, symbol = name.partition("!")
    if bang and _MODULE.match(module):
        symbol = symbol.strip()
        symbol, parameters = _split_parameters(symbol)
        return _Name(module, symbol or None, parameters)
    if not name:
        return None
    symbol, parameters = _split_parameters(name)
    if parameters is not None or _DECORATED.search(symbol):
        is_unloaded = symbol.startswith("<Unloaded_")
        if not is_unloaded:
            return _Name(None, symbol, parameters) if _looks_named(symbol) else None
    if has_offset:
        # Without symbols the debugger prints the module and the distance from its base.
        return _Name(symbol) if _MODULE.match(symbol) and symbol.strip(".-") else None
    return _Name(None, symbol) if _NAME.match(symbol) and _looks_named(symbol) else None


def _looks_named(symbol: str) -> bool:
    """Not a number, dots, dashes or another rule."""
    return bool(symbol) and (symbol[0].isalpha() or symbol[0] in "_?<`~@$")


def _split_parameters(symbol: str) -> Tuple[str, Optional[str]]:
    """Take the parameter list of ``kp`` off the end of a name."""
    if not symbol.endswith(")"):
        return symbol, None
    depth = 0
    for index in range(len(symbol) - 1, -1, -1):
        if symbol[index] == ")":
            depth += 1
        elif symbol[index] == "(":
            depth -= 1
            if not depth:
                break
    else:
        index = -1
    head = symbol[: max(index, 0)]
    if index <= 0 or head.count("(") != head.count(")"):
        # A value in the list (a string) has a bracket of its own: the first one opens the list.
        index = symbol.find("(")
        head = symbol[:index]
    inner = symbol[index + 1 : -1]
    if not head or (not inner and head.endswith("operator")):
        return symbol, None
    return head.rstrip(), inner.strip()


def _read_tail(tail: str) -> _Tail:
    """Read the suffixes of a row; they come in any order and number."""
    result = _Tail()
    position = 0
    while position < len(tail):
        if tail[position].isspace():
            position += 1
            continue
        end = _group_end(tail, position) if tail[position] in "([" else -1
        if end == 0:
            return result._replace(open=True)
        taken = _take_suffix(result, tail[position:end]) if end > 0 else None
        if taken is None:
            return result._replace(rest=tail[position:].strip())
        result = taken
        position = end
    return result


def _group_end(tail: str, start: int) -> int:
    """Index behind the bracket that closes the group at start; 0 when nothing closes it."""
    if tail[start] == "[":
        # A path may hold brackets; the position in the file stands last.
        position = tail.find(" @ ", start)
        first = tail.find("]", start)
        if position < 0 or (0 <= first < position and tail[first + 1 : first + 2] in ("", " ")):
            return first + 1
        return tail.find("]", position) + 1
    depth = 0
    for found in _PARENS.finditer(tail, start):
        depth += 1 if found.group() == "(" else -1
        if not depth:
            return found.end()
    return 0


def _take_suffix(result: _Tail, group: str) -> Optional[_Tail]:
    """Add one bracketed group to the tail; None when it is none that a debugger prints."""
    if group[0] == "[":
        inner = group[:-1].lstrip("[").strip()
        if " @ " in inner and result.source is None:
            return result._replace(source=inner)
        return result if group == _NO_FUNCTION else None
    return _take_note(result, group[1:-1].strip())


def _take_note(result: _Tail, inner: str) -> Optional[_Tail]:
    """Add what stands in round brackets."""
    at_address = _AT_ADDRESS.search(inner)
    address = address_of(at_address.group(1)) if at_address else None
    kind, _, text = inner.partition(":")
    if kind == "FPO" and "TrapFrame" in text:
        return result._replace(fpo=text.partition("TrapFrame")[0].strip(), trap_frame=address)
    if kind == "FPO":
        return result._replace(fpo=text.strip())
    if kind == "CONV":
        return result._replace(convention=text.strip())
    if inner.startswith("TrapFrame"):
        return result._replace(trap_frame=address)
    if inner.startswith("Inline"):
        return result._replace(inline_address=address)
    return result if inner.startswith("!") else None
