"""Checks that train a small model: comparison with recorded losses, resuming, and several cards.

Text, weights and tokenizer are generated independently of the device and of the Python and library versions.
``fingerprint`` shows whether they equal those of the recorded run.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import timeit
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_npu import device
from llm_npu.core import atomic
from llm_npu.core.errors import UserError
from paddle_fused import strict_json

from . import reference
from .checks import Job
from .journal import Journal, number
from .process import ended_by

STEPS, HALFWAY = 20, 10
READINGS = 1000
ROWS, TOKENS = 8, 128  # rows per step, tokens per row
MODEL = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": TOKENS,
    "rms_norm_eps": 1e-5,
}
SYLLABLES = ["ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu"]
DOCUMENTS, WORDS = 300, 120
SCALE = 0.02  # standard deviation of the weights
QUOTED = 3000  # characters quoted from a failed run's output
ERROR = re.compile(r"([\w.]+(Error|Exception)|error):")


def train(job: Job, journal: Journal) -> None:
    with journal.case("20 steps"):
        _compare(job, journal, "20 steps", _whole_run(job))


def silent_errors(job: Job, journal: Journal) -> None:
    """Two steps with --check_acl_errors and --verify_operators: their output, and the cost of a reading."""
    name = "fused operators of the first step"
    with journal.case(name):
        flags = {"max_steps": 2, "save_strategy": "no", "check_acl_errors": 1, "verify_operators": "true"}
        printed = run(job, job.folder / "out", flags)
        verified = re.findall(r"^verify +(.+)", printed, re.MULTILINE)
        journal.judge(name, bool(verified), *(verified or ["the run reported no comparison"]))
        for verdict in re.findall(r"^ +(.+ was not compared: .+)", printed, re.MULTILINE):
            journal.note(name, verdict)
        messages = re.findall(r"^acl +(.+)", printed, re.MULTILINE)
        journal.note("ACL error messages", "; ".join(messages) or "none")
    name = "reading CANN's message"
    with journal.case(name):
        chosen = device.select(job.device_name)
        import paddle

        import paddle_fused

        paddle.set_device(chosen.name)
        with paddle_fused.watch_acl_errors() as watch:
            seconds = min(timeit.repeat(watch.check, number=READINGS)) / READINGS
        journal.note(name, f"{seconds * 1e6:.2g} us, after each operator called from Python")


def resume(job: Job, journal: Journal) -> None:
    name = "resume at step 10 of 20"
    with journal.case(name):
        whole = _whole_run(job)
        again = job.folder / "again"
        checkpoint = f"checkpoint-{HALFWAY}"
        shutil.copytree(whole / checkpoint, again / checkpoint)
        run(job, again, {"resume_from_checkpoint": again / checkpoint})
        before, after = (
            {record["step"]: record["loss"] for record in steps(folder)} for folder in (whole, again)
        )
        late = range(HALFWAY + 1, STEPS + 1)
        error = max(abs(before[step] - after[step]) for step in late)
        journal.judge(
            name,
            error == 0,
            "bit-identical losses" if error == 0 else "the losses are not bit-identical",
            ", ".join(number(before[step]) for step in late),
            ", ".join(number(after[step]) for step in late) + f" (largest error {number(error)})",
        )


def on_two_cards(job: Job, journal: Journal) -> None:
    _on_cards(job, journal, 2)


def on_all_cards(job: Job, journal: Journal) -> None:
    _on_cards(job, journal, job.ranks)


def _on_cards(job: Job, journal: Journal, cards: int) -> None:
    name = f"20 steps on {cards} cards"
    with journal.case(name):
        output = job.folder / "out"
        run(job, output, parallel_flags(cards), cards)
        _compare(job, journal, name, output)


def parallel_flags(cards: int) -> dict[str, object]:
    """Tensor and sequence parallelism in pairs of cards; sharded data parallelism across the pairs."""
    pairs = cards // 2
    return {
        "tensor_parallel_degree": 2,
        "sequence_parallel": "true",
        "per_device_train_batch_size": ROWS // pairs,
        "save_strategy": "no",
        **({"sharding": "stage1"} if pairs > 1 else {}),
    }


def _whole_run(job: Job) -> Path:
    """The output folder of the 20-step run, which is started on first use."""
    output = job.shared / "training"
    if not (output / f"checkpoint-{STEPS}").exists():
        shutil.rmtree(output, ignore_errors=True)
        run(job, output, {})
    return output


def _compare(job: Job, journal: Journal, name: str, output: Path) -> None:
    known = reference.read()["training"]
    records = steps(output)
    if fingerprint(job.shared) != known["fingerprint"]:
        journal.differs(
            f"{name}: inputs",
            "text, weights or tokenizer differ from the recorded ones, so nothing was compared",
        )
        return
    for quantity in reference.QUANTITIES:
        recorded, others = known[quantity]["recorded"], known[quantity]["others"]
        values = [record[quantity] for record in records]
        errors = [abs(value - target) for value, target in zip(values, recorded, strict=True)]
        bounds = reference.allowed(recorded, others)
        # Negated so that a NaN counts as wrong.
        wrong = [step for step, error in enumerate(errors) if not error <= bounds[step]]
        step = wrong[0] if wrong else errors.index(max(errors))
        where = "exceeds rounding from" if wrong else "within rounding; largest at"
        journal.judge(
            f"{name}: {quantity}",
            not wrong,
            f"{where} step {step + 1}: error {number(errors[step])}, allowed {number(bounds[step])}",
            number(recorded[step]),
            number(values[step]),
        )
    speeds = sorted(record["tokens_per_s"] for record in records)
    journal.note(f"{name}: speed", f"{speeds[len(speeds) // 2]:,.0f} tokens/s in the median step")


def record(job: Job) -> dict:
    """Losses for ``reference``: of the fused run, and of runs that differ from it only by rounding."""
    fused = {"save_strategy": "no"}
    unfused = {**fused, "disable_fused_options": "true"}
    runs = [(fused, 0), (unfused, 0), *((flags, seed) for flags in (fused, unfused) for seed in (1, 2, 3))]
    records_of = []
    for position, (flags, seed) in enumerate(runs):
        output = job.folder / f"run-{position}"
        run(job, output, flags, seed=seed)
        records_of.append(steps(output))
    recorded = {"fingerprint": fingerprint(job.shared)}
    for quantity in reference.QUANTITIES:
        first, *others = [[record[quantity] for record in records] for records in records_of]
        recorded[quantity] = {"recorded": first, "others": others}
    return recorded


def inputs(folder: Path, seed: int = 0) -> dict[str, object]:
    """The arguments for model and text; creates missing files in ``folder``.

    A nonzero ``seed`` perturbs every weight by 0 or 1 unit in the last place of bfloat16, which emulates
    different rounding.
    """
    text_folder, model = folder / "text", folder / f"model-{seed}"
    if not text_folder.exists():
        with atomic.unfinished(text_folder) as fresh:
            lines = "".join(f"{strict_json.dumps({'text': text})}\n" for text in _documents())
            (fresh / "text.jsonl").write_text(lines)
            atomic.publish(fresh, text_folder)
    if not model.exists():
        from llm_npu.data.text.corpus import corpus
        from llm_npu.data.text.tokenizer import copy_tokenizer, trained_tokenizer

        tokens = trained_tokenizer(corpus(text_folder), MODEL["vocab_size"], str(folder / "cache"))
        with atomic.unfinished(model) as fresh:
            whole = fresh / "whole"
            copy_tokenizer(tokens, whole)
            (whole / "config.json").write_text(strict_json.dumps(MODEL))
            _write_weights(whole / "model.safetensors", seed)
            atomic.publish(whole, model)
    return {"model_name_or_path": model, "input_dir": text_folder, "data_cache": folder / "cache"}


def fingerprint(folder: Path) -> str:
    """A hash of the inputs in ``folder``."""
    digest = hashlib.sha256()
    for name in ("text/text.jsonl", "model-0/tokenizer.json", "model-0/model.safetensors"):
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def run(job: Job, output: Path, arguments: Mapping[str, object], cards: int = 1, seed: int = 0) -> str:
    """The output of ``llm-npu train``. Raises ValueError with its end if the run fails."""
    flags = {
        "output_dir": output,
        "device": job.device_name,
        **inputs(job.shared, seed),
        "continue_training": "true",
        "split": "100,0,0",
        "do_eval": "false",
        "max_steps": STEPS,
        "save_steps": HALFWAY,
        "max_seq_length": TOKENS,
        "per_device_train_batch_size": ROWS,
        "logging_steps": 1,
        "disable_tqdm": "true",
        **({"nproc": cards} if cards > 1 else {}),
        **arguments,
    }
    return command("train", words(flags))


def command(name: str, arguments: Sequence[str], accepted: Sequence[int] = (0,)) -> str:
    """The output of an ``llm-npu`` command. Raises ValueError with its end for an unexpected exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "llm_npu", name, *arguments], capture_output=True, text=True, errors="replace"
    )
    print(done.stdout, done.stderr, flush=True)
    if done.returncode not in accepted:
        raise UserError(f"{name} {ended_by(done.returncode)}: {last_error(done.stdout + done.stderr)}")
    return done.stdout


