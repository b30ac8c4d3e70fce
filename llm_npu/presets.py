"""Named models for random initialisation, and the configuration of a local directory."""

from __future__ import annotations


def model_config(name_or_path: str, **overrides):
    """The ``LlamaConfig`` of a preset or of a local directory with a config.json; never a download.

    ``overrides`` replace fields (``None`` leaves the field as it is). Imports paddlenlp.
    ValueError for an unknown name (naming the presets and the nearest), for a directory without a readable
    config.json, for another architecture than Llama, and for fields that do not fit each other.
    """
    raise NotImplementedError


def has_weights(path: str) -> bool:
    """Whether ``path`` is a directory that holds model weights (safetensors or pdparams)."""
    raise NotImplementedError
