"""Convolution, linear layers, and what moves pixels."""

from api_sweep.case import case, layer, strided, to_static, vary
from api_sweep.inputs import normal, unit

CONVOLUTIONS = [
    case("nn.functional.conv1d", normal(2, 3, 9), normal(4, 3, 3), normal(4), stride=2, padding=1),
    case("nn.functional.conv2d", normal(2, 3, 7, 5), normal(4, 3, 3, 3), normal(4), stride=2, padding=1),
    case("nn.functional.conv2d", normal(2, 3, 7, 5), normal(3, 1, 3, 3), groups=3).named("depthwise"),
    case("nn.functional.conv2d", normal(2, 4, 7, 6), normal(6, 2, 3, 2), groups=2, dilation=2).named(
        "grouped"
    ),
    case("nn.functional.conv2d", normal(2, 7, 5, 3), normal(4, 3, 3, 3), data_format="NHWC").named("NHWC"),
    case("nn.functional.conv3d", normal(2, 3, 4, 5, 3), normal(4, 3, 2, 3, 2), normal(4)),
    case("nn.functional.conv1d_transpose", normal(2, 3, 7), normal(3, 4, 3), normal(4), stride=2),
    case("nn.functional.conv2d_transpose", normal(2, 3, 5, 4), normal(3, 4, 3, 3), normal(4), stride=2),
    case("nn.functional.conv3d_transpose", normal(2, 3, 3, 4, 2), normal(3, 4, 2, 3, 2), normal(4)),
    case("vision.ops.deform_conv2d", normal(2, 3, 6, 5), unit(2, 18, 4, 3), normal(4, 3, 3, 3)),
]
PIXELS = [
    case("nn.functional.unfold", normal(2, 3, 6, 5), 2, strides=2),
    case("nn.functional.fold", normal(2, 12, 20), [5, 6], 2),
    case("nn.functional.pixel_shuffle", normal(2, 8, 3, 2), 2),
    case("nn.functional.pixel_unshuffle", normal(2, 2, 6, 4), 2),
    case("nn.functional.channel_shuffle", normal(2, 6, 3, 2), 3),
    case("nn.functional.temporal_shift", normal(6, 4, 3, 2), 3, 0.25),
    case("nn.functional.affine_grid", normal(2, 2, 3), [2, 3, 4, 5]),
    case("nn.functional.grid_sample", normal(2, 3, 5, 4), unit(2, 3, 4, 2)),
    case("nn.functional.grid_sample", normal(2, 3, 5, 4), unit(2, 3, 4, 2), mode="nearest").named("nearest"),
    case("nn.functional.interpolate", normal(2, 3, 4, 5), size=[7, 6], mode="bilinear"),
    case("nn.functional.interpolate", normal(2, 3, 4, 5), scale_factor=2, mode="nearest").named("nearest"),
    case("nn.functional.interpolate", normal(2, 3, 4, 5), size=[7, 6], mode="bicubic").named("bicubic"),
    case("nn.functional.interpolate", normal(2, 3, 5), size=[8], mode="linear", data_format="NCW").named(
        "linear"
    ),
    case("nn.functional.interpolate", normal(2, 3, 3, 4, 5), size=[4, 5, 6], mode="trilinear").named(
        "trilinear"
    ),
    case("nn.functional.upsample", normal(2, 3, 4, 5), scale_factor=2),
]
LAYERS = [
    layer("Linear", (5, 3), normal(4, 5)),
    layer("Bilinear", (5, 4, 2), normal(3, 5), normal(3, 4)),
    layer("Conv1D", (3, 4, 3), normal(2, 3, 9)),
    layer("Conv2D", (3, 4, 3), normal(2, 3, 7, 5), padding=1),
    layer("Conv3D", (3, 4, 2), normal(2, 3, 4, 5, 3)),
    layer("Conv1DTranspose", (3, 4, 3), normal(2, 3, 7)),
    layer("Conv2DTranspose", (3, 4, 3), normal(2, 3, 5, 4)),
    layer("Conv3DTranspose", (3, 4, 2), normal(2, 3, 3, 4, 2)),
    layer("Unfold", (2,), normal(2, 3, 6, 5)),
    layer("Fold", ([5, 6], 2), normal(2, 12, 20)),
    layer("PixelShuffle", (2,), normal(2, 8, 3, 2)),
    layer("PixelUnshuffle", (2,), normal(2, 2, 6, 4)),
    layer("ChannelShuffle", (3,), normal(2, 6, 3, 2)),
    layer("Flatten", (), normal(2, 3, 4)),
    layer("Unflatten", (1, [2, 3]), normal(2, 6, 4)),
    layer("Upsample", (), normal(2, 3, 4, 5), scale_factor=2, mode="bilinear"),
    layer("UpsamplingNearest2D", (), normal(2, 3, 4, 5), scale_factor=2),
    layer("UpsamplingBilinear2D", (), normal(2, 3, 4, 5), scale_factor=2),
    *(
        layer(
            f"{kind}Pad{dims}D", ([1, 2] + [0, 1] * (dims - 1), *value), normal(*(2, 3, 4, 5, 3)[: dims + 2])
        )
        for kind, *value in (("Constant", 0.5), ("Reflection",), ("Replication",), ("Circular",), ("Zero",))
        for dims in (1, 2, 3)
    ),
    layer("CosineSimilarity", (), normal(3, 5), normal(3, 5)),
    layer("PairwiseDistance", (), normal(3, 5), normal(3, 5)),
]

CASES = [*vary(CONVOLUTIONS, strided, to_static), *vary(PIXELS, strided, to_static), *LAYERS]
