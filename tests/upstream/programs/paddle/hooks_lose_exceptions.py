"""An exception in a gradient hook becomes an OSError, whatever its type.

The hook is called from C++, which checks that a result came back and raises an error of its own. The
exception's text is inside the message, its type and its traceback are lost, and ``except ValueError``
around ``backward`` does not catch it.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/fluid/pybind/eager_utils.cc:2996 `PyTensorHook::operator()`
:prints:
    OSError
:should print:
    ValueError
:change:
    If the call returned null, rethrow the Python exception as it is (``throw
    pybind11::error_already_set()``).
:workaround: llm_npu/numerics/nan_inf.py
"""

import paddle


def hook(gradient):
    raise ValueError("the gradient is not finite")


x = paddle.ones([1])
x.stop_gradient = False
y = x * 2
y.register_hook(hook)
try:
    y.backward()
except Exception as error:
    print(type(error).__name__)
