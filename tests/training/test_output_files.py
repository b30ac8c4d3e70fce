"""What a run writes beside checkpoints: never through a link, and complete after a full disk."""

import json
import os
import resource
import socket

import pytest

from llm_npu.training import metrics, resume
from llm_npu.training.metrics import RecordFile

MADE = {
    "link": lambda path, elsewhere: path.symlink_to(elsewhere),
    "dangling link": lambda path, elsewhere: path.symlink_to(elsewhere / "nowhere"),
    "FIFO": lambda path, elsewhere: os.mkfifo(path),
    "socket": lambda path, elsewhere: socket.socket(socket.AF_UNIX).bind(path.name),
    "folder": lambda path, elsewhere: path.mkdir(),
}


@pytest.fixture
def out(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)  # names of sockets are short
    return folder


@pytest.mark.parametrize("name", resume.FILES)
@pytest.mark.parametrize("kind", MADE)
def test_files_of_a_run_are_files(out, tmp_path, kind, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("of somebody")
    MADE[kind](out / name, elsewhere)
    with pytest.raises(ValueError, match=rf"{name} is a .*file"):
        resume._check_folder(out)
    assert elsewhere.read_text() == "of somebody"


@pytest.mark.parametrize("name", resume.FOLDERS)
def test_folders_of_a_run_may_be_links_to_folders(out, tmp_path, name):
    (tmp_path / "big disk").mkdir()
    (out / name).symlink_to(tmp_path / "big disk")
    resume._check_folder(out)
    (tmp_path / "big disk").rmdir()
    with pytest.raises(ValueError, match=f"{name} is a link to .*folder"):
        resume._check_folder(out)


def test_another_name_of_the_metrics_keeps_its_content(out, tmp_path):
    """As in a copy of the output folder by ``cp -al``."""
    (out / metrics.FILE).write_text('{"step": 1}\n{"step": 2}\n')
    os.link(out / metrics.FILE, tmp_path / "copy")
    written = RecordFile(out / metrics.FILE, ['{"step": 1}'])
    written.add('{"step": 2, "loss": 3.0}')
    assert [record.get("loss") for record in metrics.read(out / metrics.FILE)] == [None, 3.0]
    assert (tmp_path / "copy").read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.fixture
def full_disk():
    """A function that limits the size of files, as a disk that others fill; and one that frees it again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield (
        lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_records_outlive_a_full_disk(out, capsys, full_disk):
    fill, free = full_disk
    lines = [json.dumps({"step": number}) for number in range(6)]
    written = RecordFile(out / metrics.FILE, lines[:1])
    fill(len(lines[0]) + 5)  # in the middle of the next line
    for line in lines[1:4]:
        written.add(line)
    with pytest.raises(OSError, match="File too large") as error:
        written.flush()
    assert error.value.filename == str(out / metrics.FILE)
    free()
    for line in lines[4:]:
        written.add(line)
    written.flush()
    assert (out / metrics.FILE).read_text().splitlines() == lines
    notes = capsys.readouterr().out.splitlines()
    assert len(notes) == 1 and metrics.FILE in notes[0]  # once
