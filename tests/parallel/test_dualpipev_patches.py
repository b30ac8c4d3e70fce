"""With their patches, the reported programs of DualPipeV print what they should, with a card's sends."""

from pathlib import Path

import pytest
import ranks
from places import TESTS

PROGRAMS = TESTS / "upstream/programs"
WITH_A_PATCH = Path(__file__).parent / "split_sequences/with_a_patch.py"
AS_ON_A_CARD = {"VIRTUAL_NPU_SYNC_SENDS": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "patch", "printed"),
    [
        ("collectives/dualpipev_commits_by_deep_ep.py", "dualpipev.fix_transfers", "loss: 16.0"),
        ("collectives/dualpipev_cannot_evaluate.py", "dualpipev.apply", "loss: 16.0"),
        ("paddlenlp/dualpipev_is_not_passed_on.py", "dualpipev.fix_models_of_one_tensor", "in V shape: True"),
    ],
)
def test_a_pipeline_in_v_shape(program, patch, printed, tmp_path):
    module, _, function = patch.rpartition(".")
    words = PROGRAMS / program, f"llm_npu.patches.{module}", function
    for rank in ranks.run(WITH_A_PATCH, 2, tmp_path, *words, **AS_ON_A_CARD):
        assert rank["printed"] == printed
