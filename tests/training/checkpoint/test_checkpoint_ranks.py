"""Checkpoints of several ranks: the same mesh goes on bit for bit, and what is stored has no mesh."""

from pathlib import Path

import pytest
import ranks

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("checkpoint_ranks.py")
PLACEMENTS = Path(__file__).with_name("checkpoint_placements.py")
SHARDED = ("stage1", "stage1_split", "stage2", "stage3", "stage1_fp32", "stage1_split_fp32")
WAYS = {
    ("data",): 2,
    ("tensor_fp32",): 2,
    ("tensor",): 2,
    SHARDED: 2,
    ("pipeline", "pipeline_tied"): 2,
    ("tensor_stage1", "tensor_stage1_split"): 4,
    ("tensor_pipeline",): 4,
    ("pipeline_stage1",): 4,
}
IN_SHORT = (("tensor_fp32",), SHARDED)


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A function that runs the program for some ways, once: what every rank has found."""
    done = {}

    def of(ways):
        if ways not in done:
            folder = tmp_path_factory.mktemp("-".join(ways))
            done[ways] = ranks.run(PROGRAM, WAYS[ways], folder, *ways)
        return done[ways]

    return of


@pytest.mark.parametrize(
    ("ways", "way"),
    [
        pytest.param(ways, way, id=way, marks=() if ways in IN_SHORT else pytest.mark.slow)
        for ways in WAYS
        for way in ways
    ],
)
def test_a_checkpoint_has_no_mesh(tried, ways, way):
    for rank in tried(ways):
        report = rank["ways"][way]
        assert report["resumed"] == report["whole_run"][2:], "on the same mesh"
        assert report["same_end"], "files after 4 steps"
        assert report["stored_again"], "files that an unsplit model writes from what it has read"
        assert report["exported"], "the model by itself"
        assert report["upstream"], "weights as the unsplit model has them, in the upstream layout"
        assert report["back"] == report["whole_run"][2:], "from the unsplit model's files"
        assert report["merged"], "the parts of two disks, merged"
        assert report["gathered"], "the parts of two disks, gathered on each of them"
        assert report["behind"], "files that are written behind the training"
        expected = [float.fromhex(loss) for loss in report["whole_run"][2:]]
        # bfloat16, 8 bits: the order of the sums in a forward pass of some ten roundings differs
        assert [float.fromhex(loss) for loss in report["unsplit"]] == pytest.approx(expected, rel=2**-7)


def test_slices_of_fp32_parameters_learn_as_whole_ones_do(tried):
    """The patch of Paddle's split_param, which without master gradients learns in its first step only."""
    for rank in tried(SHARDED):
        assert rank["ways"]["stage1_split_fp32"]["whole_run"] == rank["ways"]["stage1_fp32"]["whole_run"]


def test_auto_parallel_tensors_are_stored_whole(tmp_path):
    for report in ranks.run(PLACEMENTS, 2, tmp_path):
        assert "is partial over a mesh axis" in report.pop("partial")
        assert len(report) == 10 and all(report.values()), report
