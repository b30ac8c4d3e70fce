"""What cannot be written, and what is damaged: named, on all ranks together; the older checkpoint stays."""

import tempfile
from pathlib import Path

import pytest
import ranks

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("checkpoint_faults.py")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each of two ranks met."""
    return ranks.run(PROGRAM, 2, tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("how", ["here", "behind"])
@pytest.mark.parametrize("fault", ["limit of rank 0", "limit of rank 1", "full disk of rank 1"])
def test_what_one_rank_cannot_write_fails_on_all(reports, how, fault):
    file = "rng_state.pth" if "disk" in fault else "model.safetensors"
    why = "No space left on device" if "disk" in fault else "File too large"
    for error, left in (rank[f"{how}, {fault}"] for rank in reports):
        assert error.startswith("OSError") and "checkpoint-2 cannot be written: " in error
        assert f"rank {fault[-1]}: " in error and file in error and why in error
        assert "checkpoint-1 is complete and is kept" in error
        assert left == ["checkpoint-1"]


def test_ranks_that_do_not_fit_together(reports):
    for error, left in (rank["other shapes"] for rank in reports):
        assert error.startswith("UserError: odd is float32 [3] on one rank and float32 [2] on another")
        assert left == ["checkpoint-1"]


@pytest.mark.parametrize(
    ("damage", "sentence"), [("flipped", "a different SHA-256"), ("cut off", "bytes instead of")]
)
def test_a_damaged_checkpoint_is_passed_over_by_all(reports, damage, sentence):
    for chosen, notes, by_name in (rank[damage] for rank in reports):
        assert chosen == "checkpoint-1"
        assert len(notes) == 1 and "checkpoint-3 is corrupt: model.safetensors has" in notes[0]
        assert sentence in notes[0]
        assert by_name.startswith("UserError") and sentence in by_name


def test_the_next_checkpoint_is_written(reports):
    assert [rank["end"] for rank in reports] == [["checkpoint-1", "checkpoint-3", "checkpoint-4"]] * 2


@pytest.mark.parametrize(("closed", "left"), [("output", "no complete checkpoint"), (".", "cannot be read")])
def test_a_folder_that_may_not_be_written_to(run_program, closed, left):
    # Not among pytest's folders: each of its runs closes them to the user that the superuser becomes here.
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        output.mkdir()
        Path(folder).chmod(0o755)
        (Path(folder) / closed).chmod(0o555 if closed == "output" else 0o600)
        done = run_program(
            f"""
            import os
            from llm_npu.training.checkpoint import saving, tensors
            import paddle
            held = {{"model": tensors.of_parameters({{"a": paddle.ones([3])}}, None)}}
            if os.geteuid() == 0:
                os.seteuid(65534)  # the superuser may write anywhere
            try:
                saving.Checkpoints({str(output)!r}).save(7, held)
            except PermissionError as error:
                print(error)
            """
        )
        Path(folder).chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert "checkpoint-7 cannot be written" in done.stdout and "Permission denied" in done.stdout
    assert left in done.stdout
