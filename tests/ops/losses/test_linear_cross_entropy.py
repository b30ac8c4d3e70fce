"""linear_cross_entropy beyond its cases: memory, ignored tokens, errors, captured programs, cards."""

import json

import numpy as np
import paddle
import pytest
from places import SHARED
from precision import assert_as_accurate_as_composed, bits, npu, values, with_threads

import paddle_fused
from paddle_fused import BackendError, dispatch_log, linear_cross_entropy, reset_dispatch_log, use_backend
from paddle_fused.dispatch import BACKENDS
from paddle_fused.ops.linear_cross_entropy.cases import CASES

pytestmark = pytest.mark.usefixtures("on_npu")


def inputs(tokens=(6,), width=5, vocabulary=7, dtype="float32"):
    random = np.random.default_rng(0)
    labels = random.integers(0, vocabulary, tokens)
    labels.reshape(-1)[::3] = -100
    return (
        npu(random.standard_normal((*tokens, width)), dtype),
        npu(random.standard_normal((width, vocabulary)), dtype),
        paddle.to_tensor(labels),
    )


def losses_and_gradients(hidden, weight, labels, **options) -> list[paddle.Tensor]:
    loss = linear_cross_entropy(hidden, weight, labels, **options)
    return [loss, *paddle.grad([loss], [hidden, weight])]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_losses_are_float32_and_gradients_have_the_dtype_of_their_tensors(dtype):
    loss, dhidden, dweight = losses_and_gradients(*inputs(dtype=dtype))
    name = getattr(paddle, dtype)
    assert (loss.dtype, dhidden.dtype, dweight.dtype) == (paddle.float32, name, name)


def test_mean_is_over_the_tokens_that_count():
    hidden, weight, labels = inputs()
    losses = linear_cross_entropy(hidden, weight, labels, reduction="none").numpy()
    mean = linear_cross_entropy(hidden, weight, labels).numpy()
    np.testing.assert_allclose(mean, losses.sum() / (labels.numpy() != -100).sum(), rtol=1e-6)


def test_another_ignore_index():
    hidden, weight, labels = inputs()
    renamed = paddle.where(labels == -100, paddle.full_like(labels, 2**30), labels)
    assert bits(linear_cross_entropy(hidden, weight, renamed, ignore_index=2**30)) == bits(
        linear_cross_entropy(hidden, weight, labels)
    )


def test_what_an_ignored_token_holds_changes_nothing():
    hidden, weight, labels = inputs()
    poisoned = hidden.detach().clone()
    poisoned[::3] = float("nan")
    poisoned.stop_gradient = False
    with use_backend("native", strict=True):
        clean = losses_and_gradients(hidden, weight, labels)
        dirty = losses_and_gradients(poisoned, weight, labels)
    assert [bits(tensor) for tensor in clean] == [bits(tensor) for tensor in dirty]
    assert not dirty[1][::3].any()


def large_logits(dtype="bfloat16", transpose_weight=False):
    """Logits of about 30, where 16 bits would round by up to 0.06, and the losses in float64."""
    random = np.random.default_rng(0)
    hidden, weight = random.standard_normal((40, 64)), random.standard_normal((64, 300))
    labels = random.integers(0, 300, 40)
    tensors = npu(hidden, dtype), npu(weight.T if transpose_weight else weight, dtype)
    wide = [values(tensor) for tensor in tensors]
    logits = wide[0] @ (wide[1].T if transpose_weight else wide[1])
    largest = logits.max(-1)
    losses = largest + np.log(np.exp(logits - largest[:, None]).sum(-1)) - logits[np.arange(40), labels]
    assert np.abs(logits).max() > 25
    return (*tensors, paddle.to_tensor(labels)), losses


