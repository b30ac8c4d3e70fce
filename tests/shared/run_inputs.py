"""What the training script needs for a small run: a little text, a very small Llama and its tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import trained_tokenizer
from llm_npu.training import metrics

LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
# Models of other families, by the fields that differ.
OTHERS = {
    "GPT": {
        "model_type": "gpt",
        "num_key_value_heads": None,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "Gemma": {"model_type": "gemma", "head_dim": 16},
}


def inputs(folder: Path, sources: Sequence[str] = ("heapq.py",), **sizes: object) -> dict[str, Path]:
    """The arguments that name what is made in ``folder``.

    ``sources``: modules of Python's library, the text. ``sizes`` differ from those of ``LLAMA``.
    """
    text, model = folder / "text", folder / "model"
    text.mkdir()
    for name in sources:
        shutil.copy(Path(os.__file__).parent / name, text)
    shutil.copytree(trained_tokenizer(corpus(text), LLAMA["vocab_size"], str(folder)), model)
    (model / "config.json").write_text(json.dumps({**LLAMA, **sizes}))
    return {"model_name_or_path": model, "input_dir": text, "data_cache": folder}


def conversations(folder: Path) -> Path:
    """Sums, several of which fit in a row; no two rows have equally many labels."""
    sums = [{"src": f"{a} + {b}?", "tgt": f"{a + b}" + "!" * (a % 4)} for a in range(40) for b in (1, 2, 3)]
    folder.mkdir(exist_ok=True)
    (folder / "sums.jsonl").write_text("".join(json.dumps(sum_of_two) + "\n" for sum_of_two in sums))
    return folder


def short_run(folder: Path, **options: object) -> dict[str, object]:
    """The arguments of a run of short samples that says every step; ``given`` are more of them."""
    short = {"max_seq_length": 32, "per_device_train_batch_size": 2, "logging_steps": 1, "split": "80,20,0"}
    return {**inputs(folder), **short, **options}


def words(arguments: Mapping[str, object]) -> list[str]:
    """``arguments`` as they stand on a command line."""
    return [word for name, value in arguments.items() for word in (f"--{name}", str(value))]


def losses(output_dir):
    """{step: loss} and {step: evaluation loss}; JSON keeps every bit of a float."""
    records = metrics.read(output_dir / metrics.FILE)
    train = {record["step"]: record["loss"] for record in records if "loss" in record}
    return train, {record["step"]: record["eval_loss"] for record in records if "eval_loss" in record}
