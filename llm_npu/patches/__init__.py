"""Patches for defects in Paddle and PaddleNLP. Each docstring states the affected versions and the symptom.

Patches for PaddleFormers are in the subfolder ``paddleformers``.

A patch is applied only to affected versions. Its test (``tests/training/test_patches.py``, ``tests/models``
or ``tests/parallel``) fails without the patch, and so shows when the patch can be removed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect

import paddle

from llm_npu.cann import float_status
from llm_npu.core.errors import UserError
from paddle_fused import paddle_release

from . import (
    auto_parallel,
    devices,
    dualpipev,
    hybrid_parallel,
    initializers,
    layers,
    loss_scaling,
    operators,
    paddleformers,
    store,
)


def apply() -> None:
    """Apply the patches that the installed versions need; idempotent."""
    fix_data_loader_errors()
    fix_average_without_nccl()
    auto_parallel.apply()
    layers.apply()
    operators.apply()
    if paddle_release.at_least(3, 3) and paddle_release.before(3, 4):
        devices.fix_custom_devices()
    initializers.fix_bfloat16_initializers()
    hybrid_parallel.apply()
    if paddle_release.at_least(3, 2):
        dualpipev.apply()
    store.fix_store_at_exit()
    store.fix_store_address()
    if float_status.choice() != float_status.PLUGIN:
        loss_scaling.decide_by_isfinite()
    if installed_version("paddlenlp").startswith("3.0.0b4"):
        if paddle_release.at_least(3, 1):
            fix_mixtral_expert_weights()
        fix_mixtral_router_loss_mask()
        if paddle_release.at_least(3, 2):
            fix_moe_gate_int64()
            dualpipev.fix_models_of_one_tensor()
        fix_moe_gate_gradient()
        layers.fix_gemma_rotary_dtype()
        layers.fix_means_of_no_losses()
        fix_qwen2_moe_norm_topk_prob()
        fix_qwen2_moe_gate_dtype()
        fix_qwen2_moe_auxiliary_loss()
        fix_qwen2_moe_groups()
        fix_segment_parallel_exchange()
    if installed_version("paddleformers"):
        paddleformers.apply()


def installed_version(package: str) -> str:
    """The version of a model library; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def fix_data_loader_errors() -> None:
    """Paddle 3.3: ``DataLoader`` with ``num_workers=0`` hangs if the dataset raises.

    The reader thread exits without closing its queue, because ``_thread_loop`` fetches outside its ``try``.
    The patch closes the queue, and the iteration raises the dataset's exception.
    """
    from paddle.io.dataloader.dataloader_iter import _DataLoaderIterSingleProcess as Iteration

    read, take = Iteration._thread_loop, Iteration.__next__

    def _thread_loop(self, place):
        try:
            read(self, place)
        except BaseException as error:
            self.read_error = error
            self._exit_thread_unexpectedly()

    def __next__(self):
        try:
            return take(self)
        except Exception:
            if getattr(self, "read_error", None) is not None:
                raise self.read_error from None
            raise

    Iteration._thread_loop, Iteration.__next__ = _thread_loop, __next__


@functools.cache
def fix_average_without_nccl() -> None:
    """Paddle 3.3: collectives with ReduceOp.AVG fail in builds without NCCL.

    They read NCCL's version, which does not exist there ("has no attribute 'nccl_version'"). The path for old
    NCCL versions divides the output of reduce_scatter instead of its input. Groups of custom devices reject
    AVG ("Must be Min | Max | Prod | Sum"). With the patch, each rank divides its input, as NCCL does for
    floating-point numbers, and the collective sums. Integers, which NCCL divides after the sum, raise
    ValueError.
    """
    if hasattr(paddle.base.core, "nccl_version"):
        return
    paddle.base.core.nccl_version = lambda: 21000  # the first version with AVG
    # Otherwise paddle.distributed.reduce divides the tensors of all ranks, including ranks without a result.
    reduce = importlib.import_module("paddle.distributed.communication.reduce")
    reduce.is_avg_reduce_op_supported = lambda: True
    _divide_before("all_reduce", "_all_reduce_in_dygraph", 0, lambda call: True)
    _divide_before("reduce", "_reduce_in_dygraph", 0, lambda call: call["group"].rank == _root(call))
    _divide_before("reduce_scatter", "_reduce_scatter_in_dygraph", 1)
    _divide_before("reduce_scatter", "_reduce_scatter_tensor_in_dygraph", 1)


def _root(call: dict) -> int:
    return call["dst_rank_in_group"]


