"""Block.args() and Block.kwargs() return Values that live in the program's memory, and crash later
captures.

pybind11 hands out references into the block's own vector and map. ``to_static`` keeps them in a
reference cycle after the program is gone. pybind11 has one Python object for each address, so where a
later program's Values are allocated at that address, such as the outputs of a custom operator, Python
gets the old object for one of them, and reads freed memory when the vector is gone. A process that
captures hundreds of programs sometimes ends with SIGSEGV.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:environment: MALLOC_PERTURB_=165
:at:
    paddle/fluid/pybind/pir.cc `BindBlock`
:prints:
    the values are the block's: False
:should print:
    the values are the block's: True
:change: Return copies, ``return_value_policy::copy``: a Value is one pointer.
:workaround: paddle_fused.captured._arguments_of_blocks_are_copies
"""

import paddle

paddle.enable_static()
program = paddle.static.Program()
with paddle.static.program_guard(program):
    tensor = paddle.static.data("x", [4], "float32").type()
block = program.global_block()
block.add_kwarg("name", tensor)
values = list(block.kwargs().values())
hashes = [value.hash() for value in values]
del program, block  # MALLOC_PERTURB_ writes over memory that is freed
print("the values are the block's:", [value.hash() for value in values] == hashes)
