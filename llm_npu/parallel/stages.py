"""The layers of each pipeline stage of PaddleNLP's Llama."""

from __future__ import annotations

import re

import numpy as np
import paddle

from llm_npu.core.errors import UserError


def layers_of(stage: int, stages: int, layers: int) -> range:
    """The decoder layers of ``stage``: equal shares, with the remainder on the first stages."""
    part = np.array_split(np.arange(layers), stages)[stage]
    return range(int(part[0]), int(part[-1]) + 1)


def stage_of(name: str, stages: int, layers: int) -> int:
    """The stage of the layer of this name, for a model with this number of decoder layers."""
    if match := re.match(r"llama\.layers\.(\d+)", name):
        return next(stage for stage in range(stages) if int(match[1]) in layers_of(stage, stages, layers))
    return 0 if name.startswith("llama.embed_tokens") else stages - 1


def check(config, stages: int) -> None:
    """Raises ValueError for more stages than layers, and for an output layer tied to the embedding."""
    if stages > config.num_hidden_layers:
        raise UserError(
            f"pp is {stages}, but the model has {config.num_hidden_layers} layers; choose a smaller degree"
        )
    if config.tie_word_embeddings:
        raise UserError(
            "the model's output layer is tied to its embedding (tie_word_embeddings), but in a pipeline "
            "they are on different processes; choose pp=1, a model with an untied output layer, or "
            "PaddleNLP's pipeline, without --enable_auto_parallel"
        )


def cut(model, stage: int, stages: int) -> None:
    """Keeps only the layers of ``stage`` in ``model``, under their names in the whole model.

    The first stage has the embedding, the last one the norm and the output layer; ``model.llama`` maps token
    ids (or, as ``inputs_embeds``, the output of the previous stage) to the output of the stage.

    ValueError as ``check``.
    """
    check(model.config, stages)
    llama, layers = model.llama, model.config.num_hidden_layers
    kept = layers_of(stage, stages, layers)
    for index in range(layers):
        if index not in kept:
            llama.layers._sub_layers.pop(str(index))  # deleting from the list would renumber the others
    if stage > 0:
        del llama.embed_tokens
    if stage < stages - 1:
        llama.norm = paddle.nn.Identity()
        del model.lm_head
