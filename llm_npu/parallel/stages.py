"""The parts of PaddleNLP's Llama that each pipeline stage has."""

from __future__ import annotations

import re

import numpy as np
import paddle

from llm_npu.core.errors import UserError


def layers_of(stage: int, stages: int, layers: int) -> range:
    """The decoder layers of ``stage``: as many as of any other, and one more in the first ones if need be."""
    part = np.array_split(np.arange(layers), stages)[stage]
    return range(int(part[0]), int(part[-1]) + 1)


def stage_of(name: str, stages: int, layers: int) -> int:
    """The stage of the layer of this name, of a model of so many decoder layers."""
    if found := re.match(r"llama\.layers\.(\d+)", name):
        return next(each for each in range(stages) if int(found[1]) in layers_of(each, stages, layers))
    return 0 if name.startswith("llama.embed_tokens") else stages - 1


def check(config, stages: int) -> None:
    """ValueError for more stages than layers, and for an output layer that is the embedding."""
    if stages > config.num_hidden_layers:
        raise UserError(
            f"pp is {stages}, but the model has {config.num_hidden_layers} layers; choose a smaller degree."
        )
    if config.tie_word_embeddings:
        raise UserError(
            "the model's output layer is its embedding (tie_word_embeddings), but in a pipeline they are in "
            "different processes; choose pp=1, a model with an output layer of its own, or PaddleNLP's "
            "pipeline, without --enable_auto_parallel."
        )


def cut(model, stage: int, stages: int) -> None:
    """Leaves in ``model`` what ``stage`` has, under the names that it has in the whole model.

    The first stage has the embedding, the last one the norm and the output layer; ``model.llama`` turns token
    ids (or, as ``inputs_embeds``, what the stage before hands on) into what the stage hands on.

    ValueError as ``check``.
    """
    check(model.config, stages)
    llama, layers = model.llama, model.config.num_hidden_layers
    kept = layers_of(stage, stages, layers)
    for index in range(layers):
        if index not in kept:
            llama.layers._sub_layers.pop(str(index))  # deleting from the list would number the others anew
    if stage > 0:
        del llama.embed_tokens
    if stage < stages - 1:
        llama.norm = paddle.nn.Identity()
        del model.lm_head
