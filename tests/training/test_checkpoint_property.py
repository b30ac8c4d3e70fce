"""Odd checkpoint folders: each is resumed as it was written, passed over, or refused in one sentence.

A folder is drawn by changes of a good one: of its files, and of what its mark and its JSON say. Whatever the
reader accepts must have the bytes of the good one.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import store
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_npu.core.ranks import ALONE
from llm_npu.training import checkpoint, resume
from llm_npu.training.checkpoint import folder as folders
from llm_npu.training.checkpoint import gathering, states
from llm_npu.training.checkpoint.disks import Disks

STEP, MEMORY, SECONDS = 7, 1 << 30, 10  # bytes of address space beyond the current ones; of one folder
RUN = {"fixed": {"seed": 42}, "schedule": {"max_steps": 9, "learning_rate": 0.1}, "mesh": {}}
SCALER = {"scale": np.float32([65536]), "incr_count": 3}
GOOD = {
    "config.json": json.dumps({"model_type": "llama"}),
    "run.json": json.dumps(RUN),
    "scaler.json": states.text(SCALER),
    "trainer_state.json": json.dumps({"global_step": STEP, "log_history": []}),
    "model.safetensors": bytes(range(256)) * 8,
}
ODD_NAMES = st.sampled_from(
    ["..", ".", "", "/etc/passwd", "a/b", "x" * 300, "nul\0", "\ud800", "model ", "complete.json", "é"]
)
NUMBERS = st.sampled_from([0, -1, 1.0, 7.0, True, None, "7", 10**30, float("nan"), float("inf"), [], {}])
VALUES = st.recursive(
    st.one_of(NUMBERS, ODD_NAMES),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(ODD_NAMES, inner),
)
NAMES = [*GOOD, folders.MARK]
FILES = st.sampled_from(NAMES)
KINDS = ["fifo", "folder", "nothing", "link to itself", "device", "dangling"]


def replaced(path, value, target):
    """``target`` with ``value`` at a place in it, by the numbers ``path``."""
    if not path or not isinstance(target, (dict, list)) or not target:
        return value
    keys = sorted(target) if isinstance(target, dict) else range(len(target))
    key = keys[path[0] % len(keys)]
    changed = dict(target) if isinstance(target, dict) else list(target)
    changed[key] = replaced(path[1:], value, target[key])
    return changed


def change_json(folder, name, path, value):
    file = folder / name
    if file.is_file() and not file.is_symlink():
        with contextlib.suppress(ValueError):  # it is no JSON any more
            file.write_text(json.dumps(replaced(path, value, json.loads(file.read_text()))))


def change_bytes(folder, name, position, data):
    file = folder / name
    if file.is_file() and not file.is_symlink():
        content = bytearray(file.read_bytes())
        place = position % (len(content) + 1)
        content[place : place + len(data)] = data
        file.write_bytes(content)


def cut(folder, name, position):
    file = folder / name
    if file.is_file() and not file.is_symlink():
        os.truncate(file, position % (file.stat().st_size + 1))


def other_kind(folder, name, kind):
    file = folder / name
    if file.is_dir() and not file.is_symlink():
        return
    file.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind != "nothing":
        file.symlink_to({"link to itself": file, "device": "/dev/zero", "dangling": "nowhere"}[kind])


def unlist(folder, name):
    """The mark has no checksum of a file any more, which may then change."""
    mark = folder / folders.MARK
    if mark.is_file():  # reading a FIFO would wait
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(mark.read_text())
            del content["files"][name]
            mark.write_text(json.dumps(content))


def marked_again(folder):
    """The mark is made to fit to what the files are now: a folder that somebody has edited by hand."""
    names = [name for name in folders.contents(folder) if name != folders.MARK]
    content = {"step": STEP, "files": folders.checksums(folder, names)}
    if not (folder / folders.MARK).is_dir():
        other_kind(folder, folders.MARK, "nothing")
        (folder / folders.MARK).write_text(json.dumps(content))


CHANGES = st.one_of(
    st.builds(lambda *drawn: lambda folder: change_json(folder, *drawn),
              st.sampled_from([name for name in NAMES if name.endswith(".json")]),
              st.lists(st.integers(0, 9), max_size=4), VALUES),
    st.builds(lambda *drawn: lambda folder: change_bytes(folder, *drawn),
              FILES, st.integers(0, 4000), st.binary(max_size=9)),
    st.builds(lambda *drawn: lambda folder: cut(folder, *drawn), FILES, st.integers(0, 4000)),
    st.builds(lambda *drawn: lambda folder: other_kind(folder, *drawn), FILES,
              st.sampled_from(KINDS)),
    st.builds(lambda *drawn: lambda folder: unlist(folder, *drawn), FILES),
    st.builds(lambda name: lambda folder: (folder / name).write_text("{}"),
              st.sampled_from(["model.safetensors.index.json", "optimizer-1.safetensors", "lora.json"])),
    st.just(marked_again),
)  # fmt: skip


@pytest.fixture(scope="module")
def bounded():
    """Memory and time of the whole property, as a process: a device without end would take both."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read(folder):
    """What a run reads of the checkpoint that it resumes from: {file: its bytes}, after all checks."""
    chosen = gathering.to_resume(str(folder), folder.parent, Disks.shared(ALONE), lambda line: None)
    resume.check_state(chosen)
    resume.changes(chosen, RUN)
    states.like(states.read(chosen, states.SCALER), SCALER, str(chosen))
    return {name: (chosen / name).read_bytes() for name in GOOD}


def read_or_refused(folder):
    try:
        return read(folder)
    except (ValueError, OSError) as error:
        assert 0 < len(str(error)) < 1000 and "\0" not in str(error)
        return None


def late(number, frame):
    raise AssertionError(f"it took more than {SECONDS} seconds")


@pytest.fixture
def folders_of(tmp_path):
    """(a good checkpoint, an older one, what a run reads of the good one)."""
    good = store(tmp_path / "good", STEP, GOOD)
    older = store(tmp_path / "good", STEP - 1, {**GOOD, "trainer_state.json": '{"global_step": 6}'})
    return good, older, read(good)


def check(out, folders_of, changes):
    """A copy of the good checkpoint with ``changes`` is read as it was, or refused, in bounded time."""
    good, older, wanted = folders_of
    shutil.copytree(good, out / good.name)
    shutil.copytree(older, out / older.name)
    folder = out / good.name
    before = signal.signal(signal.SIGALRM, late)
    try:
        for change in changes:
            change(folder)
        marked = marked_again not in changes
        signal.alarm(SECONDS)
        restored = read_or_refused(folder)
        assert not marked or restored in (wanted, None)  # what somebody has edited and marked is another one
        chosen = gathering.to_resume(True, out, Disks.shared(ALONE), lambda line: None)
        assert chosen.name in (good.name, older.name)
        assert not marked or chosen.name == older.name or read_or_refused(chosen) in (wanted, None)
        checkpoint.prune(out, 1)
        checkpoint.clear(out)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_other_kinds_of_files(tmp_path, bounded, folders_of, name, kind):
    check(tmp_path / "out", folders_of, [lambda folder: other_kind(folder, name, kind)])


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_odd_folders(tmp_path, bounded, folders_of, count):
    @settings(max_examples=count)
    @given(changes=st.lists(CHANGES, min_size=1, max_size=3))
    def odd(changes):
        check(tmp_path / "out", folders_of, changes)

    odd()
