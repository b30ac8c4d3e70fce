"""Switches of a file for ``paddleformers-cli train`` that have no effect."""

from __future__ import annotations

from pathlib import Path

import yaml

_COMPUTE_TYPE = "PaddleFormers takes the dtype from compute_type: bf16, fp16 or float32"
# {key: (the values that have no effect, why)}; no values: whichever.
WITHOUT_EFFECT = {
    "use_sparse_flash_attn": (
        (),
        "PaddleFormers does not read it; fused attention is sparse wherever it can be",
    ),
    "fuse_softmax_mask": ((), "PaddleFormers does not read it; fused attention has its softmax inside"),
    "use_fast_layer_norm": ((), "PaddleFormers hands it to the model's configuration, which no model reads"),
    "fuse_gate_detach_matmul": ((), "PaddleFormers takes it from the model's config.json"),
    "bf16": ((False,), _COMPUTE_TYPE),
    "fp16": ((True,), _COMPUTE_TYPE),
}


def without_effect(arguments: list[str]) -> list[str]:
    """One sentence for each switch in ``FILE [KEY=VALUE ...]`` that does nothing."""
    given = _content(Path(arguments[0])) if arguments else {}
    for argument in arguments[1:]:
        name, _, value = argument.partition("=")
        given[name] = yaml.safe_load(value)
    return [
        f"{name}: {given[name]} does nothing. {why}."
        for name, (values, why) in WITHOUT_EFFECT.items()
        if name in given and (not values or given[name] in values)
    ]


def _content(file: Path) -> dict:
    """Of a YAML or JSON file; nothing of one that PaddleFormers will refuse itself."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
