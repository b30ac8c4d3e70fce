"""Operators on tensors that are split over two processes: the rows of tests/auto_parallel/rows."""

import json
from pathlib import Path

import pytest
from auto_parallel import static
from auto_parallel.rows import all_rows
from roundings import assert_trained_alike

ROWS = all_rows()
PROGRAM = Path(__file__).parent / "auto_parallel" / "program.py"


@pytest.fixture(scope="module")
def found(run_python, tmp_path_factory, seed):
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("auto_parallel")
    launch = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", folder / "log")
    done = run_python(*launch, PROGRAM, folder, seed, OMP_NUM_THREADS="1")
    logs = "".join(file.read_text() for file in sorted(folder.glob("log/workerlog.*")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_split_equals_whole(row, found):
    for rank, rows in enumerate(found):
        one = rows["rows"][str(row)]
        assert "failure" not in one, one["failure"]
        assert one["backend"] == "native"
        assert {name: result["placement"] for name, result in one["results"].items()} == row.placements
        for name, result in one["results"].items():
            if row.is_exact(name):
                assert result["equal"], (rank, name, result)
            else:  # the rule of tests/precision.py, with the result of one process as the yardstick
                bound = 2 * result["serial_error"] + result["rounding"]
                assert result["error"] <= bound, (rank, name, result)


@pytest.mark.parametrize("split", static.SPLITS)
def test_static_program_trains_as_one_process(split, found):
    for process in found:
        trained, alone = process["split"][split], process["alone"]
        names = [name for name, calls in static.OPERATORS.items() for _ in range(calls)]
        assert trained["operators"] == sorted([*names, *(f"{name}_grad" for name in names)])
        assert len(set(alone)) == static.STEPS  # it does train
        assert_trained_alike("losses", trained["losses"], alone, process["others"])
