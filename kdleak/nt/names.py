"""Symbol names: undoing decoration where that is simple, and choosing among aliases."""

from __future__ import annotations

import re

_MEMBER = re.compile(r"\?([A-Za-z_]\w*)((?:@[A-Za-z_]\w*)*)@@")
_STDCALL = re.compile(r"[_@]([A-Za-z_?$][\w?$@]*?)@+\d+\Z")
_NOISE = ("??_", "__imp_", "_imp_", "__real@", "__xmm@", "$", "??::", "__NULL_IMPORT", "__IMPORT_")


def undecorated(name: str, pointer_size: int) -> str:
    """The name as WinDbg shows it, for the decorations that can be undone without types.

    C++: plain functions and members (``?Read@Queue@@...`` is ``Queue::Read``); templates and
    operators keep their decorated form. 32-bit: ``_name``, ``_name@8`` and ``@name@8``.
    """
    found = _MEMBER.match(name)
    if found:
        scopes = [scope for scope in found.group(2).split("@") if scope]
        return "::".join([*reversed(scopes), found.group(1)])
    if pointer_size == 4 and not name.startswith("?"):
        decorated = _STDCALL.match(name)
        if decorated:
            return decorated.group(1)
        return name[1:] if name.startswith("_") else name
    return name


def preference(name: str, *, function: bool, private: bool) -> tuple[bool, bool, bool, int, str]:
    """Sort key among several names of one address; the smallest is shown.

    Functions before data, a compiler's procedure record before a public name, source names
    before compiler-made ones, then the shorter, then by text so that it is always the same.
    """
    noise = name.startswith(_NOISE) or name.startswith("?")
    return (noise, not private, not function, len(name), name)
