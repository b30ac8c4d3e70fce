"""Text from files for terminals and pages: printable characters only."""

from __future__ import annotations

import unicodedata

LAYOUT = "\n\t"  # what text of several lines keeps


def printable(text: object, keep: str = "", longest: int | None = None) -> str:
    """``text`` with an escape, such as ``\\x1b``, for every character that is not printable.

    So a file's text moves no cursor, sets no title, reverses no line and breaks no table. Spaces of every
    alphabet are printable. ``keep``: control characters that stay, such as line ends. Text of more than
    ``longest`` characters is cut, and its length is added.
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
