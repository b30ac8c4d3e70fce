"""Patches for defects of DualPipeV, a V-shaped pipeline schedule, in Paddle and PaddleNLP.

In a V-shaped pipeline of S stages, stage s has the parts s and 2 S - 1 - s of the model, called phases 0 and
1. The first stage thus has the first and the last part, and computes the loss.
"""

from __future__ import annotations

import functools

import paddle


def apply() -> None:
    """Apply those for Paddle."""
    fix_transfers()
    fix_evaluation()


@functools.cache
def fix_transfers() -> None:
    """Paddle 3.2 and 3.3: DualPipeV fails on custom devices ("no attribute 'get_event_from_custom_stream'").

    ``_commit_and_wait_comm`` records events with DeepEP, which exists only in CUDA builds, and asks
    ``ProcessGroupCustom`` for its stream, which it does not have. Its transfers are also issued as one group
    in arbitrary order, which deadlocks on a card (``fix_interleaved_pipeline_order``). With the patch all
    transfers are waited for in order, and stages alternate: even stages send first, odd stages receive first,
    and transfers towards the last stage precede transfers towards the first.
    """
    from paddle.distributed.fleet.meta_parallel import dualpipev

    if dualpipev.deep_ep is not None:
        return

    def _commit_and_wait_comm(self, p2p_overlap=False, use_outer_event_wait=False):
        for transfers in (self.comm_forward_ops, self.comm_backward_ops):
            for transfer in sorted(transfers, key=functools.partial(_turn, self.group_rank)):
                task = transfer.op(transfer.tensor, transfer.peer, transfer.group)
                if task is not None:
                    task.wait()
        self.comm_forward_ops, self.comm_backward_ops = [], []
        self._free_tensors()

    dualpipev.DualPipeVParallel._commit_and_wait_comm = _commit_and_wait_comm


def _turn(stage: int, transfer) -> tuple[bool, bool]:
    """The sort key of a transfer of ``stage``."""
    sends = transfer.op is paddle.distributed.isend
    towards_last = sends == (transfer.group.get_group_rank(transfer.peer) > stage)
    return not towards_last, sends == bool(stage % 2)


@functools.cache
def fix_evaluation() -> None:
    """Paddle 3.2 and 3.3: DualPipeV cannot evaluate ("missing 1 required positional argument: 'phase'").

    It inherits ``eval_batch`` of 1F1B, whose data and transfers differ. Its own pass without a backward pass
    sets the inputs of each part to None before it returns them, and announces only the shapes of tensors with
    gradients; under ``no_grad`` there are none. With the patch, ``eval_batch`` uses that pass. The shapes are
    announced again in each evaluation and in the step that follows, because PaddleNLP clears them.
    """
    from paddle.distributed.fleet.meta_parallel.dualpipev import DualPipeVParallel

    store = DualPipeVParallel._store_forward_tensors

    def _get_forward_inputs(self, micro_datasets, phase, acc_id):
        if self.is_pipeline_first_stage() and phase == 0:
            self.input_tensors[phase].append([next(micro_datasets[phase])[0]])
        inputs = self.input_tensors[phase][acc_id]
        if self.forward_only:
            self.input_tensors[phase][acc_id] = None
        return inputs

    @functools.wraps(store)
    def _store_forward_tensors(self, phase, outputs, schedule_chunk):
        if self.forward_only:
            for output in outputs:
                output.stop_gradient = False
        store(self, phase, outputs, schedule_chunk)

    def eval_batch(self, data, compute_loss=False, loss_fn_idx=0, return_host_tensor=False):
        self._layers.eval()
        before, self._compute_loss = self._compute_loss, compute_loss
        _send_shapes_again(self)
        loss = self.forward_backward_pipeline(data, None, forward_only=True)
        _send_shapes_again(self)
        self._compute_loss = before
        return loss

    DualPipeVParallel._get_forward_inputs = _get_forward_inputs
    DualPipeVParallel._store_forward_tensors = _store_forward_tensors
    DualPipeVParallel.eval_batch = eval_batch


def _send_shapes_again(pipeline) -> None:
    pipeline._p2p_helper.clear_meta_cache()
    pipeline.need_broadcast_meta = pipeline.is_pipeline_first_stage()
    pipeline.need_recv_meta = not pipeline.is_pipeline_first_stage()


@functools.cache
def fix_models_of_one_tensor() -> None:
    """PaddleNLP 3.0.0b4: ``config.use_dualpipev`` fails with the pipelines of all families but GPT.

    They do not pass it on, so their layers are placed for 1F1B ("chunk_id is only valid when using virtual
    pipeline stage"). Their layers and losses take a tensor, as in 1F1B, but DualPipeV passes a list of
    tensors. With the patch it passes the tensor, and the layers are placed for the V-shaped schedule. A tied
    embedding and its head are then on the same stage, and the head gets the weight of the embedding.
    """
    from paddle.distributed.fleet.meta_parallel import PipelineLayer, SharedLayerDesc
    from paddle.distributed.fleet.meta_parallel.dualpipev import DualPipeVParallel
    from paddle.distributed.fleet.meta_parallel.parallel_layers.pp_layers import LocalSharedLayerDesc

    class TiedLayer(LocalSharedLayerDesc):
        """A layer that takes the weight of the first layer of its name."""

        def build_layer(self, **shared):
            layer = super().build_layer()
            for weight in shared.values():
                layer.weight = weight
            return layer

    def tied(layer):
        if not isinstance(layer, SharedLayerDesc):
            return layer
        fields = layer.layer_name, layer.layer_func, layer.forward_func, layer.shared_weight_attr
        return TiedLayer(*fields, *layer.inputs, **layer.kwargs)

    build = PipelineLayer.__init__

    @functools.wraps(build)
    def __init__(self, layers, *args, **kwargs):
        if getattr(vars(self).get("config"), "use_dualpipev", False):
            layers, kwargs["use_dualpipev"] = [tied(layer) for layer in layers], True
        build(self, layers, *args, **kwargs)

    PipelineLayer.__init__ = __init__
    inputs, loss = DualPipeVParallel._get_forward_inputs, DualPipeVParallel._loss_compute

    @functools.wraps(inputs)
    def _get_forward_inputs(self, micro_datasets, phase, acc_id):
        return _one_tensor(inputs(self, micro_datasets, phase, acc_id))

    @functools.wraps(loss)
    def _loss_compute(self, micro_datasets, phase, acc_id, logits):
        return loss(self, micro_datasets, phase, acc_id, _one_tensor(logits))

    DualPipeVParallel._get_forward_inputs = _get_forward_inputs
    DualPipeVParallel._loss_compute = _loss_compute


def _one_tensor(tensors):
    return tensors[0] if isinstance(tensors, list) and len(tensors) == 1 else tensors
