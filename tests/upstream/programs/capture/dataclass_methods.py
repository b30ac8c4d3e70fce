"""to_static (SOT) fails at a method of a dataclass that the traced function makes.

SOT represents the object by ``DataClassInstanceVariable``, which knows its fields, ``__class__`` and
``__post_init__`` and no other attribute, although the class is there. It raises an InnerError, which
reaches the user, instead of breaking the graph.

:versions: paddlepaddle 3.1.1 to 3.3.1
:device: cpu
:at:
    paddle/jit/sot/opcode_translator/executor/variables/basic.py:2427 `def getattr(self, name: str`
:error: ...HasNoAttributeError: DataClassInstanceVariable ... has no attribute times
:should print:
    [3.0]
:change:
    In ``getattr`` look up other names in ``self.class_var.value`` and bind functions to the instance, as
    is done for ``__post_init__``; and raise BreakGraphError where that fails.
:workaround: paddle_fused.captured.leave_untransformed, paddle_fused/masks/__init__.py
"""

from dataclasses import dataclass

import paddle


@dataclass
class Scale:
    factor: float

    def times(self, x):
        return x * self.factor


@paddle.jit.to_static(full_graph=False)
def scaled(x):
    return Scale(3.0).times(x)


print(scaled(paddle.ones([1])).tolist())
