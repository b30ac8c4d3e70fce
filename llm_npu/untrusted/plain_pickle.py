"""What ``paddle.save`` wrote (.pdparams, .pdopt, .pth), read without running what stands in it.

A pickle is a program for a stack machine, which may call any function by its name. Here the program is
followed by a machine that knows plain data only: None, truth values, numbers, text, bytes, lists, tuples,
dicts and numpy arrays. It has no way to call anything. Of the names that ``paddle.save`` asks for

    collections.OrderedDict, builtins.tuple, builtins.bytes, _codecs.encode
    numpy.core.multiarray._reconstruct, numpy.core.multiarray.scalar, numpy.ndarray, numpy.dtype
    paddle.base.libpaddle.GeneratorState

each stands for one fixed construction, done here; any other name is refused. Arrays are views of bytes in the
file, so that a shape takes no memory which the file does not hold.
"""

from __future__ import annotations

import math
import mmap
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MOST_STEPS = 2_000_000  # of the machine: some 200 MB of objects; 70,000 arrays need as many
MOST_COPIES = 16  # of what is there once, such as the shape of many arrays, for each step
DEEPEST = 64
NAMES = "StructuredToParameterName@@"  # beside the parameters of a Layer: their names in Paddle
SLICES = "UnpackBigParamInfor@@"  # protocols 2 and 3: arrays above 1 GiB stand in slices
_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16)")
_DAMAGED = "what stands in it does not fit together"
_MARK = object()


class _Refused(ValueError):
    """It may be a good pickle, but not of plain data."""


@dataclass(frozen=True)
class _Name:
    """A function or class that the pickle asks for."""

    name: str


@dataclass
class _Made:
    """What a name has made of its arguments; ``state`` came later."""

    name: str
    arguments: tuple
    state: object = None


def load(file: str | Path, trust: bool = False):
    """The object in ``file`` with arrays for tensors, as ``paddle.load(file, return_numpy=True)`` gives it.

    A ``GeneratorState`` comes as {"device", "seed", "offset", "engine"}. ``trust``: let Paddle unpickle it,
    which runs whatever the file says. ValueError for a file that is no pickle, that is damaged, and that asks
    for anything but plain data, with what it asks for.
    """
    if trust:
        return _as_plain(_paddle_load(file))
    try:
        with Path(file).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _tensors(_Machine(data).run(), len(data))
    except _Refused as error:
        raise ValueError(
            f"{file} {error}. If you trust whoever wrote it with this machine, --trust_checkpoint runs what "
            "stands in it."
        ) from None
    except ValueError as error:
        raise ValueError(f"{file} cannot be read, it is damaged or no pickle: {error}") from None
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError):
        raise ValueError(f"{file} cannot be read: its pickle is damaged") from None


