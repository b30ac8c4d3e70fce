"""Files of paddle.save are read as plain data: what Paddle writes, and nothing else."""

import io
import os
import pickle
import struct
import tracemalloc
from collections import OrderedDict

import numpy as np
import paddle
import pytest
from mutations import mutations

from llm_npu.core.untrusted import pickle_machine, plain_pickle

MEBIBYTE = 1 << 20


def training_state():
    """What PaddleNLP writes: parameters, the state of an optimizer with its schedule, loose objects."""
    paddle.seed(3)
    layer = paddle.nn.Linear(3, 4)
    schedule = paddle.optimizer.lr.NoamDecay(d_model=100, warmup_steps=100)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=layer.parameters())
    layer(paddle.ones([2, 3])).sum().backward()
    optimizer.step()
    rng = {"python": (3, (1, 2), None), "numpy": np.random.get_state(), "half": np.float16(1.5)}
    return {
        "parameters": layer.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loose": {"a": [1, 2.5, None, True, "text"], "tensor": layer.weight, "b": {1: (2,)}},
        "tensor": layer.bias,
        "ordered": OrderedDict(big=2**70, array=np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        "rng": rng,
        "bfloat16": {"w": paddle.ones([2]).astype("bfloat16")},
        "empty": {"w": paddle.zeros([0, 3])},
    }


def equal(one, other):
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in other)
    if isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return one == other and type(one) is type(other)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("part", training_state())
def test_what_paddle_writes_is_read_as_paddle_reads_it(tmp_path, part, protocol):
    file = tmp_path / "state.pdparams"
    paddle.save(training_state()[part], str(file), protocol=protocol)
    theirs = paddle.load(str(file), return_numpy=True)
    assert equal(plain_pickle.load(file), theirs)
    assert equal(plain_pickle.load(file, trust=True), theirs)


def test_slices_of_big_arrays_are_put_together(tmp_path):
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    about = {"w": {"OriginShape": (3, 4), "slices": ["w@@.0", "w@@.1"]}}
    parts = {"w@@.0": whole.ravel()[:7], "w@@.1": whole.ravel()[7:]}
    file = tmp_path / "big.pdparams"
    file.write_bytes(
        pickle.dumps(parts | {plain_pickle.SLICES: about, plain_pickle.NAMES: {"w": "linear_0.w"}}, 2)
    )
    assert equal(plain_pickle.load(file), {"w": whole})


class Calls:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Marked(np.ndarray):
    pass


def called(function, *arguments):
    return pickle.dumps({"w": [1, {"inner": Calls(function, *arguments)}]}, 4)


def text(content):
    return b"X" + struct.pack("<I", len(content)) + content.encode()


def array(shape, after_dtype=b"", content=bytes(4)):
    """An array of dtype f4 by hand: ``shape`` and what follows the dtype as opcodes."""
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    dtype = b"cnumpy\ndtype\n(" + text("f4") + b"\x89\x88tR" + after_dtype
    return (
        b"\x80\x02" + made + b"(K\x01" + shape + dtype + b"\x89C" + bytes([len(content)]) + content + b"tb."
    )


def looping():
    inner = []
    inner.append({"again": inner})
    return pickle.dumps(inner, 4)


def laughing():
    """40 lists, each the one before twice: 2^40 parts."""
    found = []
    for _ in range(40):
        found = [found, found]
    return pickle.dumps(found, 4)


def same_slices():
    """A thousand slices, all the same megabyte of the file."""
    part = np.zeros(MEBIBYTE, np.uint8)
    about = {"w": {"OriginShape": (1000 * MEBIBYTE,), "slices": [f"w{i}" for i in range(1000)]}}
    return pickle.dumps({f"w{i}": part for i in range(1000)} | {plain_pickle.SLICES: about}, 4)


