"""The weights of language models in the Hugging Face layout, in ``model.safetensors``.

The files have the upstream layout, regardless of how the model is fused or split (``llm_npu.models.layout``):
any reader of the family can load them, and ``load`` accepts any checkpoint of the family. InternLM2
checkpoints load into a Llama. PaddleNLP's ``from_pretrained`` reads the files with
``convert_from_torch=True``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError

from . import layout, own_experts, upstream_config
from .families import CONVERSIONS
from .stored import FILE, Stored, write

__all__ = ["FILE", "digest", "from_upstream", "load", "save", "to_upstream"]


def save(model, folder: str | Path) -> None:
    """Write ``model.safetensors`` and ``config.json`` in the parameters' dtype; ``model`` must be whole.

    ``llm_npu.training.checkpoint.saving.export`` writes a split model.
    """
    write(to_upstream(model), Path(folder))
    save_config(model, Path(folder))


def save_config(model, folder: Path) -> None:
    """Write ``config.json``, which includes the dtype of the parameters."""
    upstream_config.save(
        model.config, folder, str(next(iter(model.parameters())).dtype).removeprefix("paddle.")
    )


def load(model, folder: str | Path, layers: range | None = None) -> None:
    """Set the parameters of ``model`` from the safetensors files in ``folder``, in the parameters' own dtype.

    A process with a part of the model reads its part. ``layers``: the layers of the files that ``model`` has,
    if not all. Raises UserError for unreadable files, and for weights that are missing, unknown or of another
    shape.
    """
    stored = Stored(folder)
    if conversion := CONVERSIONS.get(upstream_config.model_type(folder)):
        config = model.config
        stored = conversion.arrays(stored, config.num_attention_heads, config.num_key_value_heads)
    from_upstream(model, stored if layers is None else _Renumbered(stored, layers))


class _Renumbered(Mapping[str, np.ndarray]):
    """``stored`` with only the decoder layers in ``layers``, renumbered from 0."""

    def __init__(self, stored: Mapping[str, np.ndarray], layers: range):
        self._stored, self._stored_names = stored, {}
        for name in stored:
            layer = re.match(r"model\.layers\.(\d+)\.", name)
            if layer is None:
                self._stored_names[name] = name
            elif int(layer[1]) in layers:
                new = f"model.layers.{int(layer[1]) - layers.start}.{name[layer.end() :]}"
                self._stored_names[new] = name

    def __getitem__(self, name: str) -> np.ndarray:
        return self._stored[self._stored_names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored_names)

    def __len__(self) -> int:
        return len(self._stored_names)


def digest(folder: str | Path) -> str:
    """SHA-256 over the safetensors files in ``folder``."""
    sha = hashlib.sha256()
    for file in sorted(Path(folder).glob("*.safetensors")):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()


def to_upstream(model) -> dict[str, np.ndarray]:
    """{Hugging Face name: array} of every parameter; bfloat16 as uint16, as in Paddle's ``numpy()``.

    The model must not be split over processes.
    """
    upstream: dict[str, np.ndarray] = {}
    for name, parameter in layout.parameters(model).items():
        array = parameter.numpy()
        for block in layout.blocks(name, parameter, model.config)[1]:
            if block.name not in upstream:
                upstream[block.name] = np.empty(block.shape, array.dtype)
            upstream[block.name][block.box] = block.of(array)
    return upstream


def from_upstream(model, upstream: Mapping[str, np.ndarray]) -> None:
    """Set the parameters of ``model`` from ``upstream``, {Hugging Face name: array}; bfloat16 as uint16."""
    # Older files contain rotary frequencies, which follow from the configuration.
    unused = {name for name in upstream if not name.endswith("rotary_emb.inv_freq")}
    if model.config.tie_word_embeddings:
        unused.discard("lm_head.weight")
    for name, parameter in layout.parameters(model).items():
        shape, blocks = layout.blocks(name, parameter, model.config)
        whole = {block.name: block.shape for block in blocks}
        for part in whole:
            if part not in upstream:
                raise UserError(f"The weights lack {part}; they do not belong to {_size(model)}")
        arrays = {part: upstream[part] for part in whole}
        if any(arrays[part].shape != wanted for part, wanted in whole.items()):
            shapes = " and ".join(f"{list(array.shape)}" for array in arrays.values())
            raise UserError(f"{name} is {shapes} in the file, which does not fit {_size(model)}")
        values = np.empty(shape, next(iter(arrays.values())).dtype)
        for block in blocks:
            block.of(values)[...] = arrays[block.name][block.box]
        layout.assign(parameter, layout.as_dtype(values, parameter.dtype))
        unused -= whole.keys()
    # Other processes may have the other experts.
    if getattr(model.config, "moe_world_size", 1) > 1 or own_experts.share_of_model(model) is not None:
        unused = {name for name in unused if ".experts." not in name}
    if unused and model.base_model_prefix:  # a pipeline stage uses only some of the weights
        raise UserError(f"The weights hold {sorted(unused)[0]}, which {_size(model)} does not have")


def _size(model) -> str:
    c = model.config
    heads = f"{c.num_attention_heads}/{c.num_key_value_heads or c.num_attention_heads}"
    return (
        f"this model (hidden {c.hidden_size}, {c.num_hidden_layers} layers, "
        f"{heads} heads, vocabulary {c.vocab_size})"
    )
