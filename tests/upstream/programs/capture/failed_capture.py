"""A failed to_static capture leaves its parameters to a later program.

The parameters and in-place results of a program are recorded under the program's address, and removed
only when its capture has succeeded. A later program at the same address takes the failed one's for its
own: parameters of another layer, whose Values are freed memory. Here every program has the same key, as
it happens by chance with addresses. (Before 3.3 the records are in pir_dy2static and stay behind as
well.)

:versions: paddlepaddle 3.3.1
:device: cpu
:at:
    paddle/jit/dy2static/utils.py:1149 `def graph_tracing_guard(main_program: paddle.static.Program):`
    paddle/jit/dy2static/parameter_recorder.py:75 `def pop(self, program):`
:prints:
    4 parameters
:should print:
    2 parameters
:change:
    Remove the records in ``graph_tracing_guard``, in a ``finally``. Better still, keep them on the
    program itself.
:workaround: paddle_fused.captured._failed_captures_leave_nothing
"""

import paddle
from paddle.jit.dy2static import parameter_recorder

parameter_recorder._program_hash = lambda program: 0


class Layer(paddle.nn.Layer):
    def __init__(self, fails):
        super().__init__()
        self.linear, self.fails = paddle.nn.Linear(2, 2), fails

    def forward(self, x):
        y = self.linear(x)
        if self.fails:
            raise RuntimeError("planted")
        return y


def count(fails):
    spec = [paddle.static.InputSpec([None, 2])]
    layer = paddle.jit.to_static(Layer(fails), spec, full_graph=True)
    return len(layer.forward.concrete_program.parameters[0])


try:
    count(fails=True)
except RuntimeError:
    print(count(fails=False), "parameters")