HUGE = b"\x8a\x06" + (10**12).to_bytes(6, "little")
REFUSED = {
    "system": (called(os.system, "touch HERE"), "posix.system"),
    "eval": (called(eval, "open('HERE', 'w')"), "builtins.eval"),
    "getattr": (b"cbuiltins\ngetattr\n(cos\nsystem\ntR.", "builtins.getattr"),
    "import": (b"\x80\x04\x8c\x0cnumpy.ctypes\x8c\x04load\x93.", "numpy.ctypes.load"),
    "dotted": (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "ndarray.tofile"),
    "load": (b"cnumpy\nload\n(Vx\ntR.", "numpy.load"),
    "instance": (b"(Vtouch HERE\nios\nsystem\n.", "INST"),
    "object": (b"(cos\nsystem\nVtouch HERE\no.", "os.system"),
    "extension": (b"\x80\x02\x82\x01.", "EXT1"),
    "persistent": (b"Pmodule\n.", "PERSID"),
    "new class": (b"\x80\x02ccollections\nCounter\n)\x81.", "collections.Counter"),
    "objects": (pickle.dumps(np.array([{}], dtype=object), 4), "'O8'"),
    "structure": (pickle.dumps(np.zeros(2, "i4,f4"), 4), "'V8'"),
    "fields": (array(b"K\x01\x85", b"(K\x03V<\nN(Vx\ntNtb"), "structures"),
    "subclass": (pickle.dumps(np.zeros(3).view(Marked), 4), "test_plain_pickle.Marked"),
    "encoding": (b"\x80\x02c_codecs\nencode\n" + text("x") + text("zlib") + b"\x86R.", "zlib"),
    "dense tensor": (called(eval, "data", {"data": 1}), "builtins.eval"),
    "huge shape": (array(HUGE + b"\x85"), "not as many"),
    "huge shapes": (array(HUGE * 3 + b"\x87"), "not as many"),
    "negative shape": (array(b"J" + b"\xff" * 4 + b"\x85"), "shape is none"),
    "no state": (array(b"K\x01\x85").split(b"(K\x01")[0] + b".", "damaged"),
    "bare name": (b"cnumpy\nndarray\n.", "fit together"),
    "claims of bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 45) + b"few.", "bytes"),
    "claims of text": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"few.", "bytes|sys.maxsize"),
    "far memo": (b"\x80\x02]r\xff\xff\xff\xff" + b"h\x00.", "damaged"),
    "loop": (looping(), "nested"),
    "laughs": (laughing(), "nested"),
    "deep": (b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".", "nested"),
    "deep tuples": (b"\x80\x02)" + b"\x85" * 50_000 + b".", "nested"),
    "slices": (same_slices(), "more than itself"),
    "unhashable": (b"\x80\x02}]]s.", "key that is a list"),
    "cut off": (pickle.dumps({"w": np.arange(9.0)}, 4)[:-30], "bytes"),
    "no end": (b"\x80\x02]", "STOP"),
    "empty": (b"", "empty"),
    "too few": (b"a.", "damaged"),
    "nothing": (b".", "damaged"),
    "no pickle": (b"PK\x03\x04" + bytes(99), "damaged"),
    "long number": (b"L" + b"9" * 100_000 + b"L\n.", "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_anything_else_is_refused_and_does_nothing(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    content, words = REFUSED[kind]
    file = tmp_path / "state.pdparams"
    file.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"state\.pdparams.*({words})"):
            plain_pickle.load(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < max(16, 100 * len(content) / MEBIBYTE) * MEBIBYTE
    assert [path.name for path in tmp_path.iterdir()] == ["state.pdparams"]


def test_objects_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle_machine, "MOST_STEPS", 1000)
    file = tmp_path / "state.pdparams"
    file.write_bytes(b"\x80\x02" + b"]" * 1001 + b".")
    with pytest.raises(ValueError, match="more than 1,000 objects"):
        plain_pickle.load(file)


def test_trust_runs_what_stands_in_the_file(tmp_path):
    file = tmp_path / "state.pdparams"
    file.write_bytes(called(os.mkdir, str(tmp_path / "made")))
    with pytest.raises(ValueError, match=r"asks for posix\.mkdir.*--trust_checkpoint"):
        plain_pickle.load(file)
    assert not (tmp_path / "made").exists()
    assert plain_pickle.load(file, trust=True) == {"w": [1, {"inner": None}]}
    assert (tmp_path / "made").is_dir()


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_files_are_read_or_refused(tmp_path, count):
    buffer = io.BytesIO()
    state = {"w": paddle.ones([3, 4]), "s": [1, "text", None, {"x": 2.5}], "rng": np.random.get_state()}
    paddle.save(state, buffer, protocol=4)
    file, refused = tmp_path / "state.pth", 0
    for damaged in mutations(buffer.getvalue(), count):
        file.write_bytes(damaged)
        try:
            plain_pickle.load(file)
        except ValueError:
            refused += 1
    assert refused
