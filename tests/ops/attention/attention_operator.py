"""Calls of ``pf_flash_attention``, its float64 reference, and a composition of plain Paddle operators.

Shapes: B batch, S sequence, T tokens, N heads, D head size, Dv value's; q query side, k key side. Tensors are
written as [B, S, N, D] and turned into the operator's layouts. A key is visible where the enumerated ``keep``
says so; a query that sees nothing gives zeros.
"""

from dataclasses import dataclass, field

import numpy as np
import paddle
from precision import npu

from paddle_fused import native

FAR = 2**40  # no bound
CAUSAL = (-FAR, 0, 0)  # low, high and prefix
ORDER = {"BSND": (0, 1, 2, 3), "BNSD": (0, 2, 1, 3), "BSH": (0, 1, 2, 3), "SBH": (1, 0, 2, 3)}


def in_layout(x, layout: str):
    """[B, S, N, D], an array or a tensor, in a layout; TND takes batch 1."""
    if layout == "TND":
        return x[0]
    x = x.transpose(ORDER[layout])
    return x if layout[-1] == "D" else x.reshape([*x.shape[:2], -1])


def from_layout(x: np.ndarray, layout: str, heads: int) -> np.ndarray:
    if layout == "TND":
        return x[None]
    if layout[-1] == "H":
        x = x.reshape(*x.shape[:2], heads, -1)
    return x.transpose(np.argsort(ORDER[layout]))


