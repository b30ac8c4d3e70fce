"""to_static replaces an exception by a TypeError if its class takes other arguments than a message.

An error in captured code is raised again as ``error_type(message)``, with the source location in the
message. A class whose constructor has two arguments fails there, and the user sees "missing 1 required
positional argument" instead of the error. Attributes of the exception are lost in any case.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/jit/dy2static/error.py:202 `new_exception = self.error_type(message)`
:prints:
    TypeError
:should print:
    Refused
:change:
    Raise the caught exception itself, and put the location into its notes (``add_note``), or into
    ``args`` if it has one string.
:workaround: paddle_fused/dispatch.py, paddle_fused/contracts/rule.py
"""

import paddle


class Refused(ValueError):
    def __init__(self, operator, why):
        super().__init__(f"{operator}: {why}")


class Layer(paddle.nn.Layer):
    def forward(self, x):
        raise Refused("matmul", "the shapes do not fit")


try:
    paddle.jit.to_static(Layer(), full_graph=True)(paddle.ones([2]))
except Exception as error:
    print(type(error).__name__)
