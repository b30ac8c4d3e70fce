"""Losses, as functions and as layers."""

from api_sweep.case import case, layer, own_kernel, strided, to_static, vary
from api_sweep.inputs import constant, distribution, exactly, fraction, integers, normal, positive

SIGNS = exactly([1.0, -1.0, -1.0, 1.0], "float32")
LABELS = integers(6, 4)
FREQUENCIES = exactly([6, 5], "int64")

CROSS_ENTROPY = [
    case("nn.functional.cross_entropy", normal(4, 6), LABELS),
    case("nn.functional.cross_entropy", normal(4, 6), constant(distribution(4, 6)), soft_label=True).named(
        "soft"
    ),
    case("nn.functional.cross_entropy", normal(4, 6), LABELS, constant(positive(6)), ignore_index=2).named(
        "weighted"
    ),
    case("nn.functional.cross_entropy", normal(4, 6), LABELS, label_smoothing=0.1).named("smoothed"),
    case("nn.functional.softmax_with_cross_entropy", normal(4, 6), integers(6, 4, 1)),
    case("nn.functional.npair_loss", normal(4, 6), normal(4, 6), integers(3, 4)),
]
FUNCTIONS = [
    *(own_kernel(case) for case in CROSS_ENTROPY),
    case("nn.functional.nll_loss", normal(4, 6), LABELS),
    case("nn.functional.binary_cross_entropy", fraction(4, 6), constant(fraction(4, 6))),
    case("nn.functional.binary_cross_entropy_with_logits", normal(4, 6), constant(fraction(4, 6))),
    case("nn.functional.sigmoid_focal_loss", normal(4, 6), exactly([[0.0, 1, 0, 0, 1, 0]] * 4, "float32")),
    case("nn.functional.dice_loss", distribution(4, 5, 2), integers(2, 4, 5, 1)),
    case("nn.functional.log_loss", fraction(4, 1), constant(fraction(4, 1))),
    case("nn.functional.mse_loss", normal(4, 6), normal(4, 6)),
    case("nn.functional.l1_loss", normal(4, 6), normal(4, 6)),
    case("nn.functional.smooth_l1_loss", normal(4, 6), normal(4, 6)),
    case("nn.functional.square_error_cost", normal(4, 6), normal(4, 6)),
    case("nn.functional.kl_div", normal(4, 6), constant(distribution(4, 6))),
    case("nn.functional.poisson_nll_loss", normal(4, 6), constant(positive(4, 6))),
    case("nn.functional.gaussian_nll_loss", normal(4, 6), normal(4, 6), constant(positive(4, 6))),
    case("nn.functional.hinge_embedding_loss", normal(4, 4), SIGNS),
    case("nn.functional.cosine_embedding_loss", normal(4, 6), normal(4, 6), exactly([1, -1, -1, 1], "int64")),
    case("nn.functional.cosine_similarity", normal(4, 6), normal(4, 6)),
    case("nn.functional.pairwise_distance", normal(4, 6), normal(4, 6)),
    case("nn.functional.margin_ranking_loss", normal(4), normal(4), SIGNS),
    case("nn.functional.soft_margin_loss", normal(4), SIGNS),
    case("nn.functional.multi_margin_loss", normal(4, 6), LABELS),
    case(
        "nn.functional.multi_label_margin_loss",
        normal(2, 4),
        exactly([[2, 0, -1, 1], [1, -1, 0, 0]], "int64"),
    ),
    case("nn.functional.multi_label_soft_margin_loss", normal(4, 2), exactly([[1.0, -1.0]] * 4, "float32")),
    case("nn.functional.triplet_margin_loss", normal(4, 6), normal(4, 6), normal(4, 6)),
    case("nn.functional.triplet_margin_with_distance_loss", normal(4, 6), normal(4, 6), normal(4, 6)),
    case("nn.functional.label_smooth", constant(distribution(4, 6))).forward_only(),
    case(
        "nn.functional.ctc_loss",
        normal(6, 2, 5),
        integers(5, 2, 3, low=1, dtype="int32"),
        FREQUENCIES,
        exactly([3, 2], "int64"),
    ),
    case(
        "nn.functional.rnnt_loss",
        normal(2, 4, 3, 5),
        integers(5, 2, 2, low=1, dtype="int32"),
        exactly([4, 3], "int32"),
        exactly([2, 2], "int32"),
    ),
    case("nn.functional.hsigmoid_loss", normal(4, 6), integers(5, 4, 1), 5, normal(4, 6), normal(4)),
    case(
        "nn.functional.adaptive_log_softmax_with_loss",
        normal(4, 6),
        integers(8, 4),
        normal(6, 5),
        [[normal(6, 3), normal(3, 4)]],
        [4, 8],
    ),
]
LAYERS = [
    own_kernel(layer("CrossEntropyLoss", (), normal(4, 6), LABELS)),
    layer("NLLLoss", (), normal(4, 6), LABELS),
    layer("BCELoss", (), fraction(4, 6), constant(fraction(4, 6))),
    layer("BCEWithLogitsLoss", (), normal(4, 6), constant(fraction(4, 6))),
    layer("MSELoss", (), normal(4, 6), normal(4, 6)),
    layer("L1Loss", (), normal(4, 6), normal(4, 6)),
    layer("SmoothL1Loss", (), normal(4, 6), normal(4, 6)),
    layer("KLDivLoss", (), normal(4, 6), constant(distribution(4, 6))),
    layer("PoissonNLLLoss", (), normal(4, 6), constant(positive(4, 6))),
    layer("GaussianNLLLoss", (), normal(4, 6), normal(4, 6), constant(positive(4, 6))),
    layer("HingeEmbeddingLoss", (), normal(4, 4), SIGNS),
    layer("CosineEmbeddingLoss", (), normal(4, 6), normal(4, 6), exactly([1, -1, -1, 1], "int64")),
    layer("MarginRankingLoss", (), normal(4), normal(4), SIGNS),
    layer("SoftMarginLoss", (), normal(4), SIGNS),
    layer("MultiMarginLoss", (), normal(4, 6), LABELS),
    layer("MultiLabelSoftMarginLoss", (), normal(4, 2), exactly([[1.0, -1.0]] * 4, "float32")),
    layer("MultiLabelMarginLoss", (), normal(2, 4), exactly([[2, 0, -1, 1], [1, -1, 0, 0]], "int64")),
    layer("TripletMarginLoss", (), normal(4, 6), normal(4, 6), normal(4, 6)),
    layer("TripletMarginWithDistanceLoss", (), normal(4, 6), normal(4, 6), normal(4, 6)),
    layer(
        "CTCLoss",
        (),
        normal(6, 2, 5),
        integers(5, 2, 3, low=1, dtype="int32"),
        FREQUENCIES,
        exactly([3, 2], "int64"),
    ),
    layer("HSigmoidLoss", (6, 5), normal(4, 6), integers(5, 4, 1)),
    layer("AdaptiveLogSoftmaxWithLoss", (6, 8, [4]), normal(4, 6), integers(8, 4)),
]

CPU_REFUSES = ["paddle.nn.functional.adaptive_log_softmax_with_loss[to_static]"]

CASES = [*vary(FUNCTIONS, strided, to_static, skip=CPU_REFUSES), *LAYERS]
