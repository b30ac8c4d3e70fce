"""Converts config.json between Hugging Face's transformers and the library.

Importing it imports no framework.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from llm_npu.core.untrusted import plain_json
from llm_npu.models.family import Family
from paddle_fused import strict_json

from . import settings
from .checks import SIZES
from .families import CONVERSIONS, FAMILIES, model_class
from .library import names

FILE = "config.json"

# Fields with the same meaning in both; the library omits fields at its own defaults.
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


def model_type(folder: str | Path) -> str | None:
    """The ``model_type`` in the config.json of ``folder``; None if the file or field is missing."""
    try:
        kind = plain_json.mapping(Path(folder) / FILE).get("model_type")
    except (OSError, ValueError):
        return None
    return kind if isinstance(kind, str) else None


def from_upstream(fields: Mapping[str, object], file: object) -> dict[str, object]:
    """Normalize the fields of ``file``, a config.json; InternLM2 becomes Llama, GPT-2 becomes GPT.

    transformers 5 has ``rope_parameters`` instead of ``rope_theta`` and ``rope_scaling``, and ``dtype``
    instead of ``torch_dtype``. It and PaddleFormers write ``num_local_experts`` for Qwen3-MoE's
    ``num_experts``. Raises UserError for a model that cannot be converted.
    """
    fields = dict(fields)
    named = fields.get("model_type")
    if isinstance(named, str) and named in CONVERSIONS:
        fields = CONVERSIONS[named].fields(fields)
    family = _family(fields.get("model_type"))
    if family and family.experts and "num_local_experts" in fields:
        number = fields.pop("num_local_experts")
        fields.setdefault(family.experts.number, number)
    return settings.rotary.normalized(fields, family, file)


def save(config, folder: Path, dtype: str) -> None:
    """Write config.json, adding fields that Hugging Face needs and the library omits or renames.

    ``config``: a ``LlamaConfig``, ``Qwen2Config``, ...; ``dtype``: the dtype of the weights.
    """
    config.save_pretrained(str(folder))
    family = FAMILIES[config.model_type]
    file = folder / FILE
    if family.stored_as:
        written = {**family.stored_as.fields(config), "torch_dtype": dtype}
        file.write_text(strict_json.dumps(written, indent=2, sort_keys=True) + "\n")
        return
    written = json.loads(file.read_text())
    written.update(
        architectures=[model_class(config.model_type).__name__],
        model_type=config.model_type,
        torch_dtype=dtype,
        hidden_act=family.activations[0],
        **{field: getattr(config, field) for field in (*SHARED_FIELDS, *family.defaults)},
        **family.required_by_transformers,
    )
    for name in names.UNSAVED:
        written.pop(name, None)
    kinds = {own: upstream for upstream, own in family.rope_scalings.items() if own}
    if kind := kinds.get(getattr(config, "rope_scaling_type", None)):
        written["rope_scaling"] = {"rope_type": kind, "factor": config.rope_scaling_factor}
    file.write_text(strict_json.dumps(written, indent=2, sort_keys=True) + "\n")


def _family(model_type: object) -> Family | None:
    """The family, or None if it is unknown."""
    return FAMILIES.get(model_type) if isinstance(model_type, str) else None
