"""FusedAdamW on parameters and states sharded over two ranks, with the plugin's operator only."""

import numpy as np
import pytest
import ranks
from places import TESTS
from precision import ROUNDING

pytestmark = pytest.mark.slow

STEPS = 3
PROGRAM = TESTS / "parallel" / "auto_parallel" / "adamw_on_npu.py"
CASES = {  # and how the moments of bias and weight lie
    "float32, columns": ["Shard(dim=0)", "Shard(dim=1)"],
    "bfloat16, columns": ["Shard(dim=0)", "Shard(dim=1)"],
    **{f"{dtype}, stage 0": ["Replicate()"] * 2 for dtype in ("float32", "bfloat16")},
    **{
        f"{dtype}, stage {stage}": ["Shard(dim=0)"] * 2
        for dtype in ("float32", "bfloat16")
        for stage in (1, 2, 3)
    },
    "float32, stage 1, amsgrad": ["Shard(dim=0)"] * 2,
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return ranks.run(PROGRAM, 2, tmp_path_factory.mktemp("adamw"))


@pytest.mark.parametrize("case", CASES)
def test_as_one_process(reports, case):
    for rank in reports:
        record = rank[case]
        assert record["ran"] == [["fused_adamw", "ascend"]]
        assert record["moments"] == CASES[case]
        for here, alone in zip(record["values"], record["alone"], strict=True):
            bound = 4 * STEPS * ROUNDING[case.partition(",")[0]] * np.abs(alone).max()
            np.testing.assert_allclose(here, alone, rtol=0, atol=bound)
