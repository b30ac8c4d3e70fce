"""Parts of tensors: where they stand in the upstream tensors, and how they get into files and out of them."""

import errno
import itertools

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddlenlp.transformers import LlamaConfig
from safetensors.numpy import load_file

from llm_npu.core.tensor_file import Reader, TensorSpec, Writer, create, places
from llm_npu.models import layout
from llm_npu.training.checkpoint import complete, saving, tensors, write_plan
from llm_npu.training.checkpoint import folder as folders

pytestmark = pytest.mark.sampled

CONFIG = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, hidden_size=8)


class Shape:
    """What ``layout`` asks of a parameter that nothing splits."""

    def __init__(self, *shape):
        self.shape = shape

    def is_dist(self):
        return False


def blocks(name, *shape):
    return layout.blocks(name, Shape(*shape), CONFIG)[1]


def upstream(blocks_given, array):
    """{name: array} that the blocks of ``array`` make; every element is set once."""
    upstream_tensors, times = {}, {}
    for block in blocks_given:
        whole = upstream_tensors.setdefault(block.name, np.zeros(block.shape, array.dtype))
        count = times.setdefault(block.name, np.zeros(block.shape, int))
        whole[block.box] = block.of(array)
        count[block.box] += 1
    return upstream_tensors, times


def test_a_fused_projection_is_three_upstream_tensors():
    size, hidden = 2, 3  # K = 2 key/value heads, G = 2 query heads for each
    array = np.arange(hidden * 16.0).reshape(hidden, 16)
    upstream_tensors, times = upstream(blocks("model.layers.0.self_attn.qkv_proj.weight", hidden, 16), array)
    heads = array.T.reshape(2, 4, size, hidden)
    prefix = "model.layers.0.self_attn."
    assert upstream_tensors.keys() == {f"{prefix}{part}_proj.weight" for part in "qkv"}
    assert (upstream_tensors[f"{prefix}q_proj.weight"] == heads[:, :2].reshape(8, hidden)).all()
    assert (upstream_tensors[f"{prefix}k_proj.weight"] == heads[:, 2].reshape(4, hidden)).all()
    assert (upstream_tensors[f"{prefix}v_proj.weight"] == heads[:, 3].reshape(4, hidden)).all()
    assert all((count == 1).all() for count in times.values())


def test_biases_and_embeddings_are_not_transposed():
    array = np.arange(16.0)
    upstream_tensors, _ = upstream(blocks("model.layers.0.self_attn.qkv_proj.bias", 16), array)
    # G = 2 query heads of size 2, a key, a value; twice
    assert upstream_tensors["model.layers.0.self_attn.k_proj.bias"].tolist() == [4, 5, 12, 13]
    table = np.arange(6.0).reshape(3, 2)
    upstream_tensors, _ = upstream(blocks("model.embed_tokens.weight", 3, 2), table)
    assert (upstream_tensors["model.embed_tokens.weight"] == table).all()
    upstream_tensors, _ = upstream(blocks("model.layers.0.mlp.down_proj.weight", 3, 2), table)
    assert (upstream_tensors["model.layers.0.mlp.down_proj.weight"] == table.T).all()


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(
        ["self_attn.qkv_proj.weight", "mlp.gate_up_fused_proj.weight", "mlp.down_proj.weight"]
    ),
    rows=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 80), max_size=4),
)
def test_slices_of_the_elements_are_the_whole_together(name, rows, cuts):
    shape = (rows, 16)
    array = np.arange(rows * 16.0).reshape(shape) + 1
    slices = blocks(f"model.layers.0.{name}", *shape)
    edges = sorted({0, rows * 16, *(min(cut, rows * 16) for cut in cuts)})
    pieces = [
        block
        for begin, end in itertools.pairwise(edges)
        for block in layout.clipped(slices, shape, begin, end)
    ]
    upstream_tensors, times = upstream(pieces, array)
    wanted, _ = upstream(slices, array)
    assert all((count == 1).all() for count in times.values())
    assert all((upstream_tensors[part] == wanted[part]).all() for part in wanted)


