"""Variables of a launcher that another run has left in the shell."""

import pytest
from test_launch import SCRIPT, arguments  # noqa: F401  (a fixture)

from llm_npu import config
from llm_npu.core import machines
from llm_npu.launch.fake_process_group import environment


def test_what_a_launcher_sets_fits_together():
    assert machines.check({}) == 1
    for ranks in (1, 2, 5):
        for rank in range(ranks):
            assert machines.check(environment(rank, ranks)) == ranks


OF_TWO = environment(1, 2)
LEFT = {
    "an id": {"PADDLE_TRAINER_ID": "3"},
    "a number of ranks": {"PADDLE_TRAINERS_NUM": "4"},
    "both": {"PADDLE_TRAINERS_NUM": "4", "PADDLE_TRAINER_ID": "3"},
    "endpoints": {"PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6070,10.0.0.2:6070"},
    "a local size": {"PADDLE_LOCAL_SIZE": "8"},
    "no number": {"PADDLE_TRAINERS_NUM": "two"},
    "negative": {"PADDLE_TRAINER_ID": "-1"},
    "digits without end": {"PADDLE_TRAINERS_NUM": "9" * 10_000},
    "an id of another run": OF_TWO | {"PADDLE_TRAINER_ID": "0"},
    "all but the endpoints": {name: OF_TWO[name] for name in OF_TWO if "ENDPOINT" not in name},
    "without the id": {name: OF_TWO[name] for name in OF_TWO if name != "PADDLE_TRAINER_ID"},
    "another endpoint": OF_TWO | {"PADDLE_CURRENT_ENDPOINT": "10.0.0.9:6070"},
}


@pytest.mark.parametrize("kind", LEFT)
def test_what_another_run_has_left_is_refused(monkeypatch, kind):
    for name, value in LEFT[kind].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"unset PADDLE_") as error:
        config.read([])
    assert len(str(error.value)) < 400
    for name in LEFT[kind]:
        monkeypatch.delenv(name)


@pytest.mark.slow
def test_nproc_ignores_the_launch_of_other_machines(run_python, arguments, tmp_path):  # noqa: F811
    left = {
        "PADDLE_NNODES": "2",
        "PADDLE_MASTER": "127.0.0.1:1",
        "PADDLE_RANK": "1",
        "PADDLE_JOB_ID": "other",
    }
    flags = ["--nproc", "2", "--max_steps", "2", "--output_dir", tmp_path / "out"]
    done = run_python(SCRIPT, *arguments, *flags, **left)
    assert done.returncode == 0, done.stderr
    assert "note     --nproc ignores PADDLE_MASTER, PADDLE_NNODES, " in done.stderr


@pytest.mark.slow
def test_an_id_in_the_shell_is_one_sentence(run_python, arguments, tmp_path):  # noqa: F811
    done = run_python(SCRIPT, *arguments, "--output_dir", tmp_path / "out", PADDLE_TRAINER_ID="3")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: PADDLE_TRAINER_ID is 3, but PADDLE_TRAINERS_NUM ")
    assert done.stderr.rstrip().endswith("unset PADDLE_TRAINER_ID")
