"""Properties of a training program with published results that a layout does not determine.

Each property was read in the program's source, which the comments name. Repositories: MindSpeed is
github.com/Ascend/MindSpeed with github.com/Ascend/MindSpeed-LLM, MindFormers
github.com/mindspore-lab/mindformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Software:
    """Properties of a training program that a layout does not determine.

    ``recompute_all_gather``: the backward pass of sequence-parallel layers gathers their inputs again
    instead of saving them. ``asynchronous``: it overlaps collectives with its products even if the forward
    pass does not. ``overlaps_gradients``: so do data-parallel sums of gradients, ``overlaps_weights``: and
    the distribution of new weights. ``scatters``: gradients of sharded states, and under sequence parallelism
    those of the embedding and the head, are reduce-scattered, as no rank needs the whole. ``accumulate``:
    bytes per weight for adding a bfloat16 gradient to a float32 one, with a float32 copy (18), without (10),
    or by the product, which then writes no bfloat16 (6). ``gradient_width``: bytes of a gradient between
    data-parallel cards. ``graph``: a compiled graph is run, so that no kernel waits for the host.
    ``kernels``: of releases EARLIER than October 2024, LATER, or "". ``interleaves``: the
    parts of a sequence that a tensor-parallel layer computes in turn, the collectives of one beside the
    products of another. ``separate_products``: query, key and value, and gate and up, are products of their
    own, each of which sums the gradient of their input. ``dispatcher``: of a mixture, ``allgather``,
    ``alltoall``, or "" for tokens that are sent as rows to their experts. ``capacity``: tokens that an expert
    computes, of an even share. ``grouped``: the experts of a card are one product.
    """

    recompute_all_gather: bool = False
    asynchronous: bool = False
    overlaps_gradients: bool = False
    overlaps_weights: bool = False
    scatters: bool = False
    accumulate: int = 18
    gradient_width: int = 4
    graph: bool = False
    kernels: str = ""
    interleaves: int = 1
    separate_products: bool = False
    dispatcher: str = ""
    capacity: float = 1.0
    grouped: bool = False


FUSED_ACCUMULATION = 6
EARLIER, LATER = "earlier", "later"
MEGATRON_DISPATCHER = "allgather"  # default of scripts that do not set a dispatcher

# recompute_all_gather: mindspeed's all_gather_recomputation; asynchronous, scatters and the float32
# main_grad: Megatron core's ColumnParallelLinear and DistributedDataParallel.
# dispatcher, grouped: as MindSpeed-LLM's scripts of mixtures name them since the end of 2024.
_MINDSPEED = Software(
    recompute_all_gather=True,
    asynchronous=True,
    scatters=True,
    accumulate=10,
    dispatcher="alltoall",
    grouped=True,
)

STACKS: Mapping[str, Software] = {
    "mindspeed": _MINDSPEED,
    # MindSpeed-LLM's releases until July 2024, without Megatron core. Configurations published in both were
    # 0 to 13 % slower there.
    "modellink": replace(_MINDSPEED, kernels=EARLIER, dispatcher=MEGATRON_DISPATCHER, grouped=False),
    # MindSpore compiles the step into one graph. parallel/enable_parallel_optimizer scatters gradients of the
    # compute type and gathers the weights, both outside the pipeline of micro batches. A layer's collectives
    # wait in the backward pass, too: matmul_grad_comm_overlap is off unless a file of
    # parallel_speed_up_json_path switches it on, which no published run's configuration names. qkv_concat is
    # off: wq, wk, wv, and w1, w3, are sharded products of their own (models/llama/llama_transformer.py,
    # llama_layer.py), each with its own redistribution of the input.
    "mindformers": Software(
        scatters=True,
        accumulate=10,
        gradient_width=2,
        graph=True,
        separate_products=True,
    ),
}
