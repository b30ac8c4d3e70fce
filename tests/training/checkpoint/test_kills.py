"""kill -9 of a rank at any moment, saves included: what is resumed is complete, and the losses are the same.

pytest -m slow tests/training/checkpoint/test_kills.py --kills 50
"""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import ranks

from llm_npu.training import checkpoint

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("killed_training.py")
STEPS = 12
# Seconds in which the other rank ends once one was killed or stopped: by itself, after some five of them and
# what a busy machine adds, and not because of VIRTUAL_NPU_COLLECTIVE_LIMIT.
SOON = 300


def losses(output: Path) -> dict[int, set[str]]:
    """{step: its losses in all the runs}; the last line may be cut off."""
    losses_of: dict[int, set[str]] = {}
    for line in (output / "losses.jsonl").read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        losses_of.setdefault(record["step"], set()).add(record["loss"])
    return losses_of


def wait_until_training(folder: Path, processes: list[subprocess.Popen]) -> None:
    """Both ranks have begun with the steps; AssertionError with their logs when one has ended before."""
    while not all((folder / f"started-{rank}").exists() for rank in (0, 1)):
        assert all(process.poll() is None for process in processes), _logs(folder)
        time.sleep(0.01)


def wait_for_steps(output: Path, count: int, folder: Path, processes: list[subprocess.Popen]) -> None:
    """``count`` more steps have been made, or the run is over."""
    file = output / "losses.jsonl"

    def lines() -> int:
        return file.read_bytes().count(b"\n") if file.exists() else 0

    before = lines()
    while lines() < before + count and any(process.poll() is None for process in processes):
        assert not any(process.poll() for process in processes), _logs(folder)
        time.sleep(0.01)


def _logs(folder: Path) -> str:
    return "\n".join((folder / f"{rank}.log").read_text(errors="replace")[-3000:] for rank in (0, 1))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[int, set[str]]:
    """The losses of a run that nobody disturbs, and how long its steps take."""
    folder = tmp_path_factory.mktemp("undisturbed")
    output = folder / "output"
    output.mkdir()
    ranks.run(PROGRAM, 2, folder / "run", STEPS, output)
    assert len(checkpoint.complete(output)) == 2
    return losses(output)


@pytest.mark.parametrize("how", ["waiting", "behind"])
def test_kills_at_random_moments(tmp_path, undisturbed, request, how):
    output, kills = tmp_path / "output", request.config.getoption("--kills") // 2
    output.mkdir()
    dice = random.Random(how)
    resumed, waited, amid = [], [], 0
    for number in range(kills):
        folder = tmp_path / f"run{number}"
        with ranks.started(PROGRAM, 2, folder, STEPS, output, how) as processes:
            wait_until_training(folder, processes)
            before = checkpoint.complete(output)
            time.sleep(dice.uniform(0, 0.6))
            victim = dice.randrange(2)
            processes[victim].kill()
            killed = time.monotonic()
            processes[1 - victim].wait(timeout=SOON)
            waited.append(time.monotonic() - killed)
            processes[victim].wait()
        amid += any(output.glob(".checkpoint-*"))
        if before:  # what was there before the kill, or something newer, is still there
            newest = checkpoint.to_resume(True, output)
            assert checkpoint.step_of(newest) >= checkpoint.step_of(before[-1])
            resumed.append(checkpoint.step_of(newest))
        recorded = losses(output) if (output / "losses.jsonl").exists() else {}
        assert all(recorded[step] == undisturbed[step] for step in recorded), (number, _logs(folder))
        if checkpoint.complete(output) and checkpoint.step_of(checkpoint.complete(output)[-1]) >= STEPS - 2:
            checkpoint.clear(output)  # from the start again
    (end, _) = ranks.run(PROGRAM, 2, tmp_path / "end", STEPS, output, how)
    assert losses(output) == undisturbed
    left = sorted(file.name for file in output.iterdir() if file.name.startswith("."))
    assert left == []  # nothing is left of the killed
    print(
        f"{kills} kills, {how}: {amid} amid a save, resumed at {[*resumed, end['resumed']]}, the other rank "
        f"ended within {max(waited):.1f} s"
    )


@pytest.mark.parametrize("how", ["waiting", "behind"])
def test_kills_of_ranks_with_disks_of_their_own(tmp_path, undisturbed, request, how):
    """Whichever rank is killed, and whichever disk it finds: the losses are those of the undisturbed run."""
    output, kills = tmp_path / "output", request.config.getoption("--kills") // 2
    output.mkdir()
    dice = random.Random(how)
    newest, resumed = 0, []
    for number in range(kills + 1):
        folder = tmp_path / f"run{number}"
        words = (how, dice.choice(["apart", "swapped"]))
        if number == kills:
            (end, _) = ranks.run(PROGRAM, 2, folder, STEPS, output, *words)
            break
        with ranks.started(PROGRAM, 2, folder, STEPS, output, *words) as processes:
            wait_until_training(folder, processes)
            wait_for_steps(output, dice.randrange(1, 4), folder, processes)
            time.sleep(dice.uniform(0, 0.3))  # the moment itself, amid a save or not
            victim = dice.randrange(2)
            processes[victim].kill()
            processes[1 - victim].wait(timeout=SOON)
        of_disks = [checkpoint.complete(output / str(disk)) for disk in (0, 1)]
        newest = max((checkpoint.step_of(path) for disk in of_disks for path in disk), default=0)
        resumed.append(newest)
        recorded = losses(output) if (output / "losses.jsonl").exists() else {}
        assert all(recorded[step] == undisturbed[step] for step in recorded), (number, _logs(folder))
        if newest >= STEPS - 3 and number < kills - 1:
            for disk in (0, 1):
                checkpoint.clear(output / str(disk))
    assert losses(output) == undisturbed
    assert end["resumed"] == newest, "a mark anywhere says that all parts are there"
    for disk in (0, 1):
        left = sorted(file.name for file in (output / str(disk)).iterdir())
        assert left == [f"checkpoint-{step}" for step in (STEPS - 1, STEPS)]
    print(f"{kills} kills, {how}: newest checkpoints {resumed}")


@pytest.mark.parametrize(("moment", "resumed"), [("commit", 1), ("confirm", 2)])
def test_a_kill_between_the_marks_of_two_disks(tmp_path, undisturbed, moment, resumed):
    """The first disk's mark decides: before it the parts of the second count for nothing."""
    output = tmp_path / "output"
    output.mkdir()
    words = (STEPS, output, "waiting", "apart")
    with ranks.started(PROGRAM, 2, tmp_path / "killed", *words, moment) as processes:
        codes = [process.wait(timeout=SOON) for process in processes]
    assert codes[moment == "confirm"] == -signal.SIGKILL, _logs(tmp_path / "killed")
    assert (output / "1" / "checkpoint-2" / "prepared.json").exists()
    (end, _) = ranks.run(PROGRAM, 2, tmp_path / "end", *words)
    assert end["resumed"] == resumed
    assert losses(output) == undisturbed


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_ends_the_others(tmp_path, victim):
    output = tmp_path / "output"
    output.mkdir()
    endless = 1_000_000  # steps
    with ranks.started(PROGRAM, 2, tmp_path / "run", endless, output) as processes:
        wait_until_training(tmp_path / "run", processes)
        os.kill(processes[victim].pid, signal.SIGSTOP)
        assert processes[1 - victim].wait(timeout=SOON) != 0
        log = (tmp_path / "run" / f"{1 - victim}.log").read_text()
        assert f"rank {victim}" in log, log[-3000:]
