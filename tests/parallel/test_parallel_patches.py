"""Each patch in llm_npu.patches.auto_parallel is needed: without one the program fails, with all it runs."""

from pathlib import Path

import pytest
import ranks

PROGRAM = Path(__file__).parent / "annotations" / "without_a_patch.py"
PATCHES = (
    "fix_xccl_ring_creation",
    "fix_program_barrier",
    "fix_dist_tensor_values",
    "fix_shard_to_partial",
    "fix_group_and_ring_numbers",
    "fix_clipping_of_merged_gradients",
    "fix_pipeline_transfers",
)


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES)
def test_without_it(tmp_path, patch):
    """When this fails, Paddle has mended it and llm_npu.patches can forget it."""
    with pytest.raises(AssertionError, match=r"rank . (ended with|wrote no)"):
        ranks.run(PROGRAM, 2, tmp_path, patch)


@pytest.mark.slow
def test_with_all(tmp_path):
    reports = ranks.run(PROGRAM, 2, tmp_path, "none")
    assert [rank["sum"] for rank in reports] == [8.0, 8.0]
