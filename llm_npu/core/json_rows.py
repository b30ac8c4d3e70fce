"""JSON that reads as a table: a record a line, as far as the line is wide."""

from __future__ import annotations

from paddle_fused import strict_json


def dumps(value: object, width: int = 240) -> str:
    """The text of a file: what fits into ``width`` characters is one line, and so is a list of numbers."""
    return _rows(value, "", width) + "\n"


def _rows(value: object, indent: str, width: int) -> str:
    line = strict_json.dumps(value)
    if not isinstance(value, (dict, list)) or not value or len(indent) + len(line) <= width:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        members = (
            f"{strict_json.dumps(key)}: {_rows(member, inner, width)}" for key, member in value.items()
        )
        opening, closing = "{}"
    elif all(type(member) in (int, float) for member in value):
        return line
    else:
        members = (_rows(member, inner, width) for member in value)
        opening, closing = "[]"
    return f"{opening}\n" + ",\n".join(inner + member for member in members) + f"\n{indent}{closing}"