def attend(
    query,
    key,
    value,
    bias=None,  # by name; to_static of Paddle 3.0 forgets the defaults of what can be given by name only
    mask=None,
    query_ends=None,
    key_ends=None,
    layout="BSND",
    num_heads=0,
    scale=None,
    dropout=0.0,
    bands=(-(2**40), 2**40, 0),  # not FAR: to_static evaluates defaults without the module's names
    align="top_left",
) -> list:
    """out, softmax_max, softmax_sum, seed_offset."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    seed = paddle.randint(0, 2**31 - 1, [2], dtype="int64") if dropout > 0 else None
    optional = (bias, mask, query_ends, key_ends, seed)
    attributes = (layout, num_heads, scale, dropout, list(bands), align)
    return native.call("pf_flash_attention", query, key, value, *optional, *attributes)


def enumerated(sq: int, skv: int, low=-FAR, high=FAR, prefix=0, align="top_left") -> np.ndarray:
    """keep [Sq, Skv] of one sequence, without a mask, key by key."""
    shift = skv - sq if align == "bottom_right" else 0
    keep = [[i + shift + low <= j <= i + shift + high or j < prefix for j in range(skv)] for i in range(sq)]
    return np.array(keep, bool).reshape(sq, skv)


@dataclass
class Case:
    """A call with [B, S, N, D] tensors. ``bias`` and ``mask`` are shapes, or None."""

    b: int
    sq: int
    skv: int
    n: int
    nkv: int
    d: int
    dv: int
    layout: str = "BSND"
    bias: tuple | None = None
    mask: tuple | None = None
    low: int = -FAR
    high: int = FAR
    prefix: list = field(default_factory=lambda: [0])  # once, or for each batch entry
    align: str = "top_left"
    scale: float = 0.3

    def arrays(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(0)
        shapes = {
            "query": (self.b, self.sq, self.n, self.d),
            "key": (self.b, self.skv, self.nkv, self.d),
            "value": (self.b, self.skv, self.nkv, self.dv),
            "out_grad": (self.b, self.sq, self.n, self.dv),
        }
        if self.bias:
            shapes["bias"] = self.bias
        arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()}
        if self.mask:
            arrays["mask"] = random.random(self.mask) < 0.4
            arrays["mask"][..., 0] = False
        return arrays

    def visible(self, mask=None) -> np.ndarray:
        """[B, N, Sq, Skv]"""
        keep = np.stack(
            [enumerated(self.sq, self.skv, self.low, self.high, p, self.align) for p in self.prefix]
        )
        keep = np.broadcast_to(keep[:, None], (self.b, self.n, self.sq, self.skv))
        return keep if mask is None else keep & ~mask

    def run(self, tensors: dict, dropout=0.0) -> list:
        """All outputs, then the gradients of query, key, value and bias."""
        inputs = {name: x.detach() for name, x in tensors.items()}
        for name in ("query", "key", "value"):
            inputs[name] = in_layout(inputs[name], self.layout).detach()
        differentiable = [inputs[name] for name in ("query", "key", "value", "bias") if name in inputs]
        for x in differentiable:
            x.stop_gradient = False
        out_grad = in_layout(inputs.pop("out_grad"), self.layout)
        if self.layout == "TND":
            inputs["query_ends"], inputs["key_ends"] = (
                paddle.to_tensor([s], dtype="int64") for s in (self.sq, self.skv)
            )
        outputs = attend(
            **inputs,
            layout=self.layout,
            num_heads=self.n if self.layout[-1] == "H" else 0,
            scale=self.scale,
            dropout=dropout,
            bands=[number for prefix in self.prefix for number in (self.low, self.high, prefix)],
            align=self.align,
        )
        return [*outputs, *paddle.grad(outputs[0], differentiable, out_grad)]


def truth(case: Case, arrays: dict, factor=1.0) -> list[np.ndarray]:
    """out and the gradients of query, key, value and (with a bias) bias, in float64."""
    q, k, v, do = (arrays[name].transpose(0, 2, 1, 3) for name in ("query", "key", "value", "out_grad"))
    k, v = (np.repeat(x, case.n // case.nkv, axis=1) for x in (k, v))
    bias = arrays.get("bias", 0.0)
    visible = case.visible(arrays.get("mask"))
    scores = np.where(visible, case.scale * (q @ k.swapaxes(-1, -2) + bias), -np.inf)
    row_max = scores.max(-1, keepdims=True, initial=-1e30)
    exponential = np.exp(scores - row_max)
    row_sum = exponential.sum(-1, keepdims=True)
    probability = exponential / np.where(row_sum == 0, 1, row_sum)
    dp = (do @ v.swapaxes(-1, -2)) * factor
    ds = case.scale * probability * (dp - (dp * probability).sum(-1, keepdims=True))
    grads = [ds @ k, ds.swapaxes(-1, -2) @ q, (probability * factor).swapaxes(-1, -2) @ do]
    group = case.n // case.nkv
    grads[1:] = [x.reshape(case.b, case.nkv, group, *x.shape[2:]).sum(2) for x in grads[1:]]
    results = [x.transpose(0, 2, 1, 3) for x in ((probability * factor) @ v, *grads)]
    if "bias" in arrays:
        broadcast = tuple(i for i, size in enumerate(arrays["bias"].shape) if size == 1)
        results.append(ds.sum(axis=broadcast, keepdims=True))
    return results


def composed(case: Case, tensors: dict) -> list:
    """The same with plain Paddle operators, each rounding to the tensors' precision."""
    differentiable = {name: x.detach() for name, x in tensors.items() if name not in ("mask", "out_grad")}
    for x in differentiable.values():
        x.stop_gradient = False
    q, k, v = (differentiable[name].transpose([0, 2, 1, 3]) for name in ("query", "key", "value"))
    if case.n != case.nkv:
        k, v = (x.repeat_interleave(case.n // case.nkv, axis=1) for x in (k, v))
    scores = paddle.matmul(q, k, transpose_y=True)
    if "bias" in differentiable:
        scores = scores + differentiable["bias"]
    scores = scores * case.scale
    visible = paddle.to_tensor(case.visible(tensors["mask"].numpy() if "mask" in tensors else None))
    visible = visible.to(q.place)
    lowest, zero = (paddle.full([], x, scores.dtype).to(q.place) for x in (-30000.0, 0.0))
    probability = paddle.nn.functional.softmax(paddle.where(visible, scores, lowest), axis=-1)
    out = paddle.matmul(paddle.where(visible, probability, zero), v).transpose([0, 2, 1, 3])
    return [out, *paddle.grad(out, list(differentiable.values()), tensors["out_grad"])]


def lengths(*ends):
    """The cumulative lengths in the form of the operator."""
    return paddle.to_tensor(ends, dtype="int64")


def tensors(*shapes, dtype="float32", seed=0):
    """Random tensors on the device."""
    random = np.random.default_rng(seed)
    return [npu(random.standard_normal(shape), dtype) for shape in shapes]