class _Machine:
    """Follows the pickle in ``data``, a file or memory map."""

    def __init__(self, data):
        self._data = data
        self._stack: list = []
        self._memo: dict[int, object] = {}

    def run(self):
        for step, (opcode, argument, position) in enumerate(pickletools.genops(self._data)):
            if step > MOST_STEPS:
                raise ValueError(f"it has more than {MOST_STEPS:,} objects")
            act = _ACTS.get(opcode.name)
            if act is None:
                raise _Refused(f"asks for {opcode.name} at byte {position}, which plain data do not need")
            act(self, argument)
        return _Plain(1000 + MOST_COPIES * step).of(self._stack.pop())

    # what the opcodes do

    def push(self, value) -> None:
        self._stack.append(value)

    def pop(self):
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError(_DAMAGED)
        return value

    def since_mark(self) -> list:
        found = []
        while (value := self._stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def remember(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def top(self, kind: type):
        value = self._stack[-1]
        if type(value) is not kind:
            raise ValueError(_DAMAGED)
        return value

    def extend(self, values: list) -> None:
        self.top(list).extend(values)

    def update(self, flat: list) -> None:
        if len(flat) % 2:
            raise ValueError(_DAMAGED)
        target = self.top(dict)
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if type(key) not in (str, int):
                raise ValueError(
                    f"it has a key that is a {type(key).__name__}; keys are text or whole numbers"
                )
            target[key] = value

    def ask(self, module: object, name: object) -> None:
        asked = f"{module}.{name}"
        if asked not in _NAMES:
            raise _Refused(f"asks for {asked}, which is not plain data but may run code")
        self.push(_Name(_NAMES[asked]))

    def call(self) -> None:
        arguments, called = self.pop(), self.pop()
        if not isinstance(called, _Name) or type(arguments) is not tuple:
            raise ValueError(_DAMAGED)
        self.push(_CALLS[called.name](arguments))

    def new(self) -> None:
        arguments, called = self.pop(), self.pop()
        if called != _Name("GeneratorState") or arguments != ():
            raise ValueError(_DAMAGED)
        self.push(_Made("GeneratorState", ()))

    def build(self) -> None:
        state = self.pop()
        made = self.top(_Made)
        if made.state is not None or made.name == "scalar":
            raise ValueError(_DAMAGED)
        made.state = state


def _two(machine: _Machine, _argument) -> None:
    name, module = machine.pop(), machine.pop()
    machine.ask(module, name)


def _pairs(machine: _Machine, _argument) -> None:
    value, key = machine.pop(), machine.pop()
    machine.update([key, value])


def _tuple(count: int) -> Callable:
    def act(machine: _Machine, _argument) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.push(tuple(reversed(values)))

    return act


def _literal(value) -> Callable:
    return lambda machine, _argument: machine.push(value)


# What each opcode does; those that are not here are refused.
_ACTS: dict[str, Callable[[_Machine, object], object]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, argument: None),
    **dict.fromkeys(
        ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE",
         "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        lambda machine, argument: machine.push(argument),
    ),
    "NONE": _literal(None),
    "NEWTRUE": _literal(True),
    "NEWFALSE": _literal(False),
    "MARK": _literal(_MARK),
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
        raise ValueError(_DAMAGED)
    return {}


def _no_bytes(arguments: tuple) -> bytes:
    if arguments:
        raise ValueError(_DAMAGED)
    return b""


def _tuple_of(arguments: tuple) -> tuple:
    (values,) = arguments
    if type(values) not in (tuple, list):
        raise ValueError(_DAMAGED)
    return tuple(values)


def _encode(arguments: tuple) -> bytes:
    text, encoding = arguments
    if type(text) is not str or encoding != "latin1":
        raise _Refused(f"asks for text in the encoding {encoding!r:.40}; bytes are written as latin1")
    return text.encode("latin1")


def _dtype_of(arguments: tuple) -> _Made:
    code = arguments[0]
    if type(code) is not str or not _DTYPE.fullmatch(code):
        raise _Refused(f"asks for an array of dtype {code!r:.40}; numbers and truth values are read")
    return _Made("dtype", (code,))


def _reconstruct(arguments: tuple) -> _Made:
    if arguments[0] != _Name("ndarray"):
        raise _Refused("asks for an array of a class of its own")
    return _Made("array", ())  # the shape here is a dummy; BUILD has the real one


_CALLS: dict[str, Callable[[tuple], object]] = {
    "OrderedDict": _ordered,
    "tuple": _tuple_of,
    "encode": _encode,
    "bytes": _no_bytes,
    "dtype": _dtype_of,
    "_reconstruct": _reconstruct,
    "scalar": lambda arguments: _Made("scalar", arguments),
}


class _Plain:
    """The object that a machine has built, with arrays in place of what stood for them.

    A copy as a tree of up to ``parts`` parts: what is in itself is too deep, and what repeats itself over and
    over has too many.
    """

    def __init__(self, parts: int):
        self._left = parts

    def of(self, value, depth: int = 0):
        self._left -= 1
        if depth > DEEPEST or not self._left:
            raise ValueError("it is nested in itself, or too deeply")
        if type(value) is dict:
            return {key: self.of(each, depth + 1) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)([self.of(each, depth + 1) for each in value])
        if isinstance(value, _Made):
            return _MAKERS[value.name](value)
        if value is _MARK or isinstance(value, _Name):
            raise ValueError(_DAMAGED)
        return value


def _array(made: _Made) -> np.ndarray:
    _version, shape, dtype, by_columns, content = made.state
    kind = _kind(dtype)
    if (
        type(shape) is not tuple
        or len(shape) > 32
        or any(type(size) is not int or not 0 <= size < 1 << 63 for size in shape)
    ):
        raise ValueError("it has an array whose shape is none")
    if type(content) is not bytes or len(content) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"it has an array of shape {list(shape)[:8]} whose bytes are not as many")
    return np.frombuffer(content, kind).reshape(shape, order="F" if by_columns is True else "C")


def _scalar(made: _Made):
    dtype, content = made.arguments
    kind = _kind(dtype)
    if type(content) is not bytes or len(content) != kind.itemsize:
        raise ValueError("it has a number whose bytes are not as many as its dtype needs")
    return np.frombuffer(content, kind)[0]


def _kind(made) -> np.dtype:
    if not isinstance(made, _Made) or made.name != "dtype":
        raise ValueError("it has an array without a dtype")
    kind = np.dtype(made.arguments[0])
    if made.state is None:
        return kind
    _version, order, *rest = made.state
    if order not in ("<", ">", "|", "=") or rest[:3] != [None, None, None]:  # fields of a structure
        raise _Refused("has an array of structures; numbers and truth values are read")
    return kind.newbyteorder(order)


def _generator(made: _Made) -> dict:
    device, seed, offset, engine = made.state
    if not all(type(number) is int for number in (device, seed, offset)) or type(engine) is not list:
        raise ValueError("it has a random number generator whose state is none")
    return {"device": device, "seed": seed, "offset": offset, "engine": bytes(engine).decode("ascii")}


_MAKERS: dict[str, Callable[[_Made], object]] = {
    "array": _array,
    "scalar": _scalar,
    "dtype": _kind,
    "GeneratorState": _generator,
}


def _tensors(found, size: int):
    """As ``paddle.load`` has it: big arrays put together, names left away. ``size``: bytes of the file."""
    if type(found) is dict and SLICES in found:
        found = _whole(found, size)
    if type(found) is dict and NAMES in found:
        return {key: value for key, value in found.items() if key != NAMES}
    return _unnamed(found)


def _whole(found: dict, size: int) -> dict:
    for name, about in found.pop(SLICES).items():
        parts = [found.pop(part) for part in about["slices"]]  # KeyError for one that is there twice
        size -= sum(part.nbytes for part in parts)
        if size < 0:  # several parts are the same bytes of the file
            raise ValueError("its slices are more than itself")
        found[name] = np.concatenate(parts).reshape(about["OriginShape"])
    return found


def _unnamed(value):
    """(name, array), a tensor, -> array."""
    if type(value) is dict:
        return {key: _unnamed(each) for key, each in value.items()}
    if (
        type(value) is tuple
        and len(value) == 2
        and type(value[0]) is str
        and isinstance(value[1], np.ndarray)
    ):
        return value[1]
    if type(value) in (list, tuple):
        return type(value)([_unnamed(each) for each in value])
    return value


def _paddle_load(file: str | Path):
    import paddle

    return paddle.load(str(file), return_numpy=True)


def _as_plain(value):
    if isinstance(value, dict):
        return {key: _as_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_as_plain(each) for each in value])
    if type(value).__name__ == "GeneratorState":
        device, seed, offset, engine = value.__getstate__()
        return {"device": device, "seed": seed, "offset": offset, "engine": bytes(engine).decode("ascii")}
    return value
