"""Reductions and scans."""

from api_sweep.case import case, cases_of, scalar, strided, to_static, vary
from api_sweep.inputs import constant, distribution, integers, normal, positive, ragged

WHOLE = cases_of(
    "amax amin logsumexp max mean median min nanmean nanmedian nansum prod std sum var", normal(3, 5, 2)
)
ALONG = [
    case("sum", normal(3, 5, 2), axis=[0, 2], keepdim=True).named("axes"),
    case("mean", normal(3, 5, 2), axis=-1).named("axis"),
    case("max", normal(3, 5, 2), axis=1).named("axis"),
    case("min", normal(3, 5, 2), axis=1).named("axis"),
    case("amax", normal(3, 5, 2), axis=[0, 1]).named("axes"),
    case("amin", normal(3, 5, 2), axis=[0, 1]).named("axes"),
    case("prod", positive(3, 5, 2), axis=1).named("axis"),
    case("std", normal(3, 5, 2), axis=0, unbiased=False).named("axis"),
    case("var", normal(3, 5, 2), axis=[0, 1]).named("axes"),
    case("logsumexp", normal(3, 5, 2), axis=[1, 2], keepdim=True).named("axes"),
    case("nansum", ragged(3, 5), axis=0).named("nan"),
    case("nanmean", ragged(3, 5), axis=0).named("nan"),
    case("median", normal(3, 5), axis=1, mode="min").named("axis"),
    case("nanmedian", ragged(3, 5), axis=1).named("nan"),
    case("quantile", normal(3, 5), q=[0.25, 0.6], axis=1),
    case("nanquantile", ragged(3, 5), q=0.4, axis=1),
    case("Tensor.norm", normal(3, 5)),
    case("Tensor.norm", normal(3, 5), p=1, axis=1).named("p=1"),
    case("reduce_as", normal(3, 5, 2), constant(normal(5, 1))),
    case("trace", normal(4, 6), offset=1),
    case("count_nonzero", normal(3, 5), axis=1).forward_only(),
    case("broadcast_tensors", [normal(3, 1), normal(1, 5)]),
]
SCANS = [
    case("cumsum", normal(3, 5), axis=1),
    case("cumprod", normal(3, 5), dim=1),
    case("cummax", normal(3, 5), axis=1),
    case("cummin", normal(3, 5), axis=1),
    case("logcumsumexp", normal(3, 5), axis=1),
    case("diff", normal(3, 5), n=2),
    case("Tensor.cumsum_", normal(3, 5), 1),
    case("Tensor.cumprod_", normal(3, 5), 1),
]
COUNTS = [
    case("histogram", normal(40), bins=7, min=-2, max=2).forward_only(),
    case("histogramdd", normal(20, 2), bins=[3, 4]).forward_only(),
    case("histogram_bin_edges", normal(40), bins=7).forward_only(),
    case("bincount", integers(9, 30)),
    case("bincount", integers(9, 30), positive(30), 12).named("weights").forward_only(),
    case("metric.accuracy", distribution(6, 4), integers(4, 6, 1), k=2).forward_only(),
]

CASES = [*vary(WHOLE, scalar, strided, to_static), *vary(ALONG, strided), *vary(SCANS, strided), *COUNTS]
