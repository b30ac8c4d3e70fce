"""Machines with disks of their own under one path: parts are saved, found again wherever they are, and named
when nobody has them."""

import itertools
import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest
import run_inputs
import virtual_machines
from run_inputs import losses

from llm_npu.training import checkpoint
from llm_npu.training.checkpoint.__main__ import merge

pytestmark = pytest.mark.slow
STEPS, SAVED = 30, 5
LIMIT = 240.0  # seconds of a run on a busy host
STATE = ("model.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    fields = {"max_steps": STEPS, "save_steps": SAVED, "save_total_limit": 2, "sharding": "stage1"}
    fields |= {"do_eval": "false", "evaluation_strategy": "no", "disable_tqdm": "true"}
    fields |= {"resume_from_checkpoint": "auto"}
    return run_inputs.words(run_inputs.short_run(tmp_path_factory.mktemp("inputs"), **fields))


@contextmanager
def launched(arguments, folder, disks):
    """Two ranks on each of two machines, which see ``disks`` as one path; path, machines and job."""
    if not virtual_machines.namespaces_are_allowed():
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    seen = folder / "out"
    seen.mkdir(parents=True, exist_ok=True)
    with virtual_machines.machines(2) as machines:
        for machine, disk in zip(machines, disks, strict=True):
            disk.mkdir(exist_ok=True)
            machine.disks[seen] = disk
        words = [*arguments, "--output_dir", seen]
        yield seen, machines, virtual_machines.launch(machines, words, folder)
    assert not list(seen.iterdir()), "the path itself is no machine's disk"


def names(disk):
    return [folder.name for folder in checkpoint.complete(disk)]


def copied(disks, folder):
    return [shutil.copytree(disk, folder / disk.name) for disk in disks]


@pytest.fixture(scope="module")
def undisturbed(arguments, tmp_path_factory):
    """The folder of a run on a shared disk."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shared = folder / "shared"
    with launched(arguments, folder, [shared, shared]) as (_, _, job):
        assert job.wait(LIMIT) == [0, 0], job.text()
    return shared


@pytest.fixture(scope="module")
def killed(arguments, tmp_path_factory):
    """The disks of a run that lost its second machine after two checkpoints."""
    folder = tmp_path_factory.mktemp("killed")
    disks = [folder / "first", folder / "second"]
    with launched(arguments, folder, disks) as (_, machines, job):
        job.wait_for(lambda: len(names(disks[1])) == 2, LIMIT)
        machines[1].signal_all(signal.SIGKILL)
        job.wait(30)
    assert names(disks[0]) == names(disks[1]) != [], job.text()
    for disk in disks:
        for newest in checkpoint.complete(disk):
            assert not any((newest / file).exists() for file in STATE), "each has parts only"
    return disks


def test_swapped_machines_go_on_to_the_bit(arguments, undisturbed, killed, tmp_path):
    disks = copied(killed, tmp_path)
    with launched(arguments, tmp_path, disks[::-1]) as (_, _, job):
        assert job.wait(LIMIT) == [0, 0], job.text()
    assert losses(disks[1]) == losses(undisturbed)
    kept = [f"checkpoint-{step}" for step in (STEPS - SAVED, STEPS)]
    assert [names(disk) for disk in disks] == [kept, kept]
    whole = merge([disk / kept[-1] for disk in disks], tmp_path / "merged")
    for file in STATE:
        assert (whole / file).read_bytes() == (undisturbed / kept[-1] / file).read_bytes()
    assert checkpoint.verify(whole) == STEPS
    for disk in disks:
        assert not [file.name for file in disk.iterdir() if file.name.startswith(".")]


def test_an_older_checkpoint_takes_the_place_of_a_damaged_one(arguments, undisturbed, killed, tmp_path):
    disks = copied(killed, tmp_path)
    older, newest = names(disks[0])
    (disks[1] / newest / "optimizer.part-2-of-2.safetensors").unlink()
    with launched(arguments, tmp_path, disks) as (seen, _, job):
        assert job.wait(LIMIT) == [0, 0], job.text()
    log = (job.logs / "0/workerlog.0").read_text()
    assert f"{newest} of step" in log and "optimizer.part-2-of-2.safetensors" in log, log
    assert f"resuming from {seen / older}" in log
    assert losses(disks[0]) == losses(undisturbed)


def test_a_machine_with_an_empty_disk_is_refused_with_the_list(arguments, killed, tmp_path):
    first, second = copied(killed, tmp_path)
    lost = second / names(second)[-1]
    sizes = {file.name: file.stat().st_size for file in lost.iterdir() if file.name != checkpoint.MARK}
    with launched(arguments, tmp_path, [first, tmp_path / "fresh"]) as (_, _, job):
        assert job.wait(LIMIT) == [2, 2], job.text()
    log = (job.logs / "0/workerlog.0").read_text()
    assert f"{lost.name} of step {checkpoint.step_of(lost)} is not complete" in log
    assert set(sizes) >= {"model.part-2-of-2.safetensors", "rng_state_2.json", "rng_state_3.json"}
    for name, size in sizes.items():
        assert f"  {name}  {size} bytes  is on no machine" in log
    assert names(first) == names(second), "nothing is removed"


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_of_one_machine_ends_the_run_in_one_sentence(arguments, tmp_path):
    if not virtual_machines.namespaces_are_allowed():
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    first = tmp_path / "first"
    with (
        small_disk(tmp_path / "second", "2m") as second,  # room for one checkpoint
        launched(arguments, tmp_path, [first, second]) as (seen, _, job),
    ):
        codes = job.wait(LIMIT)
        kept = [sorted(file.name for file in disk.glob("*checkpoint-*")) for disk in (first, second)]
    assert codes == [2, 2], job.text()
    for machine, rank in itertools.product("01", "01"):
        log = (job.logs / machine / f"workerlog.{rank}").read_text()
        assert f"checkpoint-{2 * SAVED} cannot be written: rank 2: {seen}" in log, log
        assert f"No space left on device; {seen / 'checkpoint-5'} is complete" in log
    assert kept == [["checkpoint-5"]] * 2
