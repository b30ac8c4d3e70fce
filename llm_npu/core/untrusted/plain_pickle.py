"""Reads files of ``paddle.save`` (.pdparams, .pdopt, .pth) without running code in them.

A pickle is a program for a stack machine, and may call any function by name. Here a machine executes it that
knows plain data only: None, truth values, numbers, text, bytes, lists, tuples, dicts and numpy arrays. It
cannot call anything. Of the names that ``paddle.save`` uses

    collections.OrderedDict, builtins.tuple, builtins.bytes, _codecs.encode
    numpy.core.multiarray._reconstruct, numpy.core.multiarray.scalar, numpy.ndarray, numpy.dtype
    paddle.base.libpaddle.GeneratorState

each stands for one fixed construction, done here; any other name is refused. Arrays are views of bytes in the
file, so that a shape takes no memory which the file does not hold.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError

from .pickle_machine import DAMAGED, MARK, Machine, Made, Name, Refused

MOST_COPIES = 16  # of what is there once, such as the shape of many arrays, for each step
DEEPEST = 64
NAMES = "StructuredToParameterName@@"  # beside the parameters of a Layer: their names in Paddle
SLICES = "UnpackBigParamInfor@@"  # protocols 2 and 3: arrays above 1 GiB stand in slices


def load(file: str | Path, trust: bool = False):
    """The object in ``file`` with arrays for tensors, as ``paddle.load(file, return_numpy=True)`` gives it.

    A ``GeneratorState`` comes as {"device", "seed", "offset", "engine"}. ``trust``: let Paddle unpickle it,
    which runs any code in the file. UserError for a file that is not a pickle, that is damaged, or that asks
    for more than plain data, with what it asks for.
    """
    if trust:
        return _as_plain(_paddle_load(file))
    try:
        with Path(file).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            built, steps = Machine(data).run()
            return _tensors(_Plain(1000 + MOST_COPIES * steps).of(built), len(data))
    except Refused as error:
        raise UserError(
            f"{file} {error}. If you trust whoever wrote it with this machine, --trust_checkpoint runs what "
            "stands in it."
        ) from None
    except ValueError as error:
        raise UserError(f"{file} cannot be read, it is damaged or no pickle: {error}") from None
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError):
        raise UserError(f"{file} cannot be read: its pickle is damaged") from None


class _Plain:
    """The object that a machine has built, with arrays in place of their stand-ins.

    It is copied as a tree of at most ``parts`` parts: objects that contain themselves are too deep, and
    objects with too many repetitions have too many parts.
    """

    def __init__(self, parts: int):
        self._left = parts

    def of(self, value, depth: int = 0):
        self._left -= 1
        if depth > DEEPEST or not self._left:
            raise UserError("it is nested in itself, or too deeply")
        if type(value) is dict:
            return {key: self.of(each, depth + 1) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)([self.of(each, depth + 1) for each in value])
        if isinstance(value, Made):
            return _MAKERS[value.name](value)
        if value is MARK or isinstance(value, Name):
            raise UserError(DAMAGED)
        return value


def _array(made: Made) -> np.ndarray:
    _version, shape, dtype, by_columns, content = made.state
    kind = _kind(dtype)
    if (
        type(shape) is not tuple
        or len(shape) > 32
        or any(type(size) is not int or not 0 <= size < 1 << 63 for size in shape)
    ):
        raise UserError("it has an array whose shape is none")
    if type(content) is not bytes or len(content) != math.prod(shape) * kind.itemsize:
        raise UserError(f"it has an array of shape {list(shape)[:8]} whose bytes are not as many")
    return np.frombuffer(content, kind).reshape(shape, order="F" if by_columns is True else "C")


def _scalar(made: Made):
    dtype, content = made.arguments
    kind = _kind(dtype)
    if type(content) is not bytes or len(content) != kind.itemsize:
        raise UserError("it has a number whose bytes are not as many as its dtype needs")
    return np.frombuffer(content, kind)[0]


def _kind(made) -> np.dtype:
    if not isinstance(made, Made) or made.name != "dtype":
        raise UserError("it has an array without a dtype")
    kind = np.dtype(made.arguments[0])
    if made.state is None:
        return kind
    _version, order, *rest = made.state
    if order not in ("<", ">", "|", "=") or rest[:3] != [None, None, None]:  # fields of a structure
        raise Refused("has an array of structures; numbers and truth values are read")
    return kind.newbyteorder(order)


def _generator(made: Made) -> dict:
    device, seed, offset, engine = made.state
    if not all(type(number) is int for number in (device, seed, offset)) or type(engine) is not list:
        raise UserError("it has a random number generator whose state is none")
    return {"device": device, "seed": seed, "offset": offset, "engine": bytes(engine).decode("ascii")}


_MAKERS: dict[str, Callable[[Made], object]] = {
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
            raise UserError("its slices are more than itself")
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