def test_a_slice_has_its_own_elements_only():
    shape, begin, end = (4, 6), 5, 17
    array = np.arange(24.0).reshape(shape)
    pieces = layout.clipped(blocks("model.layers.0.mlp.down_proj.weight", *shape), shape, begin, end)
    seen = np.concatenate([piece.of(array).ravel() for piece in pieces])
    assert sorted(seen) == list(range(begin, end))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), shape=st.lists(st.integers(1, 5), max_size=3))
def test_parts_are_written_where_they_belong(tmp_path_factory, data, shape):
    file = tmp_path_factory.mktemp("parts") / "parts.safetensors"
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    create(file, {"a": TensorSpec("float32", tuple(shape)), "b": TensorSpec("bfloat16", (3,))})
    axis = data.draw(st.integers(0, len(shape) - 1)) if shape else None
    edges = [None, None]
    if shape:
        edges = sorted({0, shape[axis], data.draw(st.integers(0, shape[axis]))})
    writer = Writer(file)
    for begin, end in itertools.pairwise(edges):
        index = tuple(slice(begin, end) if dim == axis else slice(None) for dim in range(len(shape)))
        offset = tuple(begin if dim == axis else 0 for dim in range(len(shape)))
        writer.write("a", offset, array[index])
    writer.write("b", (1,), np.array([7, 8], np.uint16))
    writer.close()
    stored = Reader([file])
    assert (stored["a"] == array).all() and stored["a"].shape == array.shape
    assert stored["b"].tolist() == [0, 7, 8]


def test_other_readers_read_the_file(tmp_path):
    file = tmp_path / "some.safetensors"
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.ones(3, np.float16),
        "c": np.ones((), np.int64),
    }
    create(file, {name: TensorSpec(str(array.dtype), array.shape) for name, array in arrays.items()})
    writer = Writer(file)
    for name, array in arrays.items():
        writer.write(name, (0,) * array.ndim, array)
    writer.close()
    loaded = load_file(file)
    assert loaded.keys() == arrays.keys()
    assert all((loaded[name] == array).all() for name, array in arrays.items())
    assert all(place.begin % place.dtype.itemsize == 0 for place in places(file).values())


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 8, b"not a header at all", (2).to_bytes(8, "little") + b"[]"]
)
def test_what_is_no_safetensors_file_is_named(tmp_path, content):
    file = tmp_path / "bad.safetensors"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.safetensors cannot be read"):
        places(file)


def test_large_models_are_several_files_with_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(write_plan, "LARGEST", 100)
    named = {f"w{number}": paddle.full([4, 4], number, "float32") for number in range(3)}
    held = {"model": tensors.of_parameters(named, None)}
    saving.Checkpoints(tmp_path).save(1, held)
    (folder,) = complete(tmp_path)
    assert sorted(file.name for file in folder.glob("model*")) == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    from llm_npu.models.stored import Stored

    stored = Stored(folder)
    assert {name: float(stored[name][0, 0]) for name in stored} == {"w0": 0.0, "w1": 1.0, "w2": 2.0}
    for tensor in named.values():
        tensor.set_value(paddle.zeros([4, 4]))
    tensors.load(folder, "model", held["model"])
    assert [float(tensor[0, 0]) for tensor in named.values()] == [0.0, 1.0, 2.0]


def test_what_a_checkpoint_lacks_is_named(tmp_path):
    held = tensors.of_parameters({"a": paddle.ones([2, 3])}, None)
    saving.Checkpoints(tmp_path).save(1, {"model": held})
    (folder,) = complete(tmp_path)
    with pytest.raises(ValueError, match="lacks b"):
        tensors.load(folder, "model", tensors.of_parameters({"b": paddle.ones([1])}, None))
    with pytest.raises(ValueError, match=r"a of shape \[2, 3\], .* \[3, 2\]"):
        tensors.load(folder, "model", tensors.of_parameters({"a": paddle.ones([3, 2])}, None))


