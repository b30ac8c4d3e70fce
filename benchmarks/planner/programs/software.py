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

    Attributes:
        recompute_all_gather: the backward pass of sequence-parallel layers repeats the all-gather of inputs.
        asynchronous: the backward pass overlaps collectives with matmuls even if the forward does not.
        overlaps_gradients: the data-parallel reduction of gradients overlaps with the backward pass.
        overlaps_weights: the all-gather of updated weights is overlapped.
        scatters: gradients of sharded states, and with sequence parallelism those of the embedding and the
            head, are reduce-scattered.
        accumulate: bytes per weight to add a bfloat16 gradient to a float32 one: with a float32 copy (18),
            without (10), or fused into the matmul (6).
        gradient_width: bytes of a gradient element in data-parallel collectives.
        graph: the step is a compiled graph, so no kernel waits for the host.
        kernels: EARLIER (releases before October 2024), LATER, or "".
        interleaves: parts of a sequence in a tensor-parallel layer, whose collectives overlap the matmuls of
            other parts.
        separate_products: query, key, value, gate and up are separate matmuls, each with an all-reduce of its
            input gradient.
        dispatcher: of a mixture: ``allgather``, ``alltoall``, or "" for rows sent to their experts.
        capacity: tokens that an expert processes, relative to an even share.
        grouped: the experts of a card are one grouped matmul.
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
    # are exposed in the backward pass as well: matmul_grad_comm_overlap is off unless a file in
    # parallel_speed_up_json_path enables it, and no published run's configuration names one. qkv_concat is
    # off: wq, wk, wv, w1 and w3 are separate sharded matmuls (models/llama/llama_transformer.py,
    # llama_layer.py), each with its own redistribution of the input.
    "mindformers": Software(
        scatters=True,
        accumulate=10,
        gradient_width=2,
        graph=True,
        separate_products=True,
    ),
}
