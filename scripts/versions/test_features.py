"""The features that docs/versions.md lists, tested on the installed Paddle; noxfile.py runs this file.

A test records ``words`` as its evidence. ``pytest.xfail`` means that the program rejects a feature with an
error message. Tests marked ``quick`` are the sample of a quick run.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest

from llm_npu.acceptance import process

quick = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[2]
UPSTREAM = os.environ.get("PADDLE_CUSTOM_DEVICE")  # a checkout
RESOLUTION = 2.0**-8  # relative precision of bfloat16
LAST = 10  # steps after the checkpoint that is resumed
SHORT = {"max_steps": 5, "eval_steps": 5, "save_steps": 5}
REFUSED = process.ended_by(2)
TENSOR = {"tensor_parallel_degree": 2}
PIPELINE = {"pipeline_parallel_degree": 2, "gradient_accumulation_steps": 4}
AUTO = {"enable_auto_parallel": "true"}
# Auto-parallel keeps projections separate that the trainer fuses otherwise, and draws other random weights.
APART = {"fuse_attention_qkv": "false", "fuse_attention_ffn": "false"}


class Trial:
    """Runs commands of the installed project in ``folder``."""

    def __init__(self, folder: Path):
        self.folder, self.steps = folder, int(os.environ["VERSIONS_STEPS"])
        self.checkpoint = f"checkpoint-{self.steps - LAST}"
        self.schedule = {"max_steps": self.steps, "eval_steps": self.steps, "save_steps": self.steps - LAST}
        # Of the same job, by release.
        self.checkpoints = Path(
            os.environ["VERSIONS_CHECKPOINTS"], str(self.steps), platform.python_version()
        )

    def run(self, name: str, *words: object, limit: float = 1800, **variables: str) -> str:
        """The output of a program; xfail if it rejects the feature with an error message, else fail."""
        log = self.folder / f"{name}.txt"
        command, environment = [sys.executable, *map(str, words)], {**os.environ, **variables}
        failure = process.run(command, log, environment, limit, 0, lambda: 0)
        text = log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        refusals = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if failure == REFUSED and refusals:
            pytest.xfail(refusals[-1])
        if failure:
            pytest.fail(f"{name} {failure}: {lines[-1][:300] if lines else ''}", pytrace=False)
        return text

    def train(self, name: str, flags: dict[str, object], limit: float = 1800) -> dict[int, float]:
        """{step: loss} of ``llm-npu train``, whose output is in the folder ``name``."""
        flags = {"output_dir": self.folder / name, "overwrite_output_dir": "true", **flags}
        words = (f"--{key}={value}" for key, value in flags.items())
        self.run(name, "-m", "llm_npu", "train", *words, limit=limit)
        return losses(self.folder / name)


def losses(folder: Path) -> dict[int, float]:
    """{step: loss} of a run."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def decrease(loss_of_step: dict[int, float]) -> str:
    first, last = loss_of_step[min(loss_of_step)], loss_of_step[max(loss_of_step)]
    assert last < first, f"loss {first:.3f} to {last:.3f}"
    return f"loss {first:.3f} to {last:.3f}"


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return Trial(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def main(trial):
    """The losses of the main job, which leaves its checkpoint to the other releases."""
    trained = trial.train("main", trial.schedule, limit=7200)
    kept = trial.checkpoints / importlib.metadata.version("paddlepaddle")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(trial.folder / "main" / trial.checkpoint, kept / trial.checkpoint)
    shutil.copy(trial.folder / "main" / "metrics.jsonl", kept)
    return trained


@pytest.fixture(scope="module")
def joined(trial):
    return trial.train("one-process-joined", SHORT)


@pytest.fixture(scope="module")
def apart(trial):
    return trial.train("one-process-apart", SHORT | APART)


@quick
def test_main_job(trial, main, record_property):
    record_property("words", decrease(main))


@quick
def test_resume(trial, main, record_property):
    checkpoint = trial.folder / "main" / trial.checkpoint
    again = trial.train("resumed", {**trial.schedule, "resume_from_checkpoint": checkpoint})
    assert again[trial.steps] == main[trial.steps]
    record_property("words", f"bit-identical loss after {trial.steps} steps")


@pytest.mark.parametrize(
    ("flags", "one_process"),
    [
        pytest.param(TENSOR, "joined", id="tensor parallel", marks=quick),
        pytest.param({**TENSOR, "sequence_parallel": "true"}, "joined", id="sequence parallel"),
        pytest.param({"sharding": "stage1"}, None, id="sharding stage 1"),
        pytest.param({"sharding": "stage2"}, None, id="sharding stage 2"),
        pytest.param({"sharding": "stage3"}, None, id="sharding stage 3"),
        pytest.param(PIPELINE, None, id="pipeline"),
        pytest.param({**AUTO, **TENSOR}, "apart", id="auto-parallel, dygraph"),
        pytest.param({**AUTO, **TENSOR, "to_static": "true"}, "apart", id="auto-parallel, static"),
        pytest.param({**AUTO, **PIPELINE}, None, id="auto-parallel, pipeline"),
    ],
)
def test_two_processes(trial, flags, one_process, request, record_property):
    """The losses decrease, and equal those of ``one_process`` with the same samples and weights."""
    trained = trial.train(re.sub(r"\W+", "-", request.node.callspec.id), {"nproc": 2, **SHORT, **flags})
    words = decrease(trained)
    if one_process:
        expected = request.getfixturevalue(one_process)
        assert trained.keys() == expected.keys()
        error = max(abs(trained[step] - expected[step]) / expected[step] for step in trained)
        assert error <= RESOLUTION
        words += f", within {error:.1e} (relative) of one process"
    record_property("words", words)


def test_profiler(trial, record_property):
    trial.train("profiled", {**SHORT, "profile": "steps=3:5"})
    folder = trial.folder / "profiled" / "profile"
    report = trial.run("report", "-m", "llm_npu.profiling", "report", folder, limit=600)
    record_property("words", f"a report of {len(report.splitlines())} lines")


def test_dry_run(trial, record_property):
    flags = (f"--output_dir={trial.folder / 'dry'}", "--model_name_or_path=llama-110m", "--max_steps=2")
    text = trial.run("dry", "-m", "llm_npu", "train", *flags, VIRTUAL_NPU_DRY="1")
    memory = re.search(r"^(?:peak )?memory +([\d,]+ MiB)", text, re.MULTILINE)
    record_property("words", f"llama-110m: {memory[1]}")


@quick
def test_checkpoints_of_another_release(trial, main, record_property):
    """The first step after another release's checkpoint has that release's loss."""
    this = importlib.metadata.version("paddlepaddle")
    others = [folder for folder in sorted(trial.checkpoints.iterdir()) if folder.name != this]
    if not others:
        pytest.skip("no other release has left one")
    words, step = [], trial.steps - LAST + 1
    for folder in others:
        flags = {**trial.schedule, "resume_from_checkpoint": folder / trial.checkpoint}
        here, there = trial.train(f"from-{folder.name}", flags)[step], losses(folder)[step]
        assert abs(here - there) <= RESOLUTION * there, f"{folder.name}'s: loss {here}, there {there}"
        words.append(f"{folder.name}'s: loss {here:.4f} at step {step}, there {there:.4f}")
    record_property("words", "; ".join(words))


@quick
@pytest.mark.skipif(not UPSTREAM, reason="PADDLE_CUSTOM_DEVICE names no checkout")
def test_upstream_tests(trial, record_property):
    """All tests; in a quick run, those of the fused operators."""
    known = json.loads((ROOT / "scripts/upstream_tests/known.json").read_text())
    fused = next(group["files"] for group in known["groups"] if group["title"] == "Fused operators")
    patterns = ["*"] if trial.steps > 20 else fused
    words = (ROOT / "scripts/run_upstream_tests.py", UPSTREAM, "--only", *patterns)
    text = trial.run("upstream", *words, limit=4 * 3600)
    record_property("words", re.search(r"^\*\*(.*)\*\*", text, re.MULTILINE)[1])
