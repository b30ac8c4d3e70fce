"""FusedAdamW with states in host memory: the same bits, and less memory on the device."""

import numpy as np
import paddle
import pytest
from precision import bits

import paddle_fused
from paddle_fused import FusedAdamW
from paddle_fused.ops.fused_adamw import offload as host_states

pytestmark = pytest.mark.sampled

SHAPES = [(3,), (64, 65), (1,), (7, 3), (130, 257)]
MIXED = ("bfloat16", "float32", "float16", "bfloat16", "float32")
NPU = "npu:0"


def parameters(dtypes, shapes=SHAPES):
    random = np.random.default_rng(0)
    created = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        zero = paddle.nn.initializer.Constant(0.0)
        parameter = paddle.create_parameter(list(shape), dtype, default_initializer=zero)
        parameter.set_value(paddle.to_tensor(random.standard_normal(shape), "float32").astype(dtype))
        created.append(parameter)
    return created


def optimizer_of(params, offload, **more):
    return FusedAdamW(
        0.01, parameters=params, weight_decay=0.1, multi_precision=True, offload=offload, **more
    )


def take_steps(optimizer, params, first=0, count=3):
    for step in range(first, first + count):
        random = np.random.default_rng(step)
        for parameter in params:
            gradient = random.standard_normal(parameter.shape)
            parameter.grad = paddle.to_tensor(gradient, "float32").astype(parameter.dtype)
        optimizer.step()


def states(optimizer):
    """{kind and number of the parameter: moments and master weights}."""
    masters = {f"master {i}": master for i, master in enumerate(optimizer._master_weights.values())}
    return masters | {
        f"{kind} {i}": tensor
        for kind, tensors in optimizer._accumulators.items()
        for i, tensor in enumerate(tensors.values())
        if "pow" not in kind
    }


@pytest.mark.parametrize("backend", ["native", "composed", "ascend"])
@pytest.mark.parametrize("offload", ["device", "host"])
@pytest.mark.parametrize("dtypes", [("float32",) * 5, MIXED], ids=["one", "mixed"])
@pytest.mark.parametrize("group", [1, 32 << 20], ids=["one by one", "together"])
def test_the_states_on_the_host_have_the_same_bits(backend, offload, dtypes, group, monkeypatch):
    if (backend, offload) == ("ascend", "host"):
        pytest.skip("the host has no kernels of a card")
    monkeypatch.setattr(host_states, "GROUP", group)
    paddle.set_device(NPU)
    results = []
    with paddle_fused.use_backend(backend, strict=True):
        for where in (None, offload):
            params = parameters(dtypes)
            optimizer = optimizer_of(params, where, amsgrad=backend != "ascend")
            take_steps(optimizer, params)
            assert all(parameter.place.is_custom_place() for parameter in params)
            results.append((list(map(bits, params)), states(optimizer)))
    (weights, kept), (other_weights, moved) = results
    assert other_weights == weights
    assert {name: bits(state) for name, state in moved.items()} == {n: bits(s) for n, s in kept.items()}
    assert all(state.place.is_cpu_place() for state in moved.values())
    assert not any(state.place.is_cpu_place() for state in kept.values())


@pytest.mark.parametrize("places", [(None, "device"), ("device", None), ("host", "device")])
def test_a_saved_state_dict_moves_between_them(places, tmp_path):
    def begin(offload):
        with paddle.utils.unique_name.guard():  # Paddle finds states by name
            params = parameters(MIXED)
            optimizer = optimizer_of(params, offload)
            optimizer._create_accumulators(paddle.static.default_main_program().global_block(), params)
        return params, optimizer

    paddle.set_device(NPU)
    with paddle_fused.use_backend("native", strict=True):  # the kernel that the host has, too
        whole, optimizer = begin(None)
        take_steps(optimizer, whole, count=4)
        params, optimizer = begin(places[0])
        take_steps(optimizer, params, count=2)
        later, resumed = begin(places[1])
        for parameter, source in zip(later, params, strict=True):
            parameter.set_value(source)
        paddle.save(optimizer.state_dict(), str(tmp_path / "states"))
        resumed.set_state_dict(paddle.load(str(tmp_path / "states")))
        take_steps(resumed, later, first=2, count=2)
    assert list(map(bits, later)) == list(map(bits, whole))
    assert {state.place.is_cpu_place() for state in states(resumed).values()} == {places[1] is not None}


@pytest.mark.parametrize("offload", [None, "device", "host"])
def test_memory_between_and_during_steps(offload):
    paddle.set_device(NPU)
    shapes = [(1 << 20,)] * 6  # 2 MiB of weights each, and 12 MiB of states
    params = parameters(("bfloat16",) * 6, shapes)
    optimizer = optimizer_of(params, offload)
    for parameter in params:
        parameter.grad = paddle.ones_like(parameter)
    before = paddle.device.memory_allocated(NPU)
    paddle.device.reset_max_memory_allocated(NPU)
    for _ in range(2):
        optimizer.step()
    after, peak = (
        paddle.device.memory_allocated(NPU) - before,
        paddle.device.max_memory_allocated(NPU) - before,
    )
    whole = 6 * 12 << 20
    if offload is None:
        assert whole <= after <= peak
    else:
        assert after < 1 << 20
        assert peak <= {"device": 49 << 20, "host": 13 << 20}[offload]  # two groups of two; new states


def test_no_effect_on_the_cpu():
    paddle.set_device("cpu")
    results = []
    for offload in (None, "device", "host"):
        params = parameters(("float32",) * 5)
        take_steps(optimizer_of(params, offload), params)
        results.append(list(map(bits, params)))
    assert results[0] == results[1] == results[2]


def test_other_values_are_refused():
    with pytest.raises(ValueError, match="offload is 'disk'; accepted: None, 'device' or 'host'"):
        optimizer_of(parameters(MIXED), "disk")