def _divide_before(module: str, function: str, position: int, in_place=lambda call: False) -> None:
    """Wrap a collective of paddle.distributed.communication.stream to divide its argument before the sum.

    Args:
        position: the position of the reduced argument.
        in_place: ``in_place(call)`` returns whether that argument also receives the result. If not, the
            argument is not modified.
    """
    file = importlib.import_module(f"paddle.distributed.communication.stream.{module}")
    collective = getattr(file, function)
    names = list(inspect.signature(collective).parameters)
    sum_op, average = paddle.distributed.ReduceOp.SUM, paddle.distributed.ReduceOp.AVG

    def divided(tensor, ranks: int, overwrite: bool):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise UserError(
                f"{module}: ReduceOp.AVG of {str(tensor.dtype).rpartition('.')[2]}; accepted: floating-point "
                "and complex tensors. Use SUM, and divide the result."
            )
        return tensor.scale_(1 / ranks) if overwrite else tensor / ranks

    @functools.wraps(collective)
    @paddle.no_grad()
    def run(*arguments, **named):
        call = dict(zip(names, arguments, strict=False)) | named
        if call["op"] == average:
            terms, ranks = call[names[position]], call["group"].nranks
            several, overwrite = isinstance(terms, (list, tuple)), in_place(call)
            quotients = [divided(term, ranks, overwrite) for term in (terms if several else [terms])]
            call[names[position]] = quotients if several else quotients[0]
            call["op"] = sum_op
        return collective(**call)

    setattr(file, function, run)


@functools.cache
def fix_mixtral_expert_weights() -> None:
    """PaddleNLP 3.0.0b4 on Paddle 3.1 and later: Mixtral fails when an expert receives tokens.

    ``paddle.where`` now returns indices of shape [n] instead of [n, 1]. The block multiplies an expert's rows
    [n, H] by weights [n], which raises "Broadcast dimension mismatch". The patch uses weights [n, 1].
    """
    from paddlenlp.transformers.mixtral.modeling import MixtralSparseMoeBlock

    def forward(self, hidden_states):
        tokens = hidden_states.reshape([-1, self.hidden_dim])
        router_logits = self.gate(tokens)
        with paddle.amp.auto_cast(False):
            probs = paddle.nn.functional.softmax(router_logits.astype("float32"), axis=-1)
        probs, chosen = paddle.topk(probs, self.top_k)
        probs = (probs / probs.sum(-1, keepdim=True)).astype(tokens.dtype)
        out = paddle.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, choice = paddle.nonzero(chosen == number, as_tuple=True)
            if token.size > 0:
                result = expert(paddle.gather(tokens, token)) * probs[token, choice].unsqueeze(-1)
                out = paddle.index_add(out, token, 0, result.astype(out.dtype))
        return out.reshape(hidden_states.shape), router_logits

    MixtralSparseMoeBlock.forward = forward


@functools.cache
def fix_mixtral_router_loss_mask() -> None:
    """PaddleNLP 3.0.0b4: Mixtral with ``output_router_logits`` fails with masks of three dims ("cannot access
    local variable 'tokens_per_expert'"), and with mask objects ("object has no attribute 'shape'").

    ``load_balancing_loss_func`` knows masks of two and of four dims. The patch passes only those of two, so
    padding counts with all others, as upstream counts it with four.
    """
    from paddlenlp.transformers.mixtral import modeling

    compute = modeling.load_balancing_loss_func

    @functools.wraps(compute)
    def load_balancing_loss_func(gate_logits, num_experts, top_k=2, attention_mask=None):
        of_tokens = len(getattr(attention_mask, "shape", ())) == 2
        return compute(gate_logits, num_experts, top_k, attention_mask if of_tokens else None)

    modeling.load_balancing_loss_func = load_balancing_loss_func


@functools.cache
def fix_moe_gate_int64() -> None:
    """PaddleNLP 3.0.0b4 on Paddle 3.2 and later: gates fail because int64 x int32 is no longer promoted.

    ``PretrainedMoEGate._priority`` multiplies an int32 mask by its int64 cumulative sum.
    """
    from paddlenlp.transformers.moe_gate import PretrainedMoEGate

    def _priority(self, topk_idx, capacity):
        """[T, K] -> int32 [T, E, capacity]: 1 at a token's place in the queue of each of its experts.

        First choices precede second choices, and so on.
        """
        choices = paddle.nn.functional.one_hot(topk_idx.T.flatten(), self.num_experts).astype("int64")
        places = (paddle.cumsum(choices, axis=0) * choices).reshape([self.top_k, -1, self.num_experts])
        return (places.max(0).unsqueeze(-1) == paddle.arange(1, capacity + 1)).astype("int32")

    PretrainedMoEGate._priority = _priority


