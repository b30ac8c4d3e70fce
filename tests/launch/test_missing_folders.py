"""Programs without a home folder, and in a folder that has been deleted."""

import os
import shutil
import subprocess
import sys

import pytest
from places import ROOT
from test_launch import SCRIPT, arguments  # noqa: F401  (a fixture)

HOME = """
import os, sys
from llm_npu.core import program
from llm_npu.core.cache import cache_folder

def main(argv):
    (cache_folder() / "a").mkdir(parents=True)
    print(os.environ["HOME"])

sys.exit(program.run(main, []))
"""
# The user 12345 is in no table; it may read what root reads, since the tests' Python may be root's.
STRANGER = "setpriv --reuid=12345 --regid=12345 --clear-groups --inh-caps=+dac_read_search"
STRANGER += " --ambient-caps=+dac_read_search"


def stranger(*command, cwd, **variables):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root with setpriv can become a user whom nobody knows")
    kept = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    environment = kept | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    cwd.chmod(0o777)
    for folder in cwd.parents[:2]:  # pytest's, closed to others
        folder.chmod(0o755)
    return subprocess.run(
        [*STRANGER.split(), sys.executable, *map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("variables", [{}, {"HOME": "/nonexistent"}], ids=["unset", "missing"])
def test_a_user_without_a_home_gets_a_temporary_one(tmp_path, variables):
    done = stranger("-c", HOME, cwd=tmp_path, **variables)
    assert done.returncode == 0 and done.stderr.startswith("note     "), done.stderr
    home = done.stdout.strip()
    assert home in done.stderr and not os.path.exists(home) and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_such_a_user_trains(tmp_path, arguments):  # noqa: F811
    words = [word for pair in zip(arguments[::2], arguments[1::2], strict=True) for word in pair]
    where = words.index("--data_cache")
    del words[where : where + 2]
    done = stranger(SCRIPT, *words, "--max_steps", "2", "--output_dir", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # and no folder ~


@pytest.mark.parametrize(
    "command", [[SCRIPT, "--help"], ["-m", "paddle_fused.info"], [ROOT / "scripts/generate.py", "x"]]
)
def test_a_deleted_folder_is_one_sentence(run_python, tmp_path, command):
    folder = tmp_path / "deleted"
    folder.mkdir()
    program = (
        "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    done = run_python("-c", program, *command, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the current folder has been deleted")
    assert done.stderr.count("\n") == 1
