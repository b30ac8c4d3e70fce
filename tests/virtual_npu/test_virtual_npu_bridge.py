"""The bridge: Paddle's CPU kernels on npu tensors, in dygraph and static, and the record of what ran."""

import numpy as np
import paddle
import pytest
from paddle import nn

import virtual_npu

pytestmark = pytest.mark.sampled


@pytest.fixture(autouse=True)
def empty_record(on_npu):
    virtual_npu.reset_kernel_record()


def record() -> dict[tuple[str, str], tuple[str, int]]:
    return {(row.name, row.dtype): (row.placement, row.calls) for row in virtual_npu.kernel_record()}


def test_record_tells_card_host_and_aicpu_apart():
    x = paddle.ones([3])
    _ = x + x
    _ = x.astype("float64") + x.astype("float64")
    _ = paddle.erfinv(x * 0.5)
    rows = record()
    assert rows["add", "float32"] == ("npu", 1)
    assert rows["add", "float64"] == ("aicpu", 1)
    assert rows["erfinv", "float32"] == ("host", 1)
    virtual_npu.reset_kernel_record()
    assert record() == {}


def test_repeated_indices_are_all_added(run_program):
    program = """
        import paddle
        paddle.set_device("npu")
        x, repeated, ones = paddle.zeros([1]), paddle.zeros([64], "int64"), paddle.ones([64])
        print({paddle.index_put(x, (repeated,), ones, accumulate=True).item() for _ in range(3000)})
    """
    assert run_program(program, OMP_NUM_THREADS="2").stdout.strip() == "{64.0}"


@pytest.mark.slow
def test_trace_and_record_name_each_operator_once_and_not_what_it_calls(run_program):
    program = """
        import paddle
        import paddle_custom_device
        import virtual_npu
        paddle.set_device("npu")
        x = paddle.ones([4], dtype="float16")
        virtual_npu.reset_kernel_record()
        paddle_custom_device.npu.my_add_n(x, x, x)
        print([tuple(row) for row in virtual_npu.kernel_record()])
    """
    done = run_program(program, VIRTUAL_NPU_TRACE="1")
    assert done.stdout.strip().endswith("[('my_add_n', 'float16', 'npu', 1, 'aclop')]"), done.stderr
    assert "virtual npu: my_add_n float16 on npu" in done.stderr


def test_strict_refuses_what_a_card_leaves_to_the_host(run_program):
    program = """
        import paddle
        paddle.set_device("npu")
        x = paddle.full([3], 0.5)
        print("add", (x + x).numpy())
        try:
            paddle.erfinv(x)
        except NotImplementedError as error:
            print("refused:", error)
        print("after", float(x.sum()))
    """
    done = run_program(program, VIRTUAL_NPU_STRICT="1")
    assert done.returncode == 0, done.stderr
    assert "add [1. 1. 1.]" in done.stdout and "after 1.5" in done.stdout
    assert "refused" in done.stdout and "no kernel 'erfinv' for float32" in done.stdout


@pytest.mark.slow
def test_bridge_can_be_switched_off(run_program):
    program = """
        import paddle
        paddle.set_device("npu")
        import virtual_npu
        paddle.erfinv(paddle.full([3], 0.5))
        print("recorded", [row.name for row in virtual_npu.kernel_record()])
    """
    done = run_program(program, VIRTUAL_NPU_BRIDGE="0")
    assert "recorded []" in done.stdout, done.stderr


def test_results_are_written_in_place_without_a_copy():
    x = paddle.ones([1000])
    address = x.data_ptr()
    x.add_(paddle.ones([1000]))
    view = x.reshape([10, 100])
    view[0] = 5.0
    assert x.data_ptr() == address == view.data_ptr()
    assert float(x[:100].sum()) == 500 and float(x[100:].sum()) == 1800


def test_bfloat16_goes_through_float32_and_is_rounded_once():
    values = np.random.default_rng(0).standard_normal((7, 33)).astype("float32")
    x = paddle.to_tensor(values).astype("bfloat16")
    exact = paddle.nn.functional.softmax(x.astype("float32").cpu()).astype("bfloat16").astype("float32")
    probabilities = paddle.nn.functional.softmax(x)
    assert probabilities.dtype == paddle.bfloat16
    np.testing.assert_array_equal(probabilities.astype("float32").numpy(), exact.numpy())


def test_zero_sized_and_scalar_tensors():
    empty = paddle.zeros([0, 6])
    assert (empty + empty).shape == [0, 6]
    assert paddle.concat([empty, paddle.ones([2, 6])]).shape == [2, 6]
    assert paddle.matmul(empty.astype("bfloat16"), paddle.ones([6, 3], dtype="bfloat16")).shape == [0, 3]
    assert float(paddle.to_tensor(3.0) * 2) == 6


def test_non_contiguous_input():
    values = np.arange(24, dtype="float32").reshape(4, 6)
    x = paddle.to_tensor(values)
    np.testing.assert_array_equal(
        paddle.exp(x.T[1:4:2] / 24).numpy(), paddle.exp(x.cpu().T[1:4:2] / 24).numpy()
    )
    low = x.astype("bfloat16").T[1:4:2]
    np.testing.assert_array_equal((low + low).astype("float32").numpy(), (values.T[1:4:2] * 2))


def test_kernel_errors_reach_python_and_leave_the_device_usable():
    with pytest.raises(ValueError, match="Input"):
        paddle.matmul(paddle.ones([2, 3]), paddle.ones([2, 3]))
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        nn.functional.embedding(paddle.to_tensor([99]), paddle.ones([4, 2]))
    assert float(paddle.ones([2]).sum()) == 2


def train(device: str, static: bool) -> list[float]:
    paddle.set_device(device)
    paddle.seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 4))
    forward = paddle.jit.to_static(model, full_graph=True) if static else model
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    rng = np.random.default_rng(1)
    losses = []
    for _ in range(5):
        x = paddle.to_tensor(rng.standard_normal((6, 8)).astype("float32"))
        y = paddle.to_tensor(rng.integers(0, 4, 6))
        loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("static", [False, True], ids=["dygraph", "to_static"])
def test_training_equals_the_cpu_place(static):
    # The virtual NPU has a cross entropy of its own, whose sums differ from the CPU kernel's in the last bit.
    np.testing.assert_allclose(train("npu", static), train("cpu", static), rtol=1e-6)


def test_control_flow_in_static_programs():
    def collatz(n, steps):
        while n > 1:
            n = paddle.where(n % 2 == 0, n // 2, 3 * n + 1)
            steps = steps + 1
        return steps

    static = paddle.jit.to_static(collatz, full_graph=True)
    assert int(static(paddle.to_tensor([27]), paddle.to_tensor([0]))) == 111


def test_saved_model_gives_the_same_output(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model.eval()
    spec = [paddle.static.InputSpec([None, 8], "float32")]
    paddle.jit.save(paddle.jit.to_static(model, input_spec=spec, full_graph=True), str(tmp_path / "model"))
    loaded = paddle.jit.load(str(tmp_path / "model"))
    x = paddle.rand([3, 8])
    np.testing.assert_array_equal(loaded(x).numpy(), model(x).numpy())
    assert "npu" in str(loaded(x).place)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_empty_tensors_have_gradients(dtype, on_npu):
    x, weight = paddle.zeros([0, 3, 5], dtype), paddle.ones([5], dtype)
    x.stop_gradient = weight.stop_gradient = False
    (x * weight).sum().backward()
    assert list(x.grad.shape) == [0, 3, 5]
    assert weight.grad.astype("float32").numpy().tolist() == [0.0] * 5
