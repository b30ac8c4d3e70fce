"""Parts of checkpoints on several disks: their names, what is made whole of them, and what is refused."""

import json

import numpy as np
import pytest

from llm_npu.core.errors import UserError
from llm_npu.core.ranks import Ranks
from llm_npu.core.tensor_file import Reader, TensorSpec, Writer, create
from llm_npu.training import checkpoint
from llm_npu.training.checkpoint import folder as folders
from llm_npu.training.checkpoint import gathering, write_plan
from llm_npu.training.checkpoint.__main__ import main, merge
from llm_npu.training.checkpoint.disks import Disks

pytestmark = pytest.mark.sampled

STEP = 4
WHOLE = {
    "lm_head.weight": np.arange(24, dtype=np.float32).reshape(6, 4),
    "norm.weight": np.arange(5, dtype=np.uint16),  # bfloat16
    "scale": np.array(7, dtype=np.int64),
}
DTYPES = {"lm_head.weight": "float32", "norm.weight": "bfloat16", "scale": "int64"}
# what each of two disks has: (tensor, its box)
OF_DISKS = (
    [("lm_head.weight", np.s_[0:3, 0:4]), ("lm_head.weight", np.s_[3:6, 2:4]), ("scale", ())],
    [("lm_head.weight", np.s_[3:6, 0:2]), ("norm.weight", np.s_[0:5])],
)


def piece(name, box):
    ranges = ", ".join(f"{extent.start}:{extent.stop}" for extent in box) if box else ""
    return f"{name} [{ranges}] of {list(WHOLE[name].shape)}"


def as_box(box):
    return box if isinstance(box, tuple) else (box,)


def part_file(file, held):
    specs, arrays = {}, {}
    for name, box in held:
        array = WHOLE[name][box]
        arrays[piece(name, as_box(box))] = array
        specs[piece(name, as_box(box))] = TensorSpec(DTYPES[name], array.shape)
    create(file, specs)
    writer = Writer(file)
    for name, array in arrays.items():
        writer.write(name, (0,) * array.ndim, array)
    writer.close()


@pytest.fixture
def disks(tmp_path):
    """The checkpoint's folder on each of two disks."""
    files, folders_of_disks = {}, []
    for number, held in enumerate(OF_DISKS, start=1):
        folder = tmp_path / str(number) / "staged"
        folder.mkdir(parents=True)
        part_file(folder / f"model.part-{number}-of-2.safetensors", held)
        (folder / f"rng_state_{number}.json").write_text(f"{number}\n")
        files |= folders.checksums(folder, folders.contents(folder))
        folders_of_disks.append(folder)
    finals = [folders.path_of(folder.parent, STEP) for folder in folders_of_disks]
    for folder, final in zip(folders_of_disks, finals, strict=True):
        folders.commit(folder, final, files)
    return finals


def test_merged_parts_are_whole_tensors(disks, tmp_path, capsys):
    assert main([*map(str, disks), "--output_dir", str(tmp_path / "merged")]) == 0
    folder = folders.path_of(tmp_path / "merged", STEP)
    assert str(folder) in capsys.readouterr().out
    assert checkpoint.verify(folder) == STEP
    assert folders.contents(folder) == [
        folders.MARK,
        "model.safetensors",
        "rng_state_1.json",
        "rng_state_2.json",
    ]
    reader = Reader([folder / "model.safetensors"])
    assert reader.keys() == WHOLE.keys()
    for name, array in WHOLE.items():
        np.testing.assert_array_equal(reader[name], array)


def test_large_parts_are_several_files_with_an_index(disks, tmp_path, monkeypatch):
    monkeypatch.setattr(write_plan, "LARGEST", 60)
    folder = merge(disks, tmp_path / "merged")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 2
    reader = Reader([folder / file for file in sorted(set(index["weight_map"].values()))])
    for name, array in WHOLE.items():
        np.testing.assert_array_equal(reader[name], array)


def test_what_is_missing_or_damaged_is_listed(disks, tmp_path):
    size = (disks[1] / "model.part-2-of-2.safetensors").stat().st_size
    (disks[1] / "model.part-2-of-2.safetensors").unlink()
    (disks[1] / "rng_state_2.json").write_text("3\n")
    with pytest.raises(UserError) as refused:
        merge(disks, tmp_path / "merged")
    assert str(refused.value).splitlines()[1:] == [
        f"  model.part-2-of-2.safetensors  {size} bytes  is missing",
        f"  rng_state_2.json  2 bytes  has a different SHA-256 in {disks[1]}",
    ]
    assert not (tmp_path / "merged").exists()


def refusal(disks, output_dir):
    with pytest.raises(UserError) as refused:
        merge(disks, output_dir)
    return str(refused.value)


