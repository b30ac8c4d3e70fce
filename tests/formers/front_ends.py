"""Runs PaddleFormers' and ERNIEKit's own programs on two virtual ranks, and reads their logs."""

import json
import os
import re
import shlex
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import document_commands
import yaml
from places import ROOT

HERE = Path(__file__).resolve().parent
STEPS = 10
PAGE = ROOT / "docs" / "formers.md"  # whose commands and YAML the tests run
CEILING = 0.02  # between losses of two bfloat16 runs: they differ by thousandths
LOSS = re.compile(r" loss: ([\d.]+), learning_rate: \S+, global_step: (\d+)")
RAN = re.compile(r"llm_npu\.formers: (\w+), (\w+): (\d+) calls, (.*)")
# Another interpreter in the environment of ``run_python``, which is without the virtual NPU.
ELSEWHERE = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"

# PaddleFormers' examples/config/{sft,pt,dpo}/full.yaml, with the sizes, paths and rates of a short run.
PUBLISHED = {
    "train_dataset_type": "erniekit",
    "eval_dataset_type": "erniekit",
    "train_dataset_prob": "1.0",
    "eval_dataset_prob": "1.0",
    "max_seq_len": 256,
    "packing": False,
    "mix_strategy": "concat",
    "_attn_implementation": "flashmask",
    "fine_tuning": "full",
    "seed": 23,
    "do_train": True,
    "do_eval": True,
    "per_device_eval_batch_size": 1,
    "per_device_train_batch_size": 1,
    "num_train_epochs": 1,
    "max_steps": STEPS,
    "eval_steps": 100,
    "evaluation_strategy": "steps",
    "save_steps": 100,
    "save_strategy": "steps",
    "logging_steps": 1,
    "gradient_accumulation_steps": 4,
    "logging_dir": "./vdl_log",
    "output_dir": "./checkpoint",
    "disable_tqdm": True,
    "eval_accumulation_steps": 16,
    "warmup_steps": 2,
    "learning_rate": 1.0e-3,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "sharding": "stage1",
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "bf16": True,
    "fp16_opt_level": "O2",
    "unified_checkpoint": False,
    "save_checkpoint_format": "flex_checkpoint",
    "load_checkpoint_format": "flex_checkpoint",
}
FLOAT32 = {"compute_type": "float32", "fp16_opt_level": "O1", "amp_master_grad": False, "sharding": ""}
OF_STAGE = {
    "SFT": {},
    "PT": {"packing": True},
    "DPO": {"loss_type": "sigmoid", "reference_free": False, "learning_rate": 1.0e-4},
}


def of_page(program: str) -> list[str]:
    """The arguments of Python for the page's command of ``llm-npu formers`` with this word."""
    texts = [command.text for command in document_commands.commands(PAGE)]
    (command,) = [text for text in texts if program in text.split() and "llm-npu formers" in text]
    return ["-m", "llm_npu", *shlex.split(command.partition("llm-npu ")[2])]


def yaml_of_page() -> tuple[dict, dict]:
    """The line that a published file needs, and the complete file."""
    blocks = [block for block in document_commands.blocks(PAGE) if block.language == "yaml"]
    added, complete = (yaml.safe_load(block.text) for block in blocks)
    return added, complete


@dataclass(frozen=True)
class Finished:
    """``losses``: of each step. ``ran``: for each rank {(operator, dtype): "backend, mode"}."""

    losses: list[float]
    ran: list[dict[tuple[str, str], str]]


def finished(done, logs: Path, steps: int = STEPS) -> Finished:
    """What a job that ended well has logged; AssertionError with the ends of the logs otherwise."""
    ranks = [log.read_text(errors="replace") for log in sorted(logs.glob("workerlog.*"))]
    ends = "\n".join(text[-3000:] for text in (done.stdout, done.stderr, *ranks))
    assert done.returncode == 0, ends
    losses = losses_by_step(ranks[0])
    assert sorted(losses) == list(range(1, steps + 1)), ends
    return Finished([losses[step] for step in sorted(losses)], [ran(text) for text in ranks])


def losses_by_step(log: str) -> dict[int, float]:
    return {int(step): float(loss) for loss, step in LOSS.findall(log)}


def ran(log: str) -> dict[tuple[str, str], str]:
    return {(operator, dtype): how for operator, dtype, _, how in RAN.findall(log)}


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def variables(logs: Path, python: str = sys.executable, devices: str = "0,1") -> dict[str, str]:
    """Of a job on virtual ranks."""
    return {
        "ASCEND_RT_VISIBLE_DEVICES": devices,
        "MASTER_PORT": free_port(),
        "PADDLEFORMERS_DIST_LOG": str(logs),
        "PATH": os.pathsep.join(
            [str(Path(python).parent), os.environ["PATH"]]
        ),  # the command line starts "python"
    }


def configuration(stage: str, model: Path, **changes) -> dict:
    """The published file of a stage, for the model and the data in a folder."""
    data = {
        f"{part}_dataset_path": str(model / f"{stage.lower()}-{part}.jsonl") for part in ("train", "eval")
    }
    return {
        **PUBLISHED,
        **OF_STAGE[stage],
        **data,
        "stage": stage,
        "model_name_or_path": str(model),
        **changes,
    }


def train(run_python, program, folder: Path, content: dict, **more):
    """The ended process of ``program train FILE``, and the folder of its logs."""
    folder.mkdir(exist_ok=True)
    file = folder / "config.yaml"
    with file.open("x") as written:  # one job in a folder: its logs would mix with another's
        yaml.safe_dump(content, written, sort_keys=False)
    logs = folder / "log"
    return run_python(*program, "train", file, cwd=folder, **{**variables(logs), **more}), logs


def with_own_norm(model: Path, folder: Path) -> Path:
    """A copy of the model whose RMSNorm is PaddleFormers' in plain Paddle, which no YAML can ask for."""
    shutil.copytree(model, folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for part in (config, *(value for name, value in config.items() if name.endswith("_config"))):
        part["fuse_rms_norm"] = False
    file.write_text(json.dumps(config))
    return folder


def distance(losses: list[float], reference: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(losses, reference, strict=True))


def assert_tracks(fused: list[float], unfused: list[float], reference: list[float]) -> None:
    """The fused losses are those of the unfused run of the same dtype, and as near to a float32 run's."""
    logits = (fused, unfused, reference)
    assert distance(fused, reference) <= 2 * distance(unfused, reference), logits
    assert distance(fused, unfused) <= CEILING, logits
