"""Matmuls with collectives (MC2): aclnnMatmulAllReduce, aclnnAllGatherMatmul, aclnnMatmulReduceScatter.

Legend: x1 [m, k] times x2 [k, n]; n ranks of one communication domain. The limits apply to Atlas A2. A3
(910C) does not have aclnnMatmulAllReduce; its other two operators support more ranks.
"""

from .rule import OPS_TRANSFORMER, PARAM_INVALID, ByRelease, Change, ContractRule, listed

LIMITS = {
    "mc2.depth": 256,  # at least
    "mc2.depth_below": 65535,
    "mc2.all_reduce_size": 2147483647,
    "mc2.most_ranks": 8,
    # aclnnAllGatherMatmul and aclnnMatmulReduceScatter, absent before. A3 never has aclnnMatmulAllReduce.
    "mc2.most_ranks_a3": ByRelease(0, since="8.2.RC1", later=32, source=OPS_TRANSFORMER),
}
CHANGES = (
    Change(
        "`aclnnAllGatherMatmul`, `aclnnMatmulReduceScatter`: non-contiguous x2",
        "accepted",
        "9.0.0",
        "transposed only",
        OPS_TRANSFORMER,
    ),
)
FLOATS = ("float16", "bfloat16")
WORLD_SIZES = (2, 4, 8)  # on A3 also 16 and 32
DTYPES = {"mc2.dtype": FLOATS}

ALL_REDUCE, GATHER, REDUCE_SCATTER = "fused_mm_allreduce", "fused_allgather_mm", "fused_mm_reduce_scatter"
PLUGIN = (ALL_REDUCE, GATHER, REDUCE_SCATTER)
_DOC = "hicann/ops-transformer mc2/{0}/docs/aclnn{1}.md"
_ALL_REDUCE_DOC = _DOC.format("matmul_all_reduce", "MatmulAllReduce")
_GATHER_DOC = _DOC.format("all_gather_matmul", "AllGatherMatmul")
_REDUCE_SCATTER_DOC = _DOC.format("matmul_reduce_scatter", "MatmulReduceScatter")
_PADDLE = "PaddlePaddle/PaddleCustomDevice backends/npu/custom_op/{}.cc"

RULES = (
    ContractRule(
        "mc2.dtype",
        PLUGIN,
        PARAM_INVALID,
        listed(FLOATS),
        "Cast it with tensor.astype, or run a matmul and then the collective.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.same_dtype",
        PLUGIN,
        PARAM_INVALID,
        "the same dtype for x1, x2 and bias",
        "Cast them with tensor.astype.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.rank",
        PLUGIN,
        None,
        "two-dimensional x1 and x2",
        "Reshape x1 to [-1, k].",
        _PADDLE.format(ALL_REDUCE),
    ),
    ContractRule(
        "mc2.same_depth",
        PLUGIN,
        None,
        "x1 [m, k] and x2 [k, n] with equal k",
        "Transpose one of them.",
        _PADDLE.format(ALL_REDUCE),
    ),
    ContractRule(
        "mc2.depth",
        (GATHER, REDUCE_SCATTER),
        PARAM_INVALID,
        f"k of at least {LIMITS['mc2.depth']} and below {LIMITS['mc2.depth_below']}",
        "Run a matmul and then the collective.",
        _REDUCE_SCATTER_DOC,
    ),
    ContractRule(
        "mc2.all_reduce_sizes",
        (ALL_REDUCE,),
        PARAM_INVALID,
        f"m and n up to {LIMITS['mc2.all_reduce_size']}, and k from 1 to the same limit",
        "Split the matmul.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.bias",
        (GATHER, REDUCE_SCATTER),
        None,
        "no bias, because CANN does not guarantee correct results with one",
        "Pass None and add the bias to the result.",
        _REDUCE_SCATTER_DOC,
    ),
    ContractRule(
        "mc2.bias_shape",
        (ALL_REDUCE,),
        PARAM_INVALID,
        "no bias, or a bias of shape [n], which every rank adds before the sum",
        "Add other biases to the result.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.world_size",
        PLUGIN,
        None,
        f"{listed(WORLD_SIZES)} ranks (a 910C also 16 and 32), equal to the size of the communication domain "
        "(fused_mm_allreduce also 1)",
        "Pass the size of the group that hcom names.",
        _PADDLE.format(REDUCE_SCATTER),
    ),
    ContractRule(
        "mc2.rows",
        (REDUCE_SCATTER,),
        None,
        "x1 with a number of rows that is a multiple of the number of ranks",
        "Pad the rows.",
        _PADDLE.format(REDUCE_SCATTER),
    ),
    ContractRule(
        "mc2.reduce_op",
        (ALL_REDUCE, REDUCE_SCATTER),
        PARAM_INVALID,
        "reduce_op sum",
        "Run a matmul and then the collective.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.comm_turn", PLUGIN, None, "comm_turn 0", "The operator chooses its own chunks.", _GATHER_DOC
    ),
    ContractRule(
        "mc2.gather_index",
        (GATHER,),
        None,
        "gather_index 0, which gathers the rows of x1",
        "Gather another tensor with paddle.distributed.all_gather.",
        _GATHER_DOC,
    ),
    ContractRule(
        "mc2.hcom",
        PLUGIN,
        None,
        "the name of a communication domain of this process",
        "Pass group.process_group.get_comm_name(paddle.distributed.get_rank()).",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.domain",
        PLUGIN,
        None,
        "one communication domain per process for all of these operators",
        "Use them for one group only; for other groups, run a matmul and then the collective.",
        _REDUCE_SCATTER_DOC,
    ),
)
