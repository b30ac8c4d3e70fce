"""examples/minimal_trainer.py, the file to copy: it learns, and a resumed run has the same losses."""

import re
import shutil

import pytest
from places import ROOT

SCRIPT = ROOT / "examples" / "minimal_trainer.py"
SMALL = ("--steps", 6, "--save_every", 3, "--eval_every", 3, "--layers", 1, "--sequence", 64, "--warmup", 2)
LOSS = re.compile(r"step (\d+)(?:/6)?: (loss|evaluation loss) (\S+)")

pytestmark = [pytest.mark.slow, pytest.mark.paddlenlp]


def losses(printed: str) -> dict[tuple[str, int], str]:
    return {(kind, int(step)): value for step, kind, value in LOSS.findall(printed)}


@pytest.fixture(scope="module")
def uninterrupted(run_python, tmp_path_factory):
    """The losses of a whole run, and its folder with the checkpoints 3 and 6."""
    folder = tmp_path_factory.mktemp("minimal")
    done = run_python(SCRIPT, *SMALL, "--output_dir", folder / "out")
    assert done.returncode == 0, done.stderr
    return losses(done.stdout), folder / "out"


def test_it_learns(uninterrupted):
    loss_of, _ = uninterrupted
    assert len(loss_of) == 8
    assert float(loss_of["evaluation loss", 6]) < float(loss_of["evaluation loss", 3]) < 5.55  # ln 256


def test_a_resumed_run_is_the_same_to_the_bit(uninterrupted, run_python, tmp_path):
    loss_of, folder = uninterrupted
    shutil.copytree(folder / "checkpoint-3", tmp_path / "checkpoint-3")
    done = run_python(SCRIPT, *SMALL, "--output_dir", tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == {key: value for key, value in loss_of.items() if key[1] > 3}
    for name in ("model.safetensors", "optimizer.safetensors"):
        whole, resumed = (where / "checkpoint-6" / name for where in (folder, tmp_path))
        assert whole.read_bytes() == resumed.read_bytes(), name


def test_a_used_folder_is_refused(uninterrupted, run_python):
    _, folder = uninterrupted
    done = run_python(SCRIPT, *SMALL, "--output_dir", folder)
    assert done.returncode == 2 and "--resume" in done.stderr and "Traceback" not in done.stderr