@functools.cache
def fix_moe_gate_gradient() -> None:
    """PaddleNLP 3.0.0b4 on Paddle 3: gate gradients are wrong by about 1 per chosen expert.

    ``PretrainedMoEGate.topkgating`` casts the weights to the dispatch mask without detaching them. The
    gradient, cast to bool and back to float, is 1 wherever it is nonzero.
    """
    from paddlenlp.transformers.moe_gate import PretrainedMoEGate

    choose = PretrainedMoEGate.topkgating

    def topkgating(self, gates):
        capacity, weights, mask, *others = choose(self, gates)
        return capacity, weights, mask.detach(), *others

    PretrainedMoEGate.topkgating = topkgating


@functools.cache
def fix_qwen2_moe_norm_topk_prob() -> None:
    """PaddleNLP 3.0.0b4: Qwen2-MoE ignores ``norm_topk_prob``.

    The block does not pass the setting to its gate, so the logits of pretrained weights are wrong.
    """
    from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeGate

    build = Qwen2MoeGate.__init__

    def __init__(self, config, num_experts, expert_hidden_size, **settings):
        build(self, config, num_experts, expert_hidden_size, norm_topk_prob=config.norm_topk_prob, **settings)

    Qwen2MoeGate.__init__ = __init__


@functools.cache
def fix_qwen2_moe_gate_dtype() -> None:
    """PaddleNLP 3.0.0b4: a Qwen2-MoE trained with AMP O2 fails in generation, outside auto_cast.

    The gate keeps its weights in float32, and ``F.linear`` does not accept a bfloat16 input with them. The
    patch casts the input to the weights' dtype. Under auto_cast, which casts both, nothing changes.
    """
    from paddlenlp.transformers.qwen2_moe.modeling import Qwen2MoeGate

    choose = Qwen2MoeGate.forward

    def forward(self, hidden_states):
        return choose(self, hidden_states.astype(self.weight.dtype))

    Qwen2MoeGate.forward = forward


@functools.cache
def fix_qwen2_moe_auxiliary_loss() -> None:
    """PaddleNLP 3.0.0b4: Qwen2-MoE with ``output_router_logits`` fails ("The axis is expected to be in ...").

    Its blocks return the gates' auxiliary losses, but the model treats them as logits. The patch uses their
    mean as the auxiliary loss. Unlike a loss computed from logits, it counts padding.
    """
    from paddlenlp.transformers.qwen2_moe import modeling

    def load_balancing_loss_func(gate_losses, num_experts, top_k=2, attention_mask=None):
        return paddle.stack(gate_losses).mean()

    modeling.load_balancing_loss_func = load_balancing_loss_func


@functools.cache
def fix_qwen2_moe_groups() -> None:
    """PaddleNLP 3.0.0b4: Qwen2-MoE loses experts beside a second parallel method.

    If fleet has a data-parallel group, as with pipelines of fewer stages than ranks, its blocks distribute
    their experts over that group, also without ``use_expert_parallel``: a rank has None for the others. The
    patch keeps all experts; ``llm_npu.models.own_experts`` distributes them on request.
    """
    from paddlenlp.transformers.moe_layer import MoELayer

    build = MoELayer.__init__

    @functools.wraps(build)
    def __init__(self, *args, moe_group="dummy", **settings):
        build(self, *args, moe_group=moe_group, **settings)

    MoELayer.__init__ = __init__


@functools.cache
def fix_segment_parallel_exchange() -> None:
    """PaddleNLP 3.0.0b4: ``sep_parallel_degree`` trains on uninitialized memory (NaN losses, or random ones).

    ``_reshard_qkv`` calls ``paddle.distributed.alltoall(inputs, outputs)``; Paddle 3 expects the outputs
    first, so the empty buffers are sent, and the inputs overwritten. The patch passes them in Paddle's order.
    """
    from paddlenlp.transformers import segment_parallel_utils

    if next(iter(inspect.signature(paddle.distributed.alltoall).parameters)) != "out_tensor_list":
        return

    class Distributed:
        """``paddle.distributed`` with PaddleNLP's order of arguments."""

        def __getattr__(self, name: str):
            return getattr(paddle.distributed, name)

        def alltoall(self, inputs, outputs, group=None):
            return paddle.distributed.alltoall(outputs, inputs, group=group)

    segment_parallel_utils.dist = Distributed()