def last_error(printed: str) -> str:
    """The last error in a program's output with its explanation, or else the last lines."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if ERROR.match(line)]
    quoted = lines[errors[-1] : errors[-1] + 2] if errors else lines[-4:]
    return " ".join(quoted)[-QUOTED:]


def words(arguments: Mapping[str, object]) -> list[str]:
    """``arguments`` as a command-line word list."""
    return [word for name, value in arguments.items() for word in (f"--{name}", str(value))]


def steps(output: Path) -> list[dict]:
    """The records of a run's steps, in order."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "loss" in record]


def _documents() -> list[str]:
    """A learnable language with few words, each usually followed by one of its preferred successors."""
    draw = random.Random(0).random  # the only method whose results are stable across Python releases
    vocabulary = [
        "".join(SYLLABLES[int(draw() * len(SYLLABLES))] for _ in range(1 + int(draw() * 3)))
        for _ in range(200)
    ]
    follows = [[int(draw() * 200) for _ in range(4)] for _ in range(200)]
    documents = []
    for _ in range(DOCUMENTS):
        word, text = int(draw() * 200), []
        for _ in range(WORDS):
            text.append(vocabulary[word])
            word = follows[word][int(draw() * 4)]
        documents.append(" ".join(text))
    return documents


def _write_weights(file: Path, seed: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    h, wide, tokens = (MODEL[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    shapes = {"model.embed_tokens.weight": (tokens, h), "lm_head.weight": (tokens, h)}
    for index in range(MODEL["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": (h, h) for name in "qkvo"}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (wide, h) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (h, wide)
    # Philox is counter-based and its doubles are shifted integers: identical on every platform.
    draw = np.random.Generator(np.random.Philox(1))
    arrays = {
        name: ((draw.random(shape) - 0.5) * (12**0.5 * SCALE)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }
    norms = [f"model.layers.{i}.{name}_layernorm" for i in range(2) for name in ("input", "post_attention")]
    arrays |= {f"{name}.weight": np.ones(h, np.float32) for name in (*norms, "model.norm")}
    if seed:
        other = np.random.Generator(np.random.Philox(seed))
        for array in arrays.values():
            array *= 1 + 2.0**-7 * other.integers(-1, 2, array.shape).astype(np.float32)
    save_file(arrays, file, metadata={"format": "np"})
