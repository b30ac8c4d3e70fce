"""Detection operators."""

from api_sweep.case import case
from api_sweep.inputs import constant, exactly, normal

BOXES = exactly([[1.0, 1.0, 4.0, 4.0], [0.0, 2.0, 3.0, 5.0], [1.0, 1.0, 4.0, 3.5]], "float32")
COUNTS = exactly([2, 1], "int32")

CASES = [
    case("vision.ops.roi_align", normal(2, 3, 6, 6), BOXES, COUNTS, 2),
    case("vision.ops.roi_pool", normal(2, 3, 6, 6), BOXES, COUNTS, 2),
    case("vision.ops.psroi_pool", normal(2, 8, 6, 6), BOXES, COUNTS, 2),
    case("vision.ops.nms", BOXES, 0.3, exactly([0.3, 0.9, 0.5], "float32")).forward_only(),
    case(
        "vision.ops.box_coder", BOXES, [0.1, 0.1, 0.2, 0.2], constant(normal(2, 4)), "encode_center_size"
    ).forward_only(),
    case("vision.ops.prior_box", normal(1, 3, 4, 4), normal(1, 3, 16, 16), [4.0], [8.0]).forward_only(),
    case(
        "vision.ops.yolo_box",
        normal(1, 14, 3, 3),
        exactly([[32, 32]], "int32"),
        [10, 13, 16, 30],
        2,
        0.01,
        16,
    ).forward_only(),
]
