"""Sequences: recurrent layers, segments, graphs, decoding."""

import paddle

from api_sweep.case import case, cases_of, layer, strided, vary
from api_sweep.inputs import exactly, normal

SEGMENTS = exactly([0, 0, 1, 3, 3], "int64")
SOURCE = exactly([0, 1, 2, 0], "int64")
TARGET = exactly([1, 2, 1, 0], "int64")

LAYERS = [
    layer("SimpleRNNCell", (4, 3), normal(2, 4)),
    layer("LSTMCell", (4, 3), normal(2, 4)),
    layer("GRUCell", (4, 3), normal(2, 4)),
    layer("SimpleRNN", (4, 3), normal(2, 5, 4)),
    layer("LSTM", (4, 3), normal(2, 5, 4), num_layers=2, direction="bidirect"),
    layer("GRU", (4, 3), normal(2, 5, 4)),
]


def _over(cell, inputs):
    """Drives a layer that wraps cells; the cells' parameters are fixed by the seed."""
    return lambda wrapper, x: wrapper(*(cell(4, 3) for _ in range(inputs)))(x)


WRAPPERS = [
    case("nn.RNN", normal(2, 5, 4)).via(_over(paddle.nn.GRUCell, 1)),
    case("nn.BiRNN", normal(2, 5, 4)).via(_over(paddle.nn.LSTMCell, 2)),
]
SEGMENT_CASES = [
    *cases_of("segment_sum segment_mean segment_max segment_min", normal(5, 3), SEGMENTS, within="geometric"),
    *cases_of("segment_sum segment_mean segment_max segment_min", normal(5, 3), SEGMENTS, within="incubate"),
]
GRAPHS = [
    case("geometric.send_u_recv", normal(3, 4), SOURCE, TARGET, reduce_op="mean"),
    case("geometric.send_ue_recv", normal(3, 4), normal(4, 4), SOURCE, TARGET),
    case("geometric.send_uv", normal(3, 4), normal(3, 4), SOURCE, TARGET, message_op="mul"),
    case(
        "geometric.reindex_graph",
        exactly([0, 1, 2], "int64"),
        exactly([8, 9, 0, 4], "int64"),
        exactly([2, 1, 1], "int32"),
    ),
    case("incubate.graph_send_recv", normal(3, 4), SOURCE, TARGET),
]
DECODING = [
    case("text.viterbi_decode", normal(2, 4, 5), normal(5, 5), exactly([4, 3], "int64")).forward_only(),
]

CASES = [*vary(LAYERS, strided), *WRAPPERS, *SEGMENT_CASES, *GRAPHS, *DECODING]
