"""Stages of a pipeline exchange tensors in one step, which needs llm_npu.patches.hybrid_parallel."""

from pathlib import Path

import pytest
import ranks

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "hybrid_parallel" / "ring.py"


@pytest.mark.parametrize(("stages", "synchronous"), [(3, "1"), (4, "0")])
def test_stages_take_turns(tmp_path, stages, synchronous):
    """When this fails for ``upstream``, Paddle has mended it and llm_npu.patches can forget it."""
    waits = {"VIRTUAL_NPU_SYNC_SENDS": synchronous, "VIRTUAL_NPU_COLLECTIVE_TIMEOUT": "2"}
    for stage, report in enumerate(ranks.run(PROGRAM, stages, tmp_path, **waits)):
        before, after = (stage - 1) % stages + 0.5, (stage + 1) % stages + 0.25
        assert report["patched"] == [[before, before, after, after]] * 2
        assert "Ranks wait for each other" in report["upstream"]
