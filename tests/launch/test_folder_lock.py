"""Two runs and one output folder: the second is refused, and one that has lost its lock publishes nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_launch import SCRIPT, arguments  # noqa: F401  (a fixture)

from llm_npu.core.errors import UserError
from llm_npu.launch import folder_lock
from llm_npu.training.checkpoint import folder as folders

HOLDS = """
import sys, time
from pathlib import Path
from llm_npu.launch import folder_lock
folder_lock.hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
OTHER = {"host": "node7", "process": 4711, "started": "2026-03-01 12:00:00 UTC"}


@pytest.fixture
def held(tmp_path):
    """A folder whose lock another process holds, and that process."""
    folder = tmp_path / "out"
    command = [sys.executable, "-c", HOLDS, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield folder, process
        process.kill()


def test_a_second_run_is_told_who_has_the_folder(held):
    folder, process = held
    owner = rf"in use by another run \(process {process.pid} on {re.escape(socket.gethostname())}, started 2"
    for refusing in (folder_lock.hold, folder_lock.refuse_if_taken):
        with pytest.raises(UserError, match=owner):
            refusing(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_ends_with_its_process(held, number):
    folder, process = held
    process.send_signal(number)
    process.wait()
    folder_lock.refuse_if_taken(folder)
    folder_lock.hold(folder)
    assert json.loads((folder / folder_lock.NAME).read_text())["process"] == os.getpid()


@pytest.mark.parametrize("replaced", [False, True], ids=["rewritten", "replaced"])
def test_a_run_that_has_lost_its_lock_publishes_no_checkpoint(tmp_path, replaced):
    folder_lock.hold(tmp_path)
    file = tmp_path / folder_lock.NAME
    with folders.staging_folder(tmp_path, 5) as staging:
        (staging / "part").write_text("part")
        checksums = folders.checksums(staging, ["part"])
        if replaced:
            file.unlink()
        file.write_text(json.dumps(OTHER))  # as another machine does when NFS has dropped the lock
        with pytest.raises(UserError, match=r"another run .process 4711 on node7"):
            folders.commit(staging, folders.path_of(tmp_path, 5), checksums)
    assert folders.complete(tmp_path) == []


def test_a_lock_that_was_tidied_up_is_taken_again(tmp_path):
    folder_lock.hold(tmp_path)
    (tmp_path / folder_lock.NAME).unlink()
    folder_lock.check(tmp_path)
    folder_lock.check(tmp_path)
    assert json.loads((tmp_path / folder_lock.NAME).read_text())["process"] == os.getpid()


def link(path, elsewhere):
    path.symlink_to(elsewhere)


def dangling(path, elsewhere):
    elsewhere.unlink()
    path.symlink_to(elsewhere)


def hard_link(path, elsewhere):
    os.link(elsewhere, path)


def fifo(path, elsewhere):
    os.mkfifo(path)


def bound_socket(path, elsewhere):
    socket.socket(socket.AF_UNIX).bind(str(path))


def folder(path, elsewhere):
    path.mkdir()


def device(path, elsewhere):
    path.symlink_to(os.devnull)  # a device file needs the superuser


KINDS = [link, dangling, hard_link, fifo, bound_socket, folder, device]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_is_no_file_of_its_own(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    out, elsewhere = Path("out"), Path("elsewhere").absolute()
    out.mkdir()
    elsewhere.write_text("of somebody")
    kind(out / folder_lock.NAME, elsewhere)
    refusing = [folder_lock.hold] if kind is hard_link else [folder_lock.hold, folder_lock.refuse_if_taken]
    for action in refusing:
        with pytest.raises(UserError, match=r"run\.lock is a "):
            action(out)
    assert kind is dangling or elsewhere.read_text() == "of somebody"
    assert kind is not dangling or not elsewhere.exists()


def test_a_lock_that_has_become_a_fifo_ends_no_save_in_a_wait(tmp_path):
    folder_lock.hold(tmp_path)
    (tmp_path / folder_lock.NAME).unlink()
    os.mkfifo(tmp_path / folder_lock.NAME)
    with pytest.raises(UserError, match="is a FIFO"):
        folder_lock.check(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--nproc", "2"]], ids=["one process", "nproc"])
def test_the_script_refuses_it_in_one_sentence(run_python, held, arguments, flags):  # noqa: F811
    folder, process = held
    (folder / "log").mkdir()
    (folder / "log/workerlog.1").write_text("of the run that has the folder")
    done = run_python(SCRIPT, *arguments, *flags, "--output_dir", folder)
    assert done.returncode == 2, done.stderr
    sentences = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1 and f"process {process.pid} on" in sentences[0], done.stderr
    assert (folder / "log/workerlog.1").read_text() == "of the run that has the folder"
