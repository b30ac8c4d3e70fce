"""The patches of paddle_fused.captured are necessary, and work."""

import pytest

pytestmark = pytest.mark.sampled

# Values of a block's arguments, looked at when the program of the block is gone.
PROGRAM = """
import sys
import paddle
if sys.argv[1] == "patched":
    import paddle_fused.ops.arguments
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


@pytest.mark.slow
@pytest.mark.parametrize("paddle_is", ["patched", "upstream"])
def test_values_do_not_stand_in_the_memory_of_a_program(run_python, paddle_is):
    """If the upstream case fails, Paddle has fixed the defect, and the patch can be removed."""
    done = run_python("-c", PROGRAM, paddle_is, MALLOC_PERTURB_="165")  # writes over what is freed
    assert done.stdout == f"{paddle_is == 'patched'}\n", done.stderr


# The number of parameters of a program behind a capture that failed. All programs get one address.
CAPTURES = """
import sys
import paddle
from paddle_fused import paddle_release
paddle_release.parameter_recorder()._program_hash = lambda program: 0
if sys.argv[1] == "patched":
    import paddle_fused.ops.arguments

class Layer(paddle.nn.Layer):
    def __init__(self, fails):
        super().__init__()
        self.linear, self.fails = paddle.nn.Linear(2, 2), fails

    def forward(self, x):
        y = self.linear(x)
        if self.fails:
            raise RuntimeError("planted")
        return y

def parameters(fails):
    spec = [paddle.static.InputSpec([None, 2])]
    layer = paddle.jit.to_static(Layer(fails), spec, full_graph=True)
    return len(layer.forward.concrete_program.parameters[0])

try:
    parameters(fails=True)
except RuntimeError as error:
    assert "planted" in str(error)
    print(parameters(fails=False))
"""


@pytest.mark.slow
@pytest.mark.parametrize("paddle_is", ["patched", "upstream"])
def test_a_failed_capture_leaves_no_parameters_to_later_ones(run_python, tmp_path, paddle_is):
    """If the upstream case fails, Paddle has fixed the defect, and the patch can be removed."""
    program = tmp_path / "captures.py"
    program.write_text(CAPTURES)  # to_static reads the source of what it captures
    done = run_python(program, paddle_is)
    assert done.stdout == ("2\n" if paddle_is == "patched" else "4\n"), done.stderr
