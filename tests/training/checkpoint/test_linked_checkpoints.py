"""Checkpoints among links, FIFOs and files of their names: nothing elsewhere is touched."""

import os

import pytest
from checkpoint_files import store

from llm_npu.training import checkpoint


def save(folder, step):
    store(folder, step, {"a.bin": "state", "b.bin": bytes(1000)})


def link(folder, step, target):
    """``checkpoint-<step>`` is a link to where somebody has moved it."""
    save(folder, step)
    checkpoint.path_of(folder, step).rename(target)
    checkpoint.path_of(folder, step).symlink_to(target)


@pytest.mark.parametrize(
    "action", [lambda out: checkpoint.prune(out, 1), lambda out: checkpoint.clear(out, above=5)]
)
def test_of_a_linked_checkpoint_the_link_is_removed(tmp_path, capsys, action):
    out, moved = tmp_path / "out", tmp_path / "moved"
    link(out, 7, moved)
    save(out, 9)
    action(out)
    assert [path.name for path in out.iterdir() if path.name != "checkpoint-9"] == []
    assert (moved / "complete.json").is_file() and f"{moved} stays" in capsys.readouterr().out


def make_fifo(path, target):
    os.mkfifo(path)


@pytest.mark.parametrize(
    "kind", [lambda path, target: path.symlink_to(target), make_fifo, lambda path, target: path.touch()]
)
def test_what_has_the_name_of_a_new_checkpoint_is_replaced(tmp_path, kind):
    out, target = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    for target_of_link in (target / "file", None):  # a link to something, and a dangling one
        if target_of_link:
            target_of_link.parent.mkdir()
            target_of_link.touch()
        kind(out / "checkpoint-4", target)
        save(out, 4)
        assert checkpoint.verify(out / "checkpoint-4") == 4 and not (out / "checkpoint-4").is_symlink()
        assert [path.name for path in out.iterdir()] == ["checkpoint-4"]
        if target_of_link:
            assert [path.name for path in target.iterdir()] == ["file"]
            target_of_link.unlink()
            target.rmdir()
        checkpoint.clear(out)
