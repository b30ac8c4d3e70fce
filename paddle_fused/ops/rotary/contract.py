"""Rotary position embedding: aclnnRotaryPositionEmbedding and the plugin's fused_rope over it.

Legend: B batch, S sequence length, N heads, D head size.
"""

from paddle_fused.contracts.rule import (
    INNER_NULLPTR,
    INNER_TILING,
    OPS_TRANSFORMER,
    PARAM_INVALID,
    ByRelease,
    ContractRule,
    listed,
)

LIMITS = {
    "rotary.least_dimensions": ByRelease(4, since="9.1.0", later=3, source=OPS_TRANSFORMER),
    "rotary.head_dim": 896,  # below
    "rotary.batch": 1000,  # below
    "rotary.heads": 1000,  # below
    "rotary.interleaved_rows": 1000,  # B * N below
    "rotary.angle_gradient_rows": 1024,  # B * N up to
    "rotary.plugin_head_dim_multiple": 64,
}
SHAPES = ByRelease(INNER_TILING, since="9.0.0", later=INNER_NULLPTR, source=OPS_TRANSFORMER)
FLOATS = ("float32", "bfloat16", "float16")
MODES = ("half", "interleave")
DTYPES = {"rotary.dtype": FLOATS}

PLUGIN = "fused_rope"
_PUBLIC = ("aclnnRotaryPositionEmbedding", "npu_rotary_mul", "rotary_mul", "apply_rotary")
_ALL = (*_PUBLIC, PLUGIN)
_LIMITED = _PUBLIC[:2]  # the public functions do not limit sizes
_DOC = "hicann/ops-transformer posembedding/rotary_position_embedding/docs/aclnnRotaryPositionEmbedding.md"
_PADDLE = "PaddlePaddle/PaddleCustomDevice backends/npu/custom_op/fused_rope_npu.cc"

RULES = (
    ContractRule(
        "rotary.dtype",
        (*_PUBLIC[:3], PLUGIN),
        PARAM_INVALID,
        listed(FLOATS),
        "Cast it with tensor.astype.",
        _DOC,
    ),
    ContractRule(
        "rotary.same_dtype",
        _ALL,
        PARAM_INVALID,
        "cos and sin with x's dtype",
        "Cast them with tensor.astype.",
        _DOC,
    ),
    ContractRule(
        "rotary.mode",
        _PUBLIC[1:3],
        PARAM_INVALID,
        listed(MODES),
        "Atlas A2 and A3 do not support other modes.",
        _DOC,
    ),
    ContractRule(
        "rotary.dimensions",
        _LIMITED,
        SHAPES,
        f"rank {LIMITS['rotary.least_dimensions']} to 4, where rank 3 is for packed sequences",
        "Reshape it.",
        _DOC,
    ),
    ContractRule(
        "rotary.layout",
        _PUBLIC[2:],
        SHAPES,
        "rank 4, or rank 3 for packed sequences",
        "Reshape it.",
        _DOC,
    ),
    ContractRule("rotary.rank", (PLUGIN,), INNER_TILING, "rank 4", "Reshape it.", _PADDLE),
    ContractRule(
        "rotary.head_dim",
        (*_LIMITED, PLUGIN),
        SHAPES,
        f"an even head size below {LIMITS['rotary.head_dim']}",
        "Rotate a slice of the head with composed operators.",
        _DOC,
    ),
    ContractRule(
        "rotary.batch_heads",
        (*_LIMITED, PLUGIN),
        SHAPES,
        f"a batch size below {LIMITS['rotary.batch']} and fewer than {LIMITS['rotary.heads']} heads",
        "Split it.",
        _DOC,
    ),
    ContractRule(
        "rotary.interleaved_rows",
        _LIMITED,
        SHAPES,
        f"in mode interleave, batch size * heads below {LIMITS['rotary.interleaved_rows']}",
        "Split it.",
        _DOC,
    ),
    ContractRule(
        "rotary.angles",
        (*_LIMITED, PLUGIN),
        SHAPES,
        "cos and sin with the same shape: [1, S, 1, D], [B, S, 1, D] or [B, S, N, D] in mode half, "
        "[1, S, 1, D] in mode interleave, in the layout of x",
        "Slice or reshape them.",
        _DOC,
    ),
    ContractRule(
        "rotary.angle_gradient_rows",
        _LIMITED,
        SHAPES,
        f"batch size * heads up to {LIMITS['rotary.angle_gradient_rows']} if cos and sin need gradients",
        "Detach cos and sin, or split x.",
        _DOC,
    ),
    ContractRule(
        "rotary.rotate",
        ("npu_rotary_mul",),
        None,
        "no rotation matrix",
        "Pass rotate=None and use a mode, which computes the same product with gradients.",
        "Ascend/op-plugin docs/context/torch_npu-npu_rotary_mul.md",
    ),
    ContractRule(
        "rotary.plugin_head_dim",
        (PLUGIN,),
        None,
        f"a head size that is a multiple of {LIMITS['rotary.plugin_head_dim_multiple']}",
        "For other sizes, use composed operators (use_fused_rope false).",
        _PADDLE,
    ),
    ContractRule(
        "rotary.plugin_angles",
        (PLUGIN,),
        None,
        "cos and sin with the same shape, [1, S, 1, D]",
        "Slice or reshape them.",
        _PADDLE,
    ),
)
