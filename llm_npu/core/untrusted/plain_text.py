"""Text from files for terminals and pages: printable characters only."""

from __future__ import annotations

import unicodedata

LAYOUT = "\n\t"  # control characters that multi-line text keeps


def printable(text: object, keep: str = "", longest: int | None = None) -> str:
    """``text`` with an escape, such as ``\\x1b``, for every character that is not printable.

    The text can then not move the cursor, set a title, reverse a line or break a table. Spaces of every
    script are printable. Control characters in ``keep``, such as line ends, are not escaped. Text of more
    than ``longest`` characters is cut, and its length is appended.
    """
    text = str(text)
    if longest is not None and len(text) > longest:
        text = f"{text[:longest]}... ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep or unicodedata.category(character) == "Zs"
        else ascii(character)[1:-1]
        for character in text
    )
