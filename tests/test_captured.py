"""The cure of paddle_fused.captured is needed, and cures."""

import pytest

# Values of a block's arguments, looked at when the program of the block is gone.
PROGRAM = """
import sys
import paddle
if sys.argv[1] == "cured":
    import paddle_fused.ops
paddle.enable_static()
program = paddle.static.Program()
with paddle.static.program_guard(program):
    tensor = paddle.static.data("x", [4], "float32").type()
block = program.global_block()
block.add_arg(tensor)
block.add_kwarg("name", tensor)
values = block.args() + list(block.kwargs().values())
addresses = [value.hash() for value in values]
del program, block
print([value.hash() for value in values] == addresses)
"""


@pytest.mark.parametrize("cure", ["cured", "stock"])
def test_values_do_not_stand_in_the_memory_of_a_program(run_python, cure):
    """When the stock case fails, Paddle has been cured and paddle_fused.captured can forget it."""
    done = run_python("-c", PROGRAM, cure, MALLOC_PERTURB_="165")  # writes over what is freed
    assert done.stdout == f"{cure == 'cured'}\n", done.stderr
