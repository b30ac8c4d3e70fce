"""Forward-only programs of an annotated model, one per rank, for rows of a fixed shape.

    program = Program(Logits(model, mesh), model, mesh, [[rows, tokens]])
    logits = program([ids])                       # collective
    StaticForward(model, mesh)                    # the library's generate now runs programs

A program has no key/value cache: it computes whole rows, padded at the end. It is causal, so padding does not
affect the tokens before it.

B rows, T tokens of a row, V vocabulary size.
"""

from __future__ import annotations

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

from llm_npu.parallel.plan import placements
from llm_npu.parallel.program import share

from .generate import whole_tables

SHORTEST = 64  # minimum row length of a program; longer rows are padded to a power of two


class Logits(paddle.nn.Layer):
    """Token ids [B, T] -> float32 logits [B, T, V], replicated on all ranks."""

    def __init__(self, model, mesh: dist.ProcessMesh):
        super().__init__()
        self.model, self._mesh = model, mesh

    def forward(self, input_ids):
        return self._whole(self._hidden(input_ids))

    def _hidden(self, input_ids):
        return getattr(self.model, self.model.base_model_prefix)(input_ids, use_cache=False)[0]

    def _whole(self, hidden):
        return dist.reshard(self.model.lm_head(hidden).astype("float32"), self._mesh, placements(None, None))


class LastLogits(Logits):
    """Token ids [B, T], indices [B, 1, 1] -> float32 logits [B, 1, V] of the tokens at the indices."""

    def forward(self, input_ids, places):
        return self._whole(paddle.take_along_axis(self._hidden(input_ids), places, axis=1))


class Program:
    """The compiled program of ``layer`` for int64 inputs of ``shapes``.

    The program shares its parameter memory with the model.

    Attributes:
        dense: this rank's program, which ``executor`` runs in ``scope``.
        output: the logits variable of the program.
    """

    def __init__(self, layer: Logits, model, mesh: dist.ProcessMesh, shapes: list[list[int]]):
        specs = [_spec(shape, number, mesh) for number, shape in enumerate(shapes)]
        self.names = [spec.name for spec in specs]
        self.scope = paddle.static.Scope()
        with paddle.static.scope_guard(self.scope), whole_tables(model):
            # Paddle only names the output of a loss.
            distributed = dist.to_static(layer, None, lambda logits: logits, input_spec=[specs, []])
            distributed.eval()
            engine = distributed._engine
            engine.program_helper.init_pir(engine._pir_dist_main_progs["eval"], engine._place)
        paddle.disable_static()  # building a program enables static mode
        self.dense = engine._pir_dense_main_progs["eval"]
        self.output = self.dense.get_output_value_by_name(engine._loss_names[0])
        self.executor = paddle.static.Executor(engine._place)
        taken = engine.concrete_program.parameters[0]
        share([(weight, weight.name) for weight in taken if self.scope.find_var(weight.name)], self.scope)

    def __call__(self, inputs: list[np.ndarray]) -> np.ndarray:
        paddle.enable_static()
        try:
            with paddle.static.scope_guard(self.scope):
                feed = dict(zip(self.names, inputs, strict=True))
                return self.executor.run(self.dense, feed=feed, fetch_list=[self.output])[0]
        finally:
            paddle.disable_static()


def _spec(shape: list[int], number: int, mesh: dist.ProcessMesh) -> DistributedInputSpec:
    tensor = dist.shard_tensor(paddle.zeros(shape, "int64"), mesh, placements(None, None))
    return DistributedInputSpec.from_dtensor(tensor, f"input_{number}")


class StaticForward:
    """Replaces the forward of ``model``: left-padded batches run through a program without a cache.

    One program serves all batches up to its shape.
    """

    def __init__(self, model, mesh: dist.ProcessMesh):
        self._model, self._mesh = model, mesh
        self._program: Program | None = None
        self._rows = self._length = 0
        model.__dict__["forward"] = self.forward

    def forward(self, input_ids, attention_mask, **_):
        """(float32 logits [B, 1, V] of the last token of each row,)."""
        rows, mask = input_ids.numpy(), attention_mask.numpy()
        self._prepare(*rows.shape)
        ids = np.zeros([self._rows, self._length], np.int64)
        places = np.zeros([self._rows, 1, 1], np.int64)
        for number, (row, is_token) in enumerate(zip(rows, mask.astype(bool), strict=True)):
            ids[number, : is_token.sum()] = row[is_token]
            places[number] = is_token.sum() - 1
        logits = self._program([ids, places])
        return (paddle.to_tensor(logits[: len(rows)]),)

    def _prepare(self, rows: int, length: int) -> None:
        if rows <= self._rows and length <= self._length:
            return
        length = max(SHORTEST, 1 << (length - 1).bit_length())
        self._rows = max(rows, self._rows)
        self._length = max(min(length, self._model.config.max_position_embeddings), self._length)
        layer = LastLogits(self._model, self._mesh)
        shapes = [[self._rows, self._length], [self._rows, 1, 1]]
        self._program = Program(layer, self._model, self._mesh, shapes)
