"""PaddleNLP's layers over the plugin's fused operators run on the virtual NPU as they come."""

from pathlib import Path

import pytest
import ranks

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "paddlenlp_mc2.py"
ROUNDING = 2.0**-7  # of the largest value: sums of rounded terms in bfloat16


@pytest.mark.parametrize("recompute", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_their_layers_compute_products_and_gradients(recompute, tmp_path):
    switches = {"FLAGS_NPU_MC2": "1", "FLAGS_NPU_MC2_Recompute": recompute}
    for report in ranks.run(PROGRAM, 2, tmp_path, **switches):
        assert sorted(report) == ["column", "column_sequence", "row", "row_sequence"]
        for layer, errors in report.items():
            assert all(error <= 2 * ROUNDING for error in errors), (layer, errors)