def test_folders_that_do_not_belong_together(disks, tmp_path):
    marks = [disk / folders.MARK for disk in disks]
    content = json.loads(marks[1].read_text())
    marks[1].write_text(json.dumps(content | {"step": STEP + 1}))
    assert f"has step {STEP}, but" in refusal(disks, tmp_path / "merged")
    content["files"]["rng_state_2.json"]["sha256"] = "0" * 64
    marks[1].write_text(json.dumps(content))
    assert "written by different runs" in refusal(disks, tmp_path / "merged")
    marks[1].unlink()
    assert f"{disks[1]} has no {folders.MARK}" in refusal(disks, tmp_path / "merged")
    marks[1].write_bytes(marks[0].read_bytes())
    merge(disks, tmp_path / "merged")
    assert "exists already" in refusal(disks, tmp_path / "merged")


def test_parts_count_when_the_first_disk_has_the_mark(disks, tmp_path):
    (disks[1] / folders.MARK).rename(disks[1] / folders.PREPARED)
    assert checkpoint.complete(disks[1].parent) == []
    assert checkpoint.verify(merge(disks, tmp_path / "merged")) == STEP
    (disks[0] / folders.MARK).rename(disks[0] / folders.PREPARED)
    assert f"no folder has a {folders.MARK}" in refusal(disks, tmp_path / "again")
    checkpoint.clear(disks[1].parent)
    assert not disks[1].exists()


def test_parts_on_one_disk_are_made_whole_at_resume(disks):
    """As after somebody has copied all parts into one folder."""
    first, second = disks
    (second / "rng_state_2.json").rename(first / "rng_state_2.json")
    with pytest.raises(UserError, match=r"checkpoint-4 of step 4 is not complete") as refused:
        gathering.to_resume(True, first.parent, Disks.shared(Ranks()))
    assert "  model.part-2-of-2.safetensors  " in str(refused.value)
    (second / "model.part-2-of-2.safetensors").rename(first / "model.part-2-of-2.safetensors")
    assert gathering.to_resume("auto", first.parent, Disks.shared(Ranks())) == first
    assert checkpoint.verify(first) == STEP and (first / "model.safetensors").is_file()


def record(step, files, complete=True, present=()):
    return gathering.LocalCheckpoint(
        f"checkpoint-{step}", step, {name: {"bytes": 1} for name in files}, complete, present
    )


def test_a_checkpoint_is_what_a_mark_says():
    """Parts that no disk has marked as complete are none; the same step of two runs is two."""
    of_ranks = [
        [record(5, "ab", present=["a"]), record(10, "ab", present=["a"])],
        [],
        [record(5, "ab", present=["b"]), record(10, "cd"), record(15, "ab", complete=False)],
    ]
    listed = [
        (candidate.step, "".join(candidate.files), candidate.absent)
        for candidate in gathering._candidates(of_ranks)
    ]
    assert listed == [(10, "ab", 1), (10, "cd", 2), (5, "ab", 0)]
    prepared = [[record(5, "ab", complete=False)], [record(5, "ab")]]
    assert [candidate.step for candidate in gathering._candidates(prepared)] == [5]


@pytest.mark.parametrize(
    "name", ["a", "a [0:2] of [3, 4]", "a [2:1] of [3]", "a [0:4] of [3]", "a [0] of [3]"]
)
def test_names_that_are_no_parts(name):
    with pytest.raises(UserError, match="is not a part of a tensor"):
        write_plan.read_piece(name)


def test_names_of_parts():
    assert write_plan.read_piece("a b [0:2, 1:4] of [3, 4]") == ("a b", (3, 4), (0, 1), (2, 3))
    assert write_plan.read_piece("a [] of []") == ("a", (), (), ())
    kinds = map(
        write_plan.kind_of_part, ("optimizer.part-1-of-2-00001-of-00003.safetensors", "model.safetensors")
    )
    assert list(kinds) == ["optimizer", None]


def test_parts_that_are_not_whole_tensors_are_refused(tmp_path):
    held = {"model.part-1-of-1.safetensors": {"a [0:2] of [3]": ("float32", (2,))}}
    with pytest.raises(UserError, match="hold 2 elements instead of 3"):
        write_plan.Assembly(tmp_path, held)
    other = {"model.part-1-of-1.safetensors": {"a [0:2] of [2]": ("float32", (1,))}}
    with pytest.raises(UserError, match=r"has the shape \[1\]"):
        write_plan.Assembly(tmp_path, other)


def test_each_disk_has_its_own_share():
    of_rank = (0, 0, 2, 2, 2)
    shares = [Disks(of_rank, Ranks(rank, 5)).share(list("abcd")) for rank in range(5)]
    assert shares == [["a", "c"], ["b", "d"], ["a", "d"], ["b"], ["c"]]
    assert [Disks(of_rank, Ranks(rank, 5)).first for rank in range(5)] == [True, False, True, False, False]
    assert Disks(of_rank, Ranks(0, 5)).several and not Disks((0,) * 5, Ranks(0, 5)).several
