"""Finds the program line responsible for a running call or for an operator of a captured program.

Imports only the standard library at module level, because the virtual NPU imports it while paddle is being
imported.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

# Packages, and folders in packages, whose lines are uninformative: the caller's line is reported instead. The
# folders in model libraries wrap paddle.to_tensor.
FRAMEWORKS = (
    "paddle",
    "numpy",
    "paddle_fused",
    "virtual_npu",
    "llm_npu/dtypes",
    "llm_npu/launch",
    "llm_npu/patches",
    "paddlenlp/utils",
    "paddleformers/utils",
)
# Packages that users import but did not write.
LIBRARIES = (*FRAMEWORKS, "paddlenlp", "paddleformers", "llm_npu")
STANDARD_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"
INSTALLED = re.compile(r"/(site|dist)-packages/")
TYPED = ("<string>", "<stdin>", "<ipython-input")  # python -c and prompts

# The functions in which Paddle runs captured programs, and the local variable that leads to the program.
RUNNERS = {"jit/dy2static/pir_partial_program.py": "self", "base/executor.py": "program"}


@dataclass(frozen=True)
class Source:
    """A line of Python."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@functools.cache
def is_inside(file: str, packages: tuple[str, ...] = FRAMEWORKS) -> bool:
    """Whether the file belongs to one of ``packages`` or to the standard library."""
    if file.startswith("<"):
        return not file.startswith(TYPED)
    # Paddle's decorators, which before 3.2 come from a package named decorator.
    if re.search(r"/(site|dist)-packages/decorator(\.py$|/)", file):
        return True
    if file.startswith(tuple(filter(None, map(_folder, packages)))):
        return True
    return file.startswith(STANDARD_LIBRARY) and not INSTALLED.search(file)


@functools.cache
def _folder(name: str) -> str | None:
    package, _, inner = name.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = spec.submodule_search_locations[0]
    return f"{folder}/{inner}/" if inner else f"{folder}/"


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def caller(
    frame: FrameType | None, packages: tuple[str, ...] = FRAMEWORKS
) -> tuple[FrameType, Source] | None:
    """The innermost frame outside ``packages``, and its line (the original line, if to_static rewrote it)."""
    for candidate in frames(frame):
        file = candidate.f_code.co_filename
        if is_inside(file, packages):
            continue
        source = original(file, candidate.f_lineno, candidate.f_code.co_name)
        if not is_inside(source.file, packages):
            return candidate, source
    return None


def of_frame(frame: FrameType | None) -> Source | None:
    """The innermost line outside the frameworks."""
    frame_and_line = caller(frame)
    return None if frame_and_line is None else frame_and_line[1]


@functools.lru_cache(maxsize=4096)
def runs_programs(code: CodeType) -> str | None:
    """The name of the local variable of this code that holds the running program; None for other code."""
    for file, name in RUNNERS.items():
        if code.co_filename.endswith(file) and name in code.co_varnames:
            return name
    return None


def program_of_frame(frame: FrameType | None):
    """The running PIR program, captured by paddle.jit.to_static or run by an Executor, or None."""
    for candidate in frames(frame):
        if name := runs_programs(candidate.f_code):
            program = candidate.f_locals.get(name)
            program = getattr(program, "_origin_main_program", program)
            if _is_program(program):
                return program
    return None


def _is_program(value: object) -> bool:
    from paddle import pir

    return isinstance(value, pir.Program)


def operators(block) -> Iterator[object]:
    """The operators of a block of a PIR program and of its inner blocks."""
    for operator in block.ops:
        yield operator
        for inner in operator.blocks():
            yield from operators(inner)


_CALL = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')


def of_callstack(callstack: Sequence[str], packages: tuple[str, ...] = FRAMEWORKS) -> Source | None:
    """The innermost line outside ``packages`` of an operator's call stack (outermost frame first)."""
    for entry in reversed(callstack):
        call = _CALL.match(entry)
        if call:
            source = original(call["file"], int(call["line"]), call["function"].strip())
            if not is_inside(source.file, packages):
                return source
    return None


def original(file: str, line: int, function: str) -> Source:
    """The original of a line that to_static may have rewritten."""
    origin = _rewritten().get((file, line))
    if origin is None:
        return Source(file, line, function)
    return Source(origin.location.filepath, origin.location.lineno, origin.function_name)


@functools.cache
def _rewritten() -> dict:
    from paddle.jit.dy2static.origin_info import global_origin_info_map

    return global_origin_info_map
