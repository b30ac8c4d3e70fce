"""JSON with one record per line, up to a maximum line width."""

from __future__ import annotations

from paddle_fused import strict_json


def dumps(value: object, width: int = 240) -> str:
    """Serialize ``value``. A value that fits into ``width`` characters, or a list of numbers, is one line."""
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
