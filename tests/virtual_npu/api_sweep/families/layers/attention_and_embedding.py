"""Embedding, attention and transformer layers."""

from api_sweep.case import case, layer, strided, to_static, vary
from api_sweep.inputs import integers, normal

FUNCTIONS = [
    case("nn.functional.embedding", integers(7, 3, 4), normal(7, 5)),
    case("nn.functional.embedding", integers(7, 3, 4), normal(7, 5), padding_idx=2).named("padding_idx"),
    case("nn.functional.one_hot", integers(6, 3, 4), 6).forward_only(),
    case("nn.functional.sequence_mask", integers(6, 4), maxlen=6, dtype="float32").forward_only(),
    case(
        "nn.functional.scaled_dot_product_attention",
        normal(2, 5, 2, 4),
        normal(2, 5, 2, 4),
        normal(2, 5, 2, 4),
    ),
    case(
        "nn.functional.scaled_dot_product_attention",
        normal(2, 5, 2, 4),
        normal(2, 5, 2, 4),
        normal(2, 5, 2, 4),
        is_causal=True,
    ).named("causal"),
    case("nn.functional.gather_tree", integers(9, 4, 2, 3), integers(3, 4, 2, 3)).forward_only(),
    case("incubate.nn.functional.fused_dropout_add", normal(3, 4), normal(3, 4), p=0.0),
]
LAYERS = [
    layer("Embedding", (7, 5), integers(7, 3, 4)),
    layer("MultiHeadAttention", (6, 2), normal(2, 5, 6)),
    layer("TransformerEncoderLayer", (6, 2, 8), normal(2, 5, 6), dropout=0.0),
    layer("TransformerDecoderLayer", (6, 2, 8), normal(2, 5, 6), normal(2, 4, 6), dropout=0.0),
    layer("Transformer", (6, 2, 1, 1, 8), normal(2, 5, 6), normal(2, 4, 6), dropout=0.0),
]

CASES = [*vary(FUNCTIONS, strided, to_static), *LAYERS]
