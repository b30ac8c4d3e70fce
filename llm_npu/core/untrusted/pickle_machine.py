"""A stack machine for pickles of plain data: it cannot call anything."""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass

from llm_npu.core.errors import UserError

MOST_STEPS = 2_000_000  # of the machine: some 200 MB of objects; 70,000 arrays need as many
DAMAGED = "what stands in it does not fit together"
MARK = object()
_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16)")


class Refused(ValueError):
    """The pickle may be valid, but is not plain data."""


@dataclass(frozen=True)
class Name:
    """A function or class that the pickle names."""

    name: str


@dataclass
class Made:
    """A call of a name with its arguments; ``state`` is set later."""

    name: str
    arguments: tuple
    state: object = None


class Machine:
    """Executes the pickle in ``data``, a file or memory map."""

    def __init__(self, data):
        self._data = data
        self._stack: list = []
        self._memo: dict[int, object] = {}

    def run(self) -> tuple[object, int]:
        """The object that the pickle builds, with `Made` for calls of names, and the number of steps."""
        for step, (opcode, argument, position) in enumerate(pickletools.genops(self._data)):
            if step > MOST_STEPS:
                raise UserError(f"it has more than {MOST_STEPS:,} objects")
            act = _ACTS.get(opcode.name)
            if act is None:
                raise Refused(f"asks for {opcode.name} at byte {position}, which plain data do not need")
            act(self, argument)
        return self._stack.pop(), step

    # what the opcodes do

    def push(self, value) -> None:
        self._stack.append(value)

    def pop(self):
        value = self._stack.pop()
        if value is MARK:
            raise UserError(DAMAGED)
        return value

    def since_mark(self) -> list:
        found = []
        while (value := self._stack.pop()) is not MARK:
            found.append(value)
        return found[::-1]

    def remember(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def top(self, kind: type):
        value = self._stack[-1]
        if type(value) is not kind:
            raise UserError(DAMAGED)
        return value

    def extend(self, values: list) -> None:
        self.top(list).extend(values)

    def update(self, flat: list) -> None:
        if len(flat) % 2:
            raise UserError(DAMAGED)
        target = self.top(dict)
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if type(key) not in (str, int):
                raise UserError(
                    f"it has a key that is a {type(key).__name__}; keys are text or whole numbers"
                )
            target[key] = value

    def ask(self, module: object, name: object) -> None:
        asked = f"{module}.{name}"
        if asked not in _NAMES:
            raise Refused(f"asks for {asked}, which is not plain data but may run code")
        self.push(Name(_NAMES[asked]))

    def call(self) -> None:
        arguments, called = self.pop(), self.pop()
        if not isinstance(called, Name) or type(arguments) is not tuple:
            raise UserError(DAMAGED)
        self.push(_CALLS[called.name](arguments))

    def new(self) -> None:
        arguments, called = self.pop(), self.pop()
        if called != Name("GeneratorState") or arguments != ():
            raise UserError(DAMAGED)
        self.push(Made("GeneratorState", ()))

    def build(self) -> None:
        state = self.pop()
        made = self.top(Made)
        if made.state is not None or made.name == "scalar":
            raise UserError(DAMAGED)
        made.state = state


def _two(machine: Machine, _argument) -> None:
    name, module = machine.pop(), machine.pop()
    machine.ask(module, name)


def _pairs(machine: Machine, _argument) -> None:
    value, key = machine.pop(), machine.pop()
    machine.update([key, value])


def _tuple(count: int) -> Callable:
    def act(machine: Machine, _argument) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.push(tuple(reversed(values)))

    return act


def _literal(value) -> Callable:
    return lambda machine, _argument: machine.push(value)


# What each opcode does; those that are not here are refused.
_ACTS: dict[str, Callable[[Machine, object], object]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, argument: None),
    **dict.fromkeys(
        ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE",
         "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        lambda machine, argument: machine.push(argument),
    ),
    "NONE": _literal(None),
    "NEWTRUE": _literal(True),
    "NEWFALSE": _literal(False),
    "MARK": _literal(MARK),
    "EMPTY_TUPLE": _literal(()),
    "EMPTY_LIST": lambda machine, argument: machine.push([]),
    "EMPTY_DICT": lambda machine, argument: machine.push({}),
    "LIST": lambda machine, argument: machine.push(machine.since_mark()),
    "TUPLE": lambda machine, argument: machine.push(tuple(machine.since_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": lambda machine, argument: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, argument: machine.extend(machine.since_mark()),
    "SETITEM": _pairs,
    "SETITEMS": lambda machine, argument: machine.update(machine.since_mark()),
    "MEMOIZE": lambda machine, argument: machine.remember(len(machine._memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda machine, argument: machine.remember(argument)),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"), lambda machine, argument: machine.push(machine._memo[argument])
    ),
    "GLOBAL": lambda machine, argument: machine.ask(*argument.split(" ", 1)),
    "STACK_GLOBAL": _two,
    "REDUCE": lambda machine, argument: machine.call(),
    "NEWOBJ": lambda machine, argument: machine.new(),
    "BUILD": lambda machine, argument: machine.build(),
}  # fmt: skip

_NAMES = {
    "collections.OrderedDict": "OrderedDict",
    "builtins.tuple": "tuple",
    "__builtin__.bytes": "bytes",
    "__builtin__.tuple": "tuple",
    "_codecs.encode": "encode",
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "paddle.base.libpaddle.GeneratorState": "GeneratorState",
    **{
        f"numpy.{core}.multiarray.{name}": name
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    },
}


def _ordered(arguments: tuple) -> dict:
    if arguments:
        raise UserError(DAMAGED)
    return {}


def _no_bytes(arguments: tuple) -> bytes:
    if arguments:
        raise UserError(DAMAGED)
    return b""


def _tuple_of(arguments: tuple) -> tuple:
    (values,) = arguments
    if type(values) not in (tuple, list):
        raise UserError(DAMAGED)
    return tuple(values)


def _encode(arguments: tuple) -> bytes:
    text, encoding = arguments
    if type(text) is not str or encoding != "latin1":
        raise Refused(f"asks for text in the encoding {encoding!r:.40}; bytes are written as latin1")
    return text.encode("latin1")


def _dtype_of(arguments: tuple) -> Made:
    code = arguments[0]
    if type(code) is not str or not _DTYPE.fullmatch(code):
        raise Refused(f"asks for an array of dtype {code!r:.40}; numbers and truth values are read")
    return Made("dtype", (code,))


def _reconstruct(arguments: tuple) -> Made:
    if arguments[0] != Name("ndarray"):
        raise Refused("asks for an array of a class of its own")
    return Made("array", ())  # the shape here is a dummy; BUILD has the real one


_CALLS: dict[str, Callable[[tuple], object]] = {
    "OrderedDict": _ordered,
    "tuple": _tuple_of,
    "encode": _encode,
    "bytes": _no_bytes,
    "dtype": _dtype_of,
    "_reconstruct": _reconstruct,
    "scalar": lambda arguments: Made("scalar", arguments),
}
