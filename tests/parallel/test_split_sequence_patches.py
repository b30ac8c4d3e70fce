"""With their patches, the reported programs of split sequences print what they should."""

from pathlib import Path

import pytest
import ranks
from places import TESTS

PROGRAMS = TESTS / "upstream/programs"
WITH_A_PATCH = Path(__file__).parent / "split_sequences/with_a_patch.py"


@pytest.mark.slow
def test_heads_are_exchanged(tmp_path):
    program = PROGRAMS / "paddlenlp/segment_parallel_exchange.py"
    words = program, "llm_npu.patches", "fix_segment_parallel_exchange"
    for rank in ranks.run(WITH_A_PATCH, 2, tmp_path, *words):
        assert rank["printed"].endswith("True")


@pytest.mark.slow
def test_split_weights_count_once(tmp_path):
    program = PROGRAMS / "collectives/split_weight_norm.py"
    words = program, "llm_npu.patches.hybrid_parallel", "fix_split_weight_norm"
    for rank in ranks.run(WITH_A_PATCH, 4, tmp_path, *words):
        assert rank["printed"].endswith("2.0")
