"""Each patch in llm_npu.patches.auto_parallel is needed: without one the program fails, with all it runs."""

from pathlib import Path

import pytest
import ranks

PROGRAM = Path(__file__).parent / "annotations" / "without_a_patch.py"
PATCHES = (
    "rings_are_made_by_xccl",
    "programs_are_met_by_all",
    "dist_tensors_can_be_read",
    "splits_become_sums",
    "groups_are_no_rings",
    "means_are_clipped",
    "stages_send",
)


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES)
def test_without_it(tmp_path, patch):
    """When this fails, Paddle has mended it and llm_npu.patches can forget it."""
    with pytest.raises(AssertionError, match=r"rank . (ended with|wrote no)"):
        ranks.run(PROGRAM, 2, tmp_path, patch)


@pytest.mark.slow
def test_with_all(tmp_path):
    found = ranks.run(PROGRAM, 2, tmp_path, "none")
    assert [rank["sum"] for rank in found] == [8.0, 8.0]
