"""Products with collectives (MC2): aclnnMatmulAllReduce, aclnnAllGatherMatmul, aclnnMatmulReduceScatter.

Legend: x1 [m, k] times x2 [k, n]; n ranks of one communication domain. The limits are those of Atlas A2; A3
(910C) has no aclnnMatmulAllReduce, and its other two take more ranks.
"""

from .rule import OPS_TRANSFORMER, PARAM_INVALID, ByRelease, Change, ContractRule, listed

LIMITS = {
    "mc2.depth": 256,  # at least
    "mc2.depth_below": 65535,
    "mc2.all_reduce_size": 2147483647,
    "mc2.most_ranks": 8,
    # aclnnAllGatherMatmul and aclnnMatmulReduceScatter, absent before; A3 never has aclnnMatmulAllReduce.
    "mc2.most_ranks_a3": ByRelease(0, since="8.2.RC1", later=32, source=OPS_TRANSFORMER),
}
CHANGES = (
    Change(
        "`aclnnAllGatherMatmul`, `aclnnMatmulReduceScatter`: x2 that is not contiguous",
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
        "Cast it with tensor.astype, or run the product and the collective one after the other.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.same_dtype",
        PLUGIN,
        PARAM_INVALID,
        "one dtype for x1, x2 and bias",
        "Cast them with tensor.astype.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.rank",
        PLUGIN,
        None,
        "x1 and x2 of two dimensions",
        "Reshape x1 to [-1, k].",
        _PADDLE.format(ALL_REDUCE),
    ),
    ContractRule(
        "mc2.same_depth",
        PLUGIN,
        None,
        "x1 [m, k] and x2 [k, n] with the same k",
        "Transpose one of them.",
        _PADDLE.format(ALL_REDUCE),
    ),
    ContractRule(
        "mc2.depth",
        (GATHER, REDUCE_SCATTER),
        PARAM_INVALID,
        f"k from {LIMITS['mc2.depth']} up to, but not including, {LIMITS['mc2.depth_below']}",
        "Run the product and the collective one after the other.",
        _REDUCE_SCATTER_DOC,
    ),
    ContractRule(
        "mc2.all_reduce_sizes",
        (ALL_REDUCE,),
        PARAM_INVALID,
        f"m and n up to {LIMITS['mc2.all_reduce_size']} and k from 1 to that",
        "Split the product.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.bias",
        (GATHER, REDUCE_SCATTER),
        None,
        "no bias: a card does not promise the right result with one",
        "Pass None, and add the bias to the result.",
        _REDUCE_SCATTER_DOC,
    ),
    ContractRule(
        "mc2.bias_shape",
        (ALL_REDUCE,),
        PARAM_INVALID,
        "no bias or one of shape [n], which every rank adds before the sum",
        "Add another bias to the result.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.world_size",
        PLUGIN,
        None,
        f"{listed(WORLD_SIZES)} ranks (a 910C also 16 and 32), as many as the communication domain has "
        "(fused_mm_allreduce also 1)",
        "Pass the number of ranks of the group whose name hcom is.",
        _PADDLE.format(REDUCE_SCATTER),
    ),
    ContractRule(
        "mc2.rows",
        (REDUCE_SCATTER,),
        None,
        "an x1 whose rows are a multiple of the number of ranks",
        "Pad the rows.",
        _PADDLE.format(REDUCE_SCATTER),
    ),
    ContractRule(
        "mc2.reduce_op",
        (ALL_REDUCE, REDUCE_SCATTER),
        PARAM_INVALID,
        "reduce_op sum",
        "Run the product and the collective one after the other.",
        _ALL_REDUCE_DOC,
    ),
    ContractRule(
        "mc2.comm_turn", PLUGIN, None, "comm_turn 0", "The operator chooses its chunks itself.", _GATHER_DOC
    ),
    ContractRule(
        "mc2.gather_index",
        (GATHER,),
        None,
        "gather_index 0: the rows of x1 are gathered",
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
        "one communication domain for all of these operators in a process",
        "Use them for one group only, and for others the product and the collective one after the other.",
        _REDUCE_SCATTER_DOC,
    ),
)
