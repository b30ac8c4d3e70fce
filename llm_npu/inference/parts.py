"""Load a rank's part of a checkpoint for ``generate``: the layers of its stage, and its shard of each layer.

A stage is the library's model with fewer layers. Three of its modules are replaced to connect the stages:

    first stage    embedding, layers, send
    middle stages  receive,   layers, send
    last stage     receive,   layers, norm, logits of the last token -> all stages

All stages receive the same logits and therefore choose the same token. Each stage caches only its own layers.

B batch, T tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import paddle
from paddle import distributed
from paddle.distributed import fleet

from llm_npu.models import degrees, families, pretrained, weights
from llm_npu.models.families import FAMILIES
from llm_npu.parallel import mesh as meshes
from llm_npu.parallel.apply import parallelize
from llm_npu.parallel.plan import dense, placements
from llm_npu.parallel.stages import layers_of

from . import program

# Configuration fields with one entry per layer.
BY_LAYER = ("layer_types",)


def load_split(folder: str | Path, dtype: str | None, pipeline: int):
    """Load this rank's part with the library's tensor-parallel layers. Call ``fleet.init`` first."""
    groups = fleet.get_hybrid_communicate_group()
    config = pretrained.config_of(folder)
    degrees.divide(config, groups.get_model_parallel_world_size(), groups.get_model_parallel_rank())
    layers = _narrow(config, groups.get_stage_id(), pipeline)
    model = families.cast(families.new_model(config), pretrained.dtype_of(config, dtype))
    weights.load(model, folder, layers)
    model.eval()
    if pipeline > 1:
        _connect(model, groups.get_pipe_parallel_group())
    return model


def load_placed(folder: str | Path, dtype: str | None, of_run: meshes.Degrees, to_static: bool = False):
    """Load this rank's part of PaddleNLP's single-device model, sharded by auto-parallel. Collective.

    Parameters and the key/value cache are distributed tensors. The logits are replicated dense tensors.

    Args:
        to_static: run programs (``program``); requires a single stage.
    """
    mesh = meshes.make(of_run)[of_run.stage]
    config = pretrained.config_of(folder)
    layers = _narrow(config, of_run.stage, of_run.pp)
    model = families.cast(families.new_model(config), pretrained.dtype_of(config, dtype))
    parallelize(model, mesh, dense(model.base_model_prefix))
    weights.load(model, folder, layers)
    model.eval()

    def whole(tensor):
        return (
            distributed.reshard(tensor, mesh, placements(None, None))._local_value()
            if tensor.is_dist()
            else tensor
        )

    if to_static:
        program.StaticForward(model, mesh)
    elif of_run.pp > 1:
        _connect(model, meshes.column(of_run), whole)
    else:
        model.lm_head.register_forward_post_hook(lambda _layer, _inputs, logits: whole(logits))
    return model


def _narrow(config, stage: int, stages: int) -> range:
    """Reduce ``config`` to the layers of ``stage`` and return their indices in the whole model.

    The last stage's range is open-ended, so a file with more layers than the model is rejected.
    """
    layers = layers_of(stage, stages, config.num_hidden_layers)
    config.num_hidden_layers = len(layers)
    for name in BY_LAYER:
        if of_layers := getattr(config, name, None):
            setattr(config, name, [of_layers[layer] for layer in layers])
    experts = FAMILIES[config.model_type].experts
    if experts and experts.first_dense:
        first = getattr(config, experts.first_dense)
        setattr(config, experts.first_dense, max(0, first - layers.start))
    return range(layers.start, sys.maxsize) if stage == stages - 1 else layers


def _connect(model, group, whole: Callable = lambda hidden: hidden) -> None:
    """Turn ``model``, which holds the layers of this rank's stage, into one stage of the whole model.

    Embedding and output layer remain on the stages that use them.

    Args:
        group: one rank of each stage, in stage order.
        whole: converts a stage's result to a dense tensor.
    """
    dtype = model.parameters()[0].dtype
    stage, last = group.ranks.index(distributed.get_rank()), len(group.ranks) - 1
    inner = getattr(model, model.base_model_prefix)
    if stage > 0:
        inner.embed_tokens = _Received(group, stage - 1, model.config.hidden_size, dtype)
    if stage < last:
        inner.norm = _Sent(group, stage + 1, whole)
    head = model.lm_head if stage == last else None
    model.lm_head = _Logits(group, model.config.vocab_size, head, whole)


class _Received(paddle.nn.Layer):
    """Token ids [B, T] -> the previous stage's hidden states [B, T, H]."""

    def __init__(self, group, source: int, hidden_size: int, dtype: paddle.dtype):
        super().__init__()
        self._group, self._source, self._hidden_size = group, group.ranks[source], hidden_size
        self.weight = paddle.empty([0], dtype)  # PaddleFormers' models read the dtype of this attribute

    def forward(self, input_ids):
        hidden = paddle.empty([*input_ids.shape, self._hidden_size], self.weight.dtype)
        distributed.recv(hidden, src=self._source, group=self._group)
        return hidden


class _Sent(paddle.nn.Layer):
    """Sends the hidden states to the next stage."""

    def __init__(self, group, destination: int, whole: Callable):
        super().__init__()
        self._group, self._destination, self._whole = group, group.ranks[destination], whole

    def forward(self, hidden):
        distributed.send(self._whole(hidden), dst=self._destination, group=self._group)
        return hidden


class _Logits(paddle.nn.Layer):
    """Hidden states [B, T, H] -> float32 logits of the last token [B, 1, V].

    The last stage's ``head`` computes the logits; ``head`` is None on the other stages.
    """

    def __init__(self, group, vocab_size: int, head: paddle.nn.Layer | None, whole: Callable):
        super().__init__()
        self._group, self._vocab_size, self._whole = group, vocab_size, whole
        self.head = head

    def forward(self, hidden, **options):
        if self.head is None:
            logits = paddle.empty([hidden.shape[0], 1, self._vocab_size], "float32")
        else:
            logits = self._whole(self.head(hidden[:, -1:], **options)).astype("float32")
        distributed.broadcast(logits, src=self._group.ranks[-1], group=self._group)
        return logits
