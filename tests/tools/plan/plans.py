"""Command lines and models that several tests of the planner ask about."""

import json
from pathlib import Path

PUBLISHED = ["--model_name_or_path", "llama2-70b", "--cards", "32", "--global_batch_size", "512"]
DEGREES = [
    "--tensor_parallel_degree",
    "8",
    "--pipeline_parallel_degree",
    "4",
    "--sequence_parallel",
    "--overlap",
    "mc2",
]
SIZES = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}


def model(folder: Path, **fields) -> str:
    """A directory with a config.json of SIZES, in which ``fields`` replace others; None leaves one out."""
    fields = {"model_type": "llama"} | SIZES | fields
    config = {name: value for name, value in fields.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
