"""config.json of Hugging Face's transformers and of PaddleNLP: the fields in which they differ.

Importing it imports no framework.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from llm_npu.core.untrusted import plain_json

from .families import SIZES, model_class

FILE = "config.json"

# Fields that mean the same to both readers; PaddleNLP leaves out those at its own defaults.
SHARED_FIELDS = (
    *SIZES,
    "rms_norm_eps",
    "rope_theta",
    "initializer_range",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)

# Kinds of rope_scaling in Hugging Face's Llama -> rope_scaling_type in PaddleNLP's. Both read llama3.
SCALINGS = {"linear": "linear", "dynamic": "dynamic_ntk"}


def model_type(folder: str | Path) -> str | None:
    """The ``model_type`` in the config.json of ``folder``; None where there is no such file or field."""
    try:
        return plain_json.mapping(Path(folder) / FILE).get("model_type")
    except (OSError, ValueError):
        return None


def from_stock(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields of a config.json as PaddleNLP's configurations take them; an InternLM2 becomes a Llama.

    transformers 5 has ``rope_parameters`` for ``rope_theta`` and ``rope_scaling``, and ``dtype`` for
    ``torch_dtype``. ValueError for an InternLM2 with biases.
    """
    from . import internlm2  # not above: numpy is not needed to read arguments

    fields = dict(fields)
    if fields.get("model_type") == internlm2.MODEL_TYPE:
        fields = internlm2.llama_config(fields)
    rope = fields.pop("rope_parameters", None)
    if isinstance(rope, dict):
        scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
        fields |= {"rope_theta": rope.get("rope_theta", 10000.0), "rope_scaling": scaling}
    scaling = fields.get("rope_scaling")
    if isinstance(scaling, dict):
        kind = scaling.get("rope_type") or scaling.get("type")
        if kind == "default":
            fields["rope_scaling"] = None
        elif fields.get("model_type") == "llama" and kind in SCALINGS:
            del fields["rope_scaling"]
            fields |= {"rope_scaling_type": SCALINGS[kind], "rope_scaling_factor": scaling.get("factor", 1.0)}
        else:
            fields["rope_scaling"] = {**scaling, "rope_type": kind}  # PaddleNLP does not look for "type"
    return fields


def save(config, folder: Path, dtype: str) -> None:
    """Write config.json with what Hugging Face's reader needs and PaddleNLP leaves out or calls otherwise.

    ``config``: a ``LlamaConfig``, ``Qwen2Config``, ...; ``dtype``: of the weights.
    """

    config.save_pretrained(str(folder))
    file = folder / FILE
    written = json.loads(file.read_text())
    written.update(
        architectures=[model_class(config.model_type).__name__],
        model_type=config.model_type,
        torch_dtype=dtype,
        hidden_act="silu",
        **{field: getattr(config, field) for field in SHARED_FIELDS},
    )
    if config.model_type == "llama":
        written.update(attention_bias=False, mlp_bias=False)
    kinds = {own: stock for stock, own in SCALINGS.items()}
    if kind := kinds.get(getattr(config, "rope_scaling_type", None)):
        written["rope_scaling"] = {"rope_type": kind, "factor": config.rope_scaling_factor}
    file.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