def test_values_change_after_the_copy_that_is_written_behind(tmp_path):
    tensor = paddle.ones([1000, 1000])
    held = {"model": tensors.of_parameters({"a": tensor}, None)}
    checkpoints = saving.Checkpoints(tmp_path, async_save=True)
    assert checkpoints.save(1, held) == []
    tensor.set_value(paddle.zeros([1000, 1000]))
    (saved,) = checkpoints.finish()
    assert saved.step == 1 and 0 < saved.stall <= saved.seconds
    tensors.load(complete(tmp_path)[0], "model", held["model"])
    assert float(tensor.min()) == 1.0


def test_at_most_one_checkpoint_is_on_its_way(tmp_path):
    held = {"model": tensors.of_parameters({"a": paddle.ones([1000, 1000])}, None)}
    checkpoints = saving.Checkpoints(tmp_path, keep=2, async_save=True)
    done = [saved.step for step in range(1, 5) for saved in checkpoints.save(step, held)]
    done += [saved.step for saved in checkpoints.finish()]
    assert done == [1, 2, 3, 4]
    assert [folder.name for folder in complete(tmp_path)] == ["checkpoint-3", "checkpoint-4"]


def test_parts_that_overlap_are_refused():
    """As many elements as the tensor has, but row 1 twice and row 3 not at all."""

    def held(*rows):
        return {("model", "a", "float32", (4, 2), (first, 0), (2, 2)): [0] for first in rows}

    with pytest.raises(ValueError, match=r"\[0:2, 0:2\] and \[1:3, 0:2\] overlap"):
        write_plan.whole_tensors(held(0, 1))
    assert write_plan.whole_tensors(held(0, 2)) == {"model": {"a": TensorSpec("float32", (4, 2))}}


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 3), st.integers(1, 3)), min_size=1
    )
)
def test_overlaps_are_found(boxes):
    parts = [((row, column), (rows, columns)) for row, column, rows, columns in boxes]
    times = np.zeros((9, 9), int)
    for (row, column), (rows, columns) in parts:
        times[row : row + rows, column : column + columns] += 1
    assert (write_plan._overlapping(parts) is not None) == (times.max() > 1)
    assert write_plan._overlapping([((), ()), ((), ())]) and write_plan._overlapping([((), ())]) is None


def test_old_checkpoints_that_stay_do_not_fail_the_new_one(tmp_path, monkeypatch):
    def refuse(folder):
        raise OSError(errno.EBUSY, "busy", str(folder))

    held = {"model": tensors.of_parameters({"a": paddle.ones([3])}, None)}
    checkpoints = saving.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, held)
    monkeypatch.setattr(folders, "remove", refuse)
    with pytest.warns(UserWarning, match="cannot remove old checkpoints in .*: .*busy"):
        (saved,) = checkpoints.save(2, held)
    assert saved.step == 2 and [checkpoint_folder.name for checkpoint_folder in complete(tmp_path)] == [
        "checkpoint-1",
        "checkpoint-2",
    ]


def test_a_file_that_nobody_has_read_back_is_refused(tmp_path):
    with folders.staging_folder(tmp_path, 1) as folder:
        (folder / "a").write_text("a")
        files = folders.checksums(folder, ["a"])
        (folder / "late").write_text("b")
        with pytest.raises(OSError, match=r"no checksum was computed: .*late"):
            folders.commit(folder, folders.path_of(tmp_path, 1), files)
    assert complete(tmp_path) == []


def test_moments_are_named_after_the_upstream_tensors(tmp_path):
    layer = paddle.nn.Linear(3, 4)
    optimizer = paddle.optimizer.AdamW(parameters=layer.parameters())
    named = {"model.layers.0.mlp.gate_up_fused_proj.weight": layer.weight, "model.norm.weight": layer.bias}
    saving.Checkpoints(tmp_path).save(1, {"optimizer": tensors.of_optimizer(optimizer, named, CONFIG)})
    kinds = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
    stems = [f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up")] + ["model.norm.weight"]
    stored = load_file(complete(tmp_path)[0] / "optimizer.safetensors")
    assert stored.keys() == {f"{stem}.{kind}" for stem in stems for kind in kinds}
    assert stored["model.layers.0.mlp.up_proj.weight.moment1"].shape == (2, 3)
    assert stored["model.norm.weight.beta2_pow_acc"] == np.float32(0.999)
