"""How messages and figures put things into words."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 rank`` or ``2 ranks``; ``plural`` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
