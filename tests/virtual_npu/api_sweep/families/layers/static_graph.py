"""Control flow and whole functions in paddle.jit.to_static, and recomputation."""

import paddle

from api_sweep.case import case, layer, to_static
from api_sweep.inputs import exactly, normal


def _choose(cond, x):
    return cond(x.sum() > 0, lambda: x * 2.0, lambda: x - 1.0)


def _repeat(while_loop, x):
    count = paddle.zeros([1], "int32")
    return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 1.5 + 1.0), [count, x])[1]


def _first_true(case_, x):
    return case_([(x.sum() > 100, lambda: x * 2.0), (x.sum() > -100, lambda: x * 3.0)], default=lambda: x)


def _switch(switch_case, index, x):
    return switch_case(index, {0: lambda: x * 2.0, 2: lambda: x * 3.0}, default=lambda: x)


def _python_control_flow(compile_, x):
    """A Python loop and branch that depend on tensors, compiled."""

    def program(y):
        step = paddle.zeros([1], "int32")
        while step < 5:
            y = y * 1.5 + 1.0
            step += 1
            if y.sum() > 100:
                y = y - 10.0
        return y

    return compile_(program, full_graph=True)(x)


def _python_list(compile_, x):
    def program(y):
        return paddle.stack([y[row] * float(row + 1) for row in range(y.shape[0])])

    return compile_(program, full_graph=True)(x)


def _network(compile_, x):
    """A small network with normalisation and dropout, trained for one step in a graph."""
    model = paddle.nn.Sequential(
        paddle.nn.Linear(6, 8),
        paddle.nn.LayerNorm(8),
        paddle.nn.Silu(),
        paddle.nn.Dropout(0.3),
        paddle.nn.Linear(8, 3),
    )
    compiled = compile_(model, full_graph=True)
    loss = compiled(x).square().mean()
    loss.backward()
    return [loss, *(parameter.grad for parameter in model.parameters())]


def _recomputed(recompute, x):
    inner = paddle.nn.Linear(6, 6)
    return recompute(lambda y: paddle.nn.functional.dropout(paddle.nn.functional.silu(inner(y)), 0.3), x)


INSIDE = "the gradients are among the outputs"
LOOP_BACKWARD = "the backward of a compiled loop raises on the CPU place too"
LOOP = case("static.nn.while_loop", normal(3, 4)).via(_repeat)
CONTROL_FLOW = [
    case("static.nn.cond", normal(3, 4)).via(_choose),
    LOOP,
    case("static.nn.case", normal(3, 4)).via(_first_true),
    case("static.nn.switch_case", exactly([2], "int32"), normal(3, 4)).via(_switch),
]

CASES = [
    *CONTROL_FLOW,
    *(to_static(case) for case in CONTROL_FLOW if case is not LOOP),
    to_static(LOOP).forward_only(LOOP_BACKWARD),
    case("jit.to_static", normal(3, 4))
    .via(_python_control_flow)
    .named("loop and branch")
    .forward_only(LOOP_BACKWARD),
    case("jit.to_static", normal(3, 4)).via(_python_list).named("list"),
    case("jit.to_static", normal(5, 6)).via(_network).named("network").forward_only(INSIDE),
    case("distributed.fleet.utils.recompute", normal(5, 6)).via(_recomputed),
    *(
        to_static(case)
        for case in (
            layer("Linear", (6, 3), normal(4, 6)),
            layer("LayerNorm", (6,), normal(4, 6)),
            layer("Conv2D", (3, 4, 3), normal(2, 3, 7, 5)),
            layer("Embedding", (7, 5), exactly([[1, 2, 6]], "int64")),
            layer("MultiHeadAttention", (6, 2), normal(2, 5, 6)),
            layer("LSTM", (4, 3), normal(2, 5, 4)),
        )
    ),
]
