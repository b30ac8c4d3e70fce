"""Programs of several ranks, exported and run in processes of their own."""

from pathlib import Path

import exporting_rank
import numpy as np
import pytest
import ranks
from tiny_models import build, logits_of, prompts

from llm_npu.inference import export
from llm_npu.models import weights
from llm_npu.surgery import apply_fused_kernels

PROGRAM = Path(exporting_rank.__file__)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen2-tied"])
def test_logits_of_two_ranks_are_those_of_one(run_python, tmp_path, on_npu, kind):
    ids, model = np.array(prompts(12, 12)), build(kind)
    (tmp_path / "checkpoint").mkdir()
    weights.save(model, tmp_path / "checkpoint")
    np.save(tmp_path / "ids.npy", ids)
    given = (tmp_path / "checkpoint", tmp_path / "served", tmp_path / "ids.npy")
    ranks.run(PROGRAM, 2, tmp_path / "export", "export", *given)
    reports = ranks.run(PROGRAM, 2, tmp_path / "run", "run", *given)
    apply_fused_kernels(model)
    expected = logits_of(model, ids)
    for report in reports:
        # the order of fp32 sums of up to 96 terms differs, a dozen times in a row
        found = np.array(report["logits"], np.float32)
        assert np.abs(found - expected).max() < 2**-24 * 34 * np.abs(expected).max()
    alone = run_python(
        "-c", f"from llm_npu.inference import export; export.load({str(tmp_path / 'served')!r})"
    )
    assert "has programs for 2 ranks, but there are 1 processes" in alone.stderr.splitlines()[-1]
    with pytest.raises(ValueError, match="has programs for 2 ranks"):
        export.load(tmp_path / "served")