@pytest.mark.parametrize("transpose_weight", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_are_float32(backend, dtype, transpose_weight):
    tensors, losses = large_logits(dtype, transpose_weight)
    with use_backend(backend, strict=True):
        losses_of_rows = linear_cross_entropy(*tensors, reduction="none", transpose_weight=transpose_weight)
    np.testing.assert_allclose(losses_of_rows.numpy(), losses, atol=3e-5)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_auto_cast_rounds_nothing(backend, level):
    tensors, losses = large_logits("float32")
    with use_backend(backend, strict=True), paddle.amp.auto_cast(level=level, dtype="bfloat16"):
        row_losses = linear_cross_entropy(*tensors, reduction="none")
        gradients = paddle.grad([row_losses.sum()], list(tensors[:2]))
    np.testing.assert_allclose(row_losses.numpy(), losses, atol=3e-5)
    with use_backend(backend, strict=True):
        plain = paddle.grad([linear_cross_entropy(*tensors, reduction="sum")], list(tensors[:2]))
    for gradient, other in zip(gradients, plain, strict=True):
        np.testing.assert_allclose(gradient.numpy(), other.numpy(), atol=2e-5)


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_frozen_tensor_has_no_gradient_and_the_other_keeps_its_own(backend, dtype, frozen):
    tensors = inputs((300,), 5, 7, dtype)
    with use_backend(backend, strict=True):
        both = losses_and_gradients(*tensors)
        tensors[frozen].stop_gradient = True
        linear_cross_entropy(*tensors).backward()
    assert tensors[frozen].grad is None
    assert bits(tensors[1 - frozen].grad) == bits(both[2 - frozen])


def test_logits_that_are_large():
    hidden, weight, labels = inputs()
    loss, dhidden, dweight = losses_and_gradients(1e4 * hidden, weight, labels)
    assert np.isfinite(loss.numpy())
    assert np.isfinite(dhidden.numpy()).all() and np.isfinite(dweight.numpy()).all()


def captured():
    def program(hidden, weight, labels):
        return linear_cross_entropy(hidden, weight, labels)

    return paddle.jit.to_static(program, full_graph=True)


def test_a_captured_program_checks_its_labels():
    hidden, weight, labels = inputs()
    program = captured()
    with use_backend("native", strict=True):
        program(hidden, weight, labels)
        with pytest.raises(ValueError, match=r"a label is 7; .* 0 to 6"):
            program(hidden, weight, paddle.full_like(labels, 7))


@pytest.mark.sampled
@pytest.mark.parametrize("label", [-1, 7, 2**40])
@pytest.mark.parametrize("backend", BACKENDS)
def test_label_out_of_range(backend, label):
    hidden, weight, labels = inputs()
    labels[1] = label
    with (
        use_backend(backend, strict=True),
        pytest.raises(ValueError, match=rf"a label is {label}; .* 0 to 6 .*ignore_index -100"),
    ):
        linear_cross_entropy(hidden, weight, labels)


def bad_inputs():
    hidden, weight, labels = inputs()
    return {
        "an array": ((hidden.numpy(), weight, labels), {}, "hidden is ndarray"),
        "integers": ((hidden.astype("int64"), weight, labels), {}, "hidden is int64; accepted: float32"),
        "two dtypes": (
            (hidden, weight.astype("bfloat16"), labels),
            {},
            "weight is bfloat16; accepted: float32",
        ),
        "labels in int32": ((hidden, weight, labels.astype("int32")), {}, "labels is int32; accepted: int64"),
        "transposed weight": (
            (hidden, weight.t(), labels),
            {},
            r"weight has shape \[7, 5\] and hidden \[6, 5\].* For \[V, H\], pass transpose_weight=True",
        ),
        "weight not transposed": (
            (hidden, weight, labels),
            {"transpose_weight": True},
            r"weight has shape \[5, 7\] .* For \[H, V\], pass transpose_weight=False",
        ),
        "a weight of one dimension": ((hidden, weight[0], labels), {}, r"weight has shape \[7\]"),
        "no vocabulary": ((hidden, weight[:, :0], labels), {}, r"weight has shape \[5, 0\]"),
        "too few labels": ((hidden, weight, labels[1:]), {}, r"labels has shape \[5\]; accepted: \[6\]"),
        "labels of another rank": ((hidden, weight, labels[None]), {}, r"labels has shape \[1, 6\]"),
        "a scalar": ((hidden.sum(), weight, labels), {}, "hidden .*accepted: .*H"),
        "ignore_index": ((hidden, weight, labels), {"ignore_index": 2**31}, "ignore_index is 2147483648"),
        "reduction": (
            (hidden, weight, labels),
            {"reduction": "avg"},
            "reduction is 'avg'; accepted: mean, sum",
        ),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("case", list(bad_inputs()))
def test_bad_input(case):
    arguments, options, message = bad_inputs()[case]
    with pytest.raises(ValueError, match=rf"(?s)linear_cross_entropy: .*{message}"):
        linear_cross_entropy(*arguments, **options)


def test_tensors_on_two_devices():
    hidden, weight, labels = inputs()
    message = "hidden is on npu:0, weight is on cpu, labels is on npu:0; accepted: one device"
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(hidden, weight.cpu(), labels)


def test_a_loss_of_one_statistic_alone_is_refused():
    hidden, weight, labels = inputs()
    first_ids = paddle.zeros([1], "int64")
    lse, _ = paddle_fused.native.call(
        "pf_linear_cross_entropy", hidden, weight, labels, first_ids, -100, 7, False, True, True
    )
    with pytest.raises(ValueError, match="one of lse and target"):
        lse.sum().backward()


def many_logits(transpose_weight=False):
    """Large enough that the gradient is computed with the loss, in more than one chunk."""
    hidden, weight, labels = inputs((321,), 35, 20000)
    if transpose_weight:
        weight = weight.detach().t().contiguous()
        weight.stop_gradient = False
    return hidden, weight, labels


@pytest.mark.sampled
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_graph_that_is_kept_gives_its_gradients_again(reduction):
    """The gradients of a backward belong to the caller, who may change them before the next one."""
    hidden, weight, labels = many_logits()
    with use_backend("native", strict=True):
        loss = linear_cross_entropy(hidden, weight, labels, reduction=reduction)
    first = paddle.grad([loss], [hidden, weight], retain_graph=True)
    kept = [bits(gradient) for gradient in first]
    for gradient in first:
        gradient.zero_()
    assert [bits(gradient) for gradient in paddle.grad([loss], [hidden, weight])] == kept


@pytest.mark.sampled
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_follow_the_scale_of_the_loss(reduction):
    tensors = many_logits()
    with use_backend("native", strict=True):
        loss = linear_cross_entropy(*tensors, reduction=reduction)
        plain = paddle.grad([loss], tensors[:2], retain_graph=True)
        scaled = paddle.grad([4 * loss], tensors[:2])
    for gradient, other in zip(plain, scaled, strict=True):
        np.testing.assert_array_equal(4 * gradient.numpy(), other.numpy())


@pytest.mark.sampled
@pytest.mark.parametrize("transpose_weight", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_with_the_loss_are_as_accurate_as_those_of_the_backward(reduction, transpose_weight):
    tensors = many_logits(transpose_weight)
    hidden, weight, labels = tensors
    options = {"transpose_weight": transpose_weight, "reduction": reduction}
    with use_backend("native", strict=True):
        reset_dispatch_log()
        fused = losses_and_gradients(*tensors, **options)
        assert dispatch_log()[0].mode == "pf_linear_cross_entropy_with_backward"
    with use_backend("composed", strict=True):
        composed = losses_and_gradients(*tensors, **options)
        wide = [tensor.detach().astype("float64") for tensor in (hidden, weight)]
        for tensor in wide:
            tensor.stop_gradient = False
        truth = losses_and_gradients(*wide, labels, **options)
    for actual, baseline, exact, what in zip(
        fused, composed, truth, ("loss", "dhidden", "dweight"), strict=True
    ):
        assert_as_accurate_as_composed(actual, baseline, exact.numpy(), what)


def test_gradients_with_the_loss_do_not_depend_on_the_number_of_threads():
    tensors = many_logits()
    with use_backend("native", strict=True):
        single, two = (with_threads(threads, lambda: losses_and_gradients(*tensors)) for threads in (1, 2))
    assert single == two


@pytest.mark.sampled
@pytest.mark.parametrize("frozen", [0, 1])
def test_with_the_loss_a_frozen_tensor_has_no_gradient_and_the_other_keeps_its_own(frozen):
    tensors = many_logits()
    with use_backend("native", strict=True):
        both = losses_and_gradients(*tensors)
        tensors[frozen].stop_gradient = True
        linear_cross_entropy(*tensors).backward()
    assert tensors[frozen].grad is None
    assert bits(tensors[1 - frozen].grad) == bits(both[2 - frozen])


PEAK = """
    import sys
    import paddle
    from paddle_fused import linear_cross_entropy, use_backend
    sys.path.insert(0, {tests!r})
    from peak_memory import grown_by

    backend, tokens, width, vocabulary = "{backend}", 4096, 16, 32000
    paddle.set_device("npu:0" if backend == "ascend" else "cpu")
    hidden, weight = paddle.randn([tokens, width]), paddle.randn([width, vocabulary])
    hidden.stop_gradient = weight.stop_gradient = False
    labels = paddle.randint(0, vocabulary, [tokens])

    def grown_on_the_device_by(work):
        before = paddle.device.max_memory_allocated("npu:0")
        work()
        return paddle.device.max_memory_allocated("npu:0") - before

    with use_backend(backend, strict=True):
        linear_cross_entropy(hidden[:2], weight, labels[:2]).backward()
        measure = grown_on_the_device_by if backend == "ascend" else grown_by
        grown = measure(lambda: linear_cross_entropy(hidden, weight, labels).backward())
    print(grown / (tokens * vocabulary * 4))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "share"), [("native", 1 / 8), ("ascend", 1 / 4)])
def test_the_logits_are_never_held_as_a_whole(backend, share, run_program):
    strict = "1" if backend == "ascend" else "0"
    done = run_program(PEAK.format(backend=backend, tests=str(SHARED)), VIRTUAL_NPU_STRICT=strict)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < share


@pytest.mark.slow
def test_the_composition_for_a_card_consists_of_the_card_s_kernels(run_python, tmp_path):
    """Every case, one of them in twenty chunks, with kernels that a card has only."""
    file = tmp_path / "parity.json"
    done = run_python(
        *("-m", "paddle_fused.parity", "linear_cross_entropy", "--json", file), VIRTUAL_NPU_STRICT="1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())["results"]
    ran = [r for r in results if r["backend"] == "ascend" and r["device"] == "npu" and r["refused"] is None]
    assert len(ran) == sum(len(case.dtypes) for case in CASES)
    (mode,) = {r["mode"] for r in ran}
    assert mode.startswith("matmul and cross_entropy_with_softmax on 256 tokens")


def test_why_the_composition_for_a_card_refuses():
    hidden, weight, labels = inputs()

    def reason(*tensors):
        with use_backend("ascend", strict=True), pytest.raises(BackendError) as caught:
            linear_cross_entropy(*tensors)
        return caught.value.reasons["ascend"]

    assert "AICPU" in reason(hidden.astype("float64"), weight.astype("float64"), labels)
    assert "not on npu" in reason(hidden.cpu(), weight.cpu(), labels.cpu())


def test_a_captured_program_computes_all_tokens_at_once():
    program = captured()
    reset_dispatch_log()
    program(*inputs())
    (ran,) = dispatch_log()
    assert ran.backend == "ascend"
    assert ran.mode.startswith("matmul and cross_entropy_with_softmax on all tokens")


def test_tensors_need_not_be_on_the_default_device(on_npu):
    cpu = paddle.CPUPlace()
    hidden, weight = (paddle.to_tensor(np.ones(shape, "float32"), place=cpu) for shape in ([4, 8], [8, 6]))
    labels = paddle.to_tensor([0, 1, 2, 3], dtype="int64", place=cpu)
    with use_backend("native", strict=True):
        loss = paddle_fused.linear_cross_entropy(hidden, weight, labels)
    assert loss.place.is_cpu_place()
    np.testing.assert_allclose(loss.item(), np.log(6), rtol=1e-6)


def test_a_captured_program_need_not_know_the_vocabulary(on_cpu):
    spec = paddle.static.InputSpec

    @paddle.jit.to_static(
        full_graph=True, input_spec=[spec([4, 8]), spec([8, None]), spec([4], dtype="int64")]
    )
    def program(hidden, weight, labels):
        with use_backend("native", strict=True):
            return paddle_fused.linear_cross_entropy(hidden, weight, labels)

    hidden, weight = paddle.ones([4, 8]), paddle.ones([8, 6])
    loss = program(hidden, weight, paddle.to_tensor([0, 1, 2, 5], dtype="int64"))
    np.testing.assert_allclose(loss.item(), np.log(6), rtol=1e-6)
    with pytest.raises(ValueError, match="a label is 6"):
        program(hidden, weight, paddle.to_tensor([0, 1, 2, 6], dtype="int64"))
