"""The layer of a running call or source line, and the Python line that created an attribute."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from types import FrameType

from paddle import nn

from virtual_npu.source_lines import Source, frames, is_inside


def layer_of_frame(frame: FrameType | None, paths: Mapping[int, str]) -> str:
    """The path of the innermost layer whose method is running; ``paths``: id of a layer -> its path."""
    for caller in frames(frame):
        path = paths.get(id(caller.f_locals.get("self")))
        if path is not None:
            return path
    return ""


def layer_of_source(source: Source | None, model: nn.Layer | None) -> str:
    """The path of the layer whose class contains the line; "*" replaces differing indices, "" means none."""
    if source is None or model is None:
        return ""
    matches = [path for path, layer in model.named_sublayers() if _holds(type(layer), source)]
    patterns = {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path) for path in matches}
    return matches[0] if len(matches) == 1 else ", ".join(sorted(patterns))


def _holds(kind: type, source: Source) -> bool:
    where = _lines(kind)
    return (
        where is not None and where[0] == source.file and where[1] <= source.line < where[1] + len(where[2])
    )


@functools.cache
def _lines(kind: type) -> tuple[str, int, list[str]] | None:
    try:
        file = inspect.getsourcefile(kind)
        text, first = inspect.getsourcelines(kind)
    except (OSError, TypeError):  # created at run time, or written in C
        return None
    return None if file is None else (file, first, text)


def of_attribute(path: str, layer: nn.Layer, name: str, model: nn.Layer) -> Source | None:
    """The line of the layer's class that creates its attribute ``name``.

    For Paddle's own layers, such as nn.Linear, the line that creates the layer. None if no line can be found,
    for example if the attribute is set from outside.
    """
    source = assignment(type(layer), name)
    while source is None and path:
        path, _, attribute = path.rpartition(".")
        parent = model
        for part in filter(None, path.split(".")):
            parent = getattr(parent, part)
        source = assignment(type(parent), attribute)
    return source


@functools.cache
def assignment(kind: type, name: str) -> Source | None:
    """The line of the class, or of its nearest base outside the libraries, that assigns ``self.name``."""
    return next((source for source, node in _nodes(kind) if _assigns(node, name)), None)


@functools.cache
def mention(kind: type, text: str) -> Source | None:
    """The first line of the class, or of its nearest base outside the libraries, that contains the string."""
    lines = (line for line, node in _nodes(kind) if isinstance(node, ast.Constant) and node.value == text)
    return next(lines, None)


def _nodes(kind: type) -> Iterator[tuple[Source, ast.AST]]:
    """The syntax trees of the class and its bases outside the libraries, nearest first, in line order."""
    for base in kind.__mro__:
        where = _lines(base)
        if where is None or is_inside(where[0]):
            continue
        file, first, text = where
        tree = ast.parse(textwrap.dedent("".join(text)))
        nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
        for node in sorted(nodes, key=lambda node: node.lineno):
            yield Source(file, first + node.lineno - 1, base.__qualname__), node


def _assigns(node: ast.AST, name: str) -> bool:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        flat = [item for target in targets for item in getattr(target, "elts", [target])]
        return any(isinstance(target, ast.Attribute) and target.attr == name for target in flat)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        named = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "name")]
        registers = node.func.attr in ("register_buffer", "add_parameter", "add_sublayer")
        return registers and any(isinstance(arg, ast.Constant) and arg.value == name for arg in named)
    return False
