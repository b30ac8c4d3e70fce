"""Operators on tensors that are split over two processes: the rows of tests/parallel/auto_parallel/rows."""

import json
from pathlib import Path

import pytest
import ranks
from auto_parallel import static
from auto_parallel.rows import all_rows
from roundings import assert_trained_alike

pytestmark = pytest.mark.slow

ROWS = all_rows()
PROGRAM = Path(__file__).parent / "auto_parallel" / "program.py"
# What the plugin's operator does not have, on one device either: see docs/operators/flash_attention.md.
NOT_ON_A_CARD = ("bias [", "TND, band(4, 0), lengths [7, 1, 20] and [9, 1, 24]")


@pytest.fixture(scope="module")
def reports(run_python, tmp_path_factory, seed):
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("auto_parallel")
    launch = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", folder / "log")
    done = run_python(*launch, PROGRAM, folder, seed, OMP_NUM_THREADS="1")
    logs = "".join(file.read_text() for file in sorted(folder.glob("log/workerlog.*")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_split_equals_whole(row, reports):
    for rank, rows in enumerate(reports):
        outcome = rows["rows"][str(row)]
        assert "failure" not in outcome, outcome["failure"]
        assert outcome["backends"] == ["native"]
        assert {name: result["placement"] for name, result in outcome["results"].items()} == row.placements
        assert bool(outcome["resharded"]) == row.gathered, outcome["resharded"]
        for name, result in outcome["results"].items():
            if row.is_exact(name):
                assert result["equal"], (rank, name, result)
            else:  # the rule of tests/shared/precision.py, with the result of one process as the noise floor
                bound = 2 * result["serial_error"] + result["rounding"]
                assert result["error"] <= bound, (rank, name, result)


@pytest.fixture(scope="module")
def found_on_npu(tmp_path_factory):
    return ranks.run(PROGRAM.with_name("on_npu.py"), 2, tmp_path_factory.mktemp("on_npu"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_split_equals_whole_on_ascend(row, dtype, found_on_npu):
    """By the plugin's operators alone. A part may be computed in another order than the whole."""
    is_attention = row.operator in ("flash_attention", "flashmask_attention")
    refused = is_attention and (dtype == "float32" or any(words in row.case for words in NOT_ON_A_CARD))
    for rank, rows in enumerate(found_on_npu):
        outcome = rows[dtype][str(row)]
        assert "failure" not in outcome, outcome["failure"]
        assert ("refused" in outcome) == refused, outcome
        if refused:
            continue
        assert outcome["backends"] == ["ascend"]
        assert {name: result["placement"] for name, result in outcome["results"].items()} == row.placements
        assert bool(outcome["resharded"]) == row.gathered, outcome["resharded"]
        for name, result in outcome["results"].items():
            bound = 2 * result["serial_error"] + result["rounding"]
            assert result["error"] <= bound, (rank, name, result)


def test_wrong_placements_are_refused(found_on_npu):
    for rank in found_on_npu:
        planted = rank["planted"]
        assert all(key in planted["inputs"] for key in ("axis 'x'", "heads of query", "batch of key"))
        assert all(key in planted["rule"] for key in ("shape [2, 256]", "[columns, rows]"))


def test_what_else_a_caller_may_hand_over(found_on_npu):
    for rank in found_on_npu:
        assert all(key in rank["two_meshes"] for key in ("[0, 1]", "[1, 0]"))
        assert "cu_seqlens_q is a distributed tensor" in rank["split_lengths"]
        assert rank["split_mask"] == 0
        gathered, of_hidden, of_weight = rank["tied_weight"]  # the weight yields
        assert gathered == "weight (dimension 0 sharded over x) was gathered"
        assert of_hidden == of_weight == "Shard(dim=0)"
        assert rank["positions_in_parts"] == [1, 4, 4, 32]


def test_a_gradient_that_is_not_added_up_is_found(found_on_npu):
    """By the comparison above: what it allows is less than a process's term of the sum."""
    row = next(row for row in ROWS if row.operator == "rms_norm" and not row.gathered)
    for rank in found_on_npu:
        weight = rank["planted"]["gradient"][str(row)]["results"]["gradient of weight"]
        assert weight["placement"] != row.placements["gradient of weight"]
        assert weight["error"] > 1e3 * (2 * weight["serial_error"] + weight["rounding"])


@pytest.mark.parametrize("split", static.SPLITS)
def test_static_program_trains_as_one_process(split, reports):
    for process in reports:
        trained, alone = process["split"][split], process["alone"]
        names = [name for name, calls in static.OPERATORS.items() for _ in range(calls)]
        assert trained["operators"] == sorted([*names, *(f"{name}_grad" for name in names)])
        assert len(set(alone)) == static.STEPS  # it does train
        assert_trained_alike("losses", trained["losses"], alone, process["others"])
