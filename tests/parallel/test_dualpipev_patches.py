"""DualPipeV: the reported programs with their patches, with a card's sends, and what a dry run refuses."""

from pathlib import Path

import pytest
import ranks
import run_inputs
from places import ROOT, TESTS

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


@pytest.mark.slow
def test_a_dry_run_of_both_directions_is_refused(run_python, tmp_path):
    shape = {
        "nproc": 2,
        "pipeline_parallel_degree": 2,
        "pipeline_schedule": "dualpipev",
        "gradient_accumulation_steps": 4,
        "max_seq_length": 32,
        "num_hidden_layers": 4,
        "output_dir": tmp_path / "out",
    }
    words = run_inputs.words({**run_inputs.inputs(tmp_path), **shape})
    done = run_python(ROOT / "scripts/run_llama_npu.py", *words, VIRTUAL_NPU_DRY="1")
    assert done.returncode == 2
    assert "error: --pipeline_schedule dualpipev" in done.stderr and "VIRTUAL_NPU_DRY=1" in done.stderr
