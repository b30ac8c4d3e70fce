"""A small training run with ``llm-npu train`` on inputs that are equal on every machine.

Text, weights and tokenizer are generated independently of the device, the release of Python and its library;
``fingerprint`` tells whether they equal those of the recorded run.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_npu.core import atomic
from llm_npu.core.errors import UserError
from paddle_fused import strict_json

from .pieces import Job

STEPS, HALFWAY = 20, 10
ROWS, TOKENS = 8, 128  # per step, and per row
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
TAIL = 3000  # characters quoted of a failed run
ERROR = re.compile(r"([\w.]+(Error|Exception)|error):")


def inputs(folder: Path, disturbed: int = 0) -> dict[str, object]:
    """The arguments that name the model and the text, which are created in ``folder`` if missing.

    With ``disturbed``, every weight is randomly changed by 0 or 1 unit in the last place of bfloat16: the
    same weights with other roundings, different ones for each number.
    """
    text, model = folder / "text", folder / f"model-{disturbed}"
    if not text.exists():
        with atomic.unfinished(text) as fresh:
            lines = "".join(f"{strict_json.dumps({'text': each})}\n" for each in _documents())
            (fresh / "text.jsonl").write_text(lines)
            atomic.publish(fresh, text)
    if not model.exists():
        from llm_npu.data.text.corpus import corpus
        from llm_npu.data.text.tokenizer import copy_tokenizer, trained_tokenizer

        tokens = trained_tokenizer(corpus(text), MODEL["vocab_size"], str(folder / "cache"))
        with atomic.unfinished(model) as fresh:
            whole = fresh / "whole"
            copy_tokenizer(tokens, whole)
            (whole / "config.json").write_text(strict_json.dumps(MODEL))
            _write_weights(whole / "model.safetensors", disturbed)
            atomic.publish(whole, model)
    return {"model_name_or_path": model, "input_dir": text, "data_cache": folder / "cache"}


def fingerprint(folder: Path) -> str:
    """The fingerprint of the inputs in ``folder``."""
    digest = hashlib.sha256()
    for name in ("text/text.jsonl", "model-0/tokenizer.json", "model-0/model.safetensors"):
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def run(job: Job, output: Path, arguments: Mapping[str, object], cards: int = 1, disturbed: int = 0) -> None:
    """Trains with ``llm-npu train``; ValueError, with the end of its output, if that fails."""
    given = {
        "output_dir": output,
        "device": job.device_name,
        **inputs(job.shared, disturbed),
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
    command("train", words(given))


def command(name: str, arguments: Sequence[str], accepted: Sequence[int] = (0,)) -> str:
    """The output of a command of ``llm-npu``; ValueError, with the end of it, for another exit code."""
    words = [sys.executable, "-m", "llm_npu", name, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    print(done.stdout, done.stderr, flush=True)
    if done.returncode not in accepted:
        from .process import ended_by

        raise UserError(f"{name} {ended_by(done.returncode)}: {last_error(done.stdout + done.stderr)}")
    return done.stdout


def last_error(printed: str) -> str:
    """The last error that a program printed, with the explanations after it; or its last lines."""
    said = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(said) if ERROR.match(line)]
    quoted = said[errors[-1] : errors[-1] + 2] if errors else said[-4:]
    return " ".join(quoted)[-TAIL:]


def words(arguments: Mapping[str, object]) -> list[str]:
    """``arguments`` as command-line words."""
    return [word for name, value in arguments.items() for word in (f"--{name}", str(value))]


def steps(output: Path) -> list[dict]:
    """The records of a run's steps, in order."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "loss" in record]


def _documents() -> list[str]:
    """A learnable language with few words, each usually followed by one of its favourites."""
    draw = random.Random(0).random  # the one of Python's generators that is stable across releases
    vocabulary = [
        "".join(SYLLABLES[int(draw() * len(SYLLABLES))] for _ in range(1 + int(draw() * 3)))
        for _ in range(200)
    ]
    follows = [[int(draw() * 200) for _ in range(4)] for _ in range(200)]
    documents = []
    for _ in range(DOCUMENTS):
        word, said = int(draw() * 200), []
        for _ in range(WORDS):
            said.append(vocabulary[word])
            word = follows[word][int(draw() * 4)]
        documents.append(" ".join(said))
    return documents


def _write_weights(file: Path, disturbed: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    h, wide, tokens = (MODEL[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    shapes = {"model.embed_tokens.weight": (tokens, h), "lm_head.weight": (tokens, h)}
    for number in range(MODEL["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": (h, h) for name in "qkvo"}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (wide, h) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (h, wide)
    # Philox is counter-based, and its doubles are shifted integers: equal everywhere.
    draw = np.random.Generator(np.random.Philox(1))
    arrays = {
        name: ((draw.random(shape) - 0.5) * (12**0.5 * SCALE)).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }
    norms = [f"model.layers.{i}.{name}_layernorm" for i in range(2) for name in ("input", "post_attention")]
    arrays |= {f"{name}.weight": np.ones(h, np.float32) for name in (*norms, "model.norm")}
    if disturbed:
        other = np.random.Generator(np.random.Philox(disturbed))
        for array in arrays.values():
            array *= 1 + 2.0**-7 * other.integers(-1, 2, array.shape).astype(np.float32)
    save_file(arrays, file, metadata={"format": "np"})
