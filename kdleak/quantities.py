"""Numbers of things, as sentences have them."""

from __future__ import annotations


def amount(count: int, thing: str) -> str:
    """A number of things: ``1 block``, ``2,048 blocks``.

    Args:
        count: how many.
        thing: one of them; its plural ends in s.
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
