"""Runs of ``scripts/run_llama_npu.py`` that several files of tests compare with others."""

import functools

import pytest
import run_inputs
from small_runs import RUN, SCRIPT, SOURCES, fields


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """A function: the arguments of a run of a very small model of a family on a little text."""

    @functools.cache
    def of(family: str) -> list[str]:
        folder = tmp_path_factory.mktemp(family)
        return run_inputs.words(run_inputs.inputs(folder, SOURCES, **fields(family)) | RUN)

    return of


@pytest.fixture(scope="session")
def finished(run_python, inputs, tmp_path_factory):
    """A function that runs a family to its end with more arguments, once: the process and its folder."""

    @functools.cache
    def run(family: str, *more: str):
        folder = tmp_path_factory.mktemp("finished") / "out"
        done = run_python(SCRIPT, *inputs(family), *more, "--output_dir", folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done, folder

    return run


@pytest.fixture(scope="session")
def micro_batched(run_python, inputs, tmp_path_factory):
    """A function that trains a family for three steps of four rows, two in a micro batch: its folder."""

    @functools.cache
    def run(family: str, *method: str):
        folder = tmp_path_factory.mktemp("micro_batched") / "out"
        steps = ("--max_steps", "3", "--save_steps", "3", "--eval_steps", "3")
        rows = ("--per_device_train_batch_size", "2", "--per_device_eval_batch_size", "2")
        arguments = [*inputs(family), "--no_bf16", *steps, *rows, *method]
        done = run_python(SCRIPT, *arguments, "--output_dir", folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder

    return run
