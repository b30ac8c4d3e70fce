"""Expert parallelism is bit-identical to one rank with all experts, on 2, 3 and 4 ranks in a card's order."""

from pathlib import Path

import numpy as np
import pytest
import ranks

from paddle_fused.expert_parallel import Route
from paddle_fused.parity import ROUNDING

PROGRAM = Path(__file__).parent / "expert_parallel_program.py"
CHOSEN = {
    count: f"all_to_all:{rows}x16 to 3 experts float32 on {count} ranks"
    for count, rows in {2: 16, 3: 16, 4: 32}.items()
}
AS_ON_A_CARD = {"VIRTUAL_NPU_SYNC_SENDS": "1"}


def test_every_row_that_is_sent_is_received():
    counts = np.random.default_rng(0).integers(0, 4, [3, 6])
    routes = [Route(counts, rank) for rank in range(3)]
    assert np.array_equal([route.sent for route in routes], np.array([route.received for route in routes]).T)
    for rank, route in enumerate(routes):
        assert route.sizes == counts[:, 2 * rank : 2 * rank + 2].sum(0).tolist()
        assert np.bincount(route.experts_of_received, minlength=2).tolist() == route.sizes
        first, *_ = np.split(route.experts_of_received, np.cumsum(route.received))
        assert np.bincount(first, minlength=2).tolist() == counts[0, 2 * rank : 2 * rank + 2].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_compute_the_bits_of_one(count, tmp_path):
    for report in ranks.run(PROGRAM, count, tmp_path, **AS_ON_A_CARD):
        assert f"for {count} ranks" in report["not a multiple"]
        assert f"between 0 and {3 * count - 1}" in report["not an expert"]
        assert len(report["results"]) == 18
        # In both directions, the second chunk is sent before the first is computed.
        forward, backward = (["send"] * 2 + [of, "send"] * 2 for of in ("forward", "backward"))
        assert report["order"] == forward + backward
        assert report["frozen tokens"] == [True] * 2
        # The mean of the ranks' rows, two of each token.
        assert report["chosen"] == {"exchange": CHOSEN[count], "equal": True}
        for dtype, result in report["meanwhile"].items():
            assert result["bits"] == [True] * 5, (dtype, result)
            # The numbers of rows are gathered, the rows sent, and then the shared expert communicates.
            assert result["order"] == ["gather", *["send"] * (count - 1), "gather"], (dtype, result)
        for case, result in report["results"].items():
            dtype = case.split(", ")[1]
            assert result["bits"] == [True] * 5 or dtype == "float64", (case, result)
            assert result["chunks"] == [True] * 10, (case, result)
            for alone, split in zip(result["alone"], result["split"], strict=True):
                assert split <= 2 * alone + ROUNDING.get(dtype, 1e-14), (case, result)
