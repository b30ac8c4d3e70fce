"""cross_entropy_with_softmax, one_hot, embedding: the ends of a language model."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from precision import (
    DTYPES,
    ROUNDING,
    assert_as_accurate_as_composed,
    assert_is_gradient,
    npu,
    values,
    with_threads,
)

pytestmark = pytest.mark.sampled

IGNORE = -100
# (logits, axis): odd sizes, a vocabulary, two classes, one class, inner dimensions
CASES = [((7, 33), -1), ((2, 5, 1000), -1), ((3, 2), 1), ((4, 1), -1), ((2, 5, 3, 7), 1), ((9, 4), 0)]


def log_softmax(x, axis):
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def one_hot(labels, classes, axis):
    """[..., 1 at `axis`, ...] -> [..., classes, ...]; zeros where a label is ignored."""
    return np.moveaxis(labels, axis, -1)[..., 0][..., None] == np.arange(classes)


def hard_labels(shape, axis, seed=0):
    label_shape = list(shape)
    label_shape[axis] = 1
    labels = np.random.default_rng(seed).integers(0, shape[axis], label_shape)
    labels.reshape(-1)[::3] = IGNORE
    return labels


def inputs(shape, axis, dtype, seed=0):
    random = np.random.default_rng(seed)
    loss_shape = list(shape)
    loss_shape[axis] = 1
    return (
        npu(4 * random.standard_normal(shape), dtype),
        npu(random.standard_normal(loss_shape), dtype, requires_grad=False),
    )


def loss_of(logits, labels, axis, soft_label=False, use_softmax=True):
    """The operator below F.cross_entropy: (loss, softmax)."""
    softmax, loss = paddle._C_ops.cross_entropy_with_softmax(
        logits, labels, soft_label, use_softmax, True, IGNORE, axis
    )
    return loss, softmax


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_hard_labels(shape, axis, dtype):
    logits, dloss = inputs(shape, axis, dtype)
    labels = hard_labels(shape, axis)
    chosen = np.moveaxis(one_hot(labels, shape[axis], axis).astype(np.float64), -1, axis)
    x64, g64 = values(logits), values(dloss)

    def true_loss(x):
        return -(chosen * log_softmax(x, axis)).sum(axis, keepdims=True)

    loss, softmax = loss_of(logits, paddle.to_tensor(labels), axis)
    weights = npu(chosen, dtype, requires_grad=False)
    composed = -(weights * F.log_softmax(logits, axis)).sum(axis, keepdim=True)
    assert (loss.dtype, softmax.dtype) == (logits.dtype, logits.dtype)
    assert_as_accurate_as_composed(loss, composed, true_loss(x64), "loss")
    assert_as_accurate_as_composed(
        softmax, F.softmax(logits, axis), np.exp(log_softmax(x64, axis)), "softmax"
    )

    true_gradient = (np.exp(log_softmax(x64, axis)) * (labels != IGNORE) - chosen) * g64
    assert_is_gradient(lambda x: (true_loss(x) * g64).sum(), [x64], [true_gradient])
    (gradient,) = paddle.grad([loss], [logits], [dloss])
    (noise_floor,) = paddle.grad([composed], [logits], [dloss])
    assert_as_accurate_as_composed(gradient, noise_floor, true_gradient, "gradient")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_soft_labels(shape, axis, dtype):
    logits, dloss = inputs(shape, axis, dtype)
    shares = np.random.default_rng(1).random(shape)
    labels = npu(shares / shares.sum(axis, keepdims=True), dtype, requires_grad=False)
    x64, g64, labels64 = map(values, (logits, dloss, labels))

    def true_loss(x):
        return -(labels64 * log_softmax(x, axis)).sum(axis, keepdims=True)

    loss, _ = loss_of(logits, labels, axis, soft_label=True)
    composed = -(labels * F.log_softmax(logits, axis)).sum(axis, keepdim=True)
    assert_as_accurate_as_composed(loss, composed, true_loss(x64), "loss")
    # As on every device the gradient takes the labels to sum to one; rounded ones do so to one rounding each.
    true_gradient = (np.exp(log_softmax(x64, axis)) - labels64) * g64
    (gradient,) = paddle.grad([loss], [logits], [dloss])
    (noise_floor,) = paddle.grad([composed], [logits], [dloss])
    assert_as_accurate_as_composed(gradient, noise_floor, true_gradient, "gradient")


@pytest.mark.parametrize("soft_label", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_probabilities_instead_of_logits(dtype, soft_label):
    shares = np.random.default_rng(0).uniform(0.1, 1, (6, 5))
    probabilities = npu(shares / shares.sum(-1, keepdims=True), dtype)
    labels = hard_labels((6, 5), -1)
    p64 = values(probabilities)
    weights64 = p64[::-1] if soft_label else one_hot(labels, 5, -1).astype(np.float64)
    weights = npu(weights64, dtype, requires_grad=False)
    loss, handed_on = loss_of(
        probabilities, weights if soft_label else paddle.to_tensor(labels), -1, soft_label, use_softmax=False
    )
    np.testing.assert_array_equal(values(handed_on), p64)
    composed = -(weights * paddle.log(probabilities)).sum(-1, keepdim=True)
    assert_as_accurate_as_composed(loss, composed, -(weights64 * np.log(p64)).sum(-1, keepdims=True), "loss")
    (gradient,) = paddle.grad([loss], [probabilities])
    (noise_floor,) = paddle.grad([composed], [probabilities])
    assert_as_accurate_as_composed(gradient, noise_floor, -weights64 / p64, "gradient")


@pytest.mark.parametrize("label_dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_dtypes_of_labels(label_dtype):
    logits, _ = inputs((6, 5), -1, "float32")
    labels = paddle.to_tensor([[0], [1], [2], [3], [4], [0]])
    expected = loss_of(logits, labels, -1)[0].numpy()
    np.testing.assert_array_equal(loss_of(logits, labels.astype(label_dtype), -1)[0].numpy(), expected)


def test_large_logits_stay_finite():
    logits = npu([[1e4, -1e4, 0.0], [-np.inf, 0.0, 1.0], [300.0, 299.0, -300.0]], "float32")
    loss, softmax = loss_of(logits, paddle.to_tensor([[1], [2], [0]]), -1)
    # log(1 + e^-1) = 0.31326...
    np.testing.assert_allclose(
        loss.numpy().ravel(), [2e4, np.log1p(np.exp(-1)), np.log1p(np.exp(-1))], rtol=1e-6
    )
    np.testing.assert_allclose(softmax.numpy().sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_has_the_same_bits_for_any_number_of_threads(dtype):
    logits, dloss = inputs((67, 1003), -1, dtype)
    labels = paddle.to_tensor(hard_labels((67, 1003), -1))

    def compute():
        loss, softmax = loss_of(logits, labels, -1)
        return [loss, softmax, *paddle.grad([loss], [logits], [dloss])]

    assert with_threads(1, compute) == with_threads(2, compute)


def test_loss_of_no_rows():
    logits, dloss = inputs((0, 5), -1, "float32")
    loss, softmax = loss_of(logits, paddle.zeros([0, 1], "int64"), -1)
    assert (loss.shape, softmax.shape) == ([0, 1], [0, 5])
    assert paddle.grad([loss], [logits], [dloss])[0].shape == [0, 5]


@pytest.mark.parametrize("dtype", DTYPES)
def test_mean_loss_of_many_rows(dtype):
    logits = npu(np.random.default_rng(0).standard_normal((4096, 33)), dtype, requires_grad=False)
    labels = paddle.zeros([4096], "int64")
    losses = F.cross_entropy(logits, labels, reduction="none")
    truth = values(losses).mean()
    assert abs(float(F.cross_entropy(logits, labels)) - truth) <= 2 * ROUNDING[dtype] * truth


@pytest.mark.parametrize("label", [-1, 5, 2**40])
def test_label_out_of_range(label):
    logits, _ = inputs((2, 5), -1, "float32")
    with pytest.raises(IndexError, match=rf"a label is {label}; accepted: 0 to 4"):
        loss_of(logits, paddle.to_tensor([[0], [label]]), -1)


def test_hard_labels_must_be_integers():
    logits, _ = inputs((2, 5), -1, "float32")
    with pytest.raises(ValueError, match=r"hard labels must be integers.*they are float32"):
        loss_of(logits, npu([[0], [1]], "float32"), -1)


@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
def test_one_hot(id_dtype):
    ids = paddle.to_tensor([[0, 3], [-1, 4], [2, 1000]], dtype=id_dtype)
    out = F.one_hot(ids, 4)
    assert out.dtype == paddle.float32
    expected = np.zeros((3, 2, 4), np.float32)
    for row, column, id_ in ((0, 0, 0), (0, 1, 3), (2, 0, 2)):
        expected[row, column, id_] = 1
    np.testing.assert_array_equal(out.numpy(), expected)


def test_one_hot_of_nothing():
    assert F.one_hot(paddle.zeros([0, 2], "int64"), 3).shape == [0, 2, 3]


@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(dtype, id_dtype, padding_idx):
    random = np.random.default_rng(0)
    weight = npu(random.standard_normal((11, 37)), dtype)
    ids = random.integers(0, 11, (6, 29))
    dout = npu(random.standard_normal((6, 29, 37)), dtype, requires_grad=False)
    out = F.embedding(paddle.to_tensor(ids, dtype=id_dtype), weight, padding_idx=padding_idx)
    kept = (ids != padding_idx)[..., None]
    np.testing.assert_array_equal(values(out), values(weight)[ids] * kept)

    (gradient,) = paddle.grad([out], [weight], [dout])
    truth, magnitude = np.zeros((11, 37)), np.zeros((11, 37))
    np.add.at(truth, ids, values(dout) * kept)
    np.add.at(magnitude, ids, np.abs(values(dout)) * kept)
    # About 16 additions in float32, then one rounding to the dtype.
    bound = ROUNDING[dtype] * np.abs(truth) + 32 * ROUNDING["float32"] * magnitude
    assert (np.abs(values(gradient) - truth) <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_has_the_same_bits_for_any_number_of_threads(dtype):
    random = np.random.default_rng(0)
    weight = npu(random.standard_normal((300, 130)), dtype)
    ids = paddle.to_tensor(random.zipf(1.3, 2000) % 300)
    dout = npu(random.standard_normal((2000, 130)), dtype, requires_grad=False)

    def compute():
        out = F.embedding(ids, weight)
        return [out, *paddle.grad([out], [weight], [dout])]

    assert with_threads(1, compute) == with_threads(2, compute)


def test_embedding_of_nothing():
    weight = npu(np.ones((4, 8)), "bfloat16")
    out = F.embedding(paddle.zeros([0, 3], "int64"), weight)
    assert out.shape == [0, 3, 8]
    (gradient,) = paddle.grad([out], [weight])
    np.testing.assert_array_equal(values(gradient), np.zeros((4, 8)))


@pytest.mark.parametrize("padding_idx", [None, 1])
@pytest.mark.parametrize("id_", [-1, 4, 2**40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_id_out_of_range(dtype, id_, padding_idx):
    weight = npu(np.ones((4, 8)), dtype)
    with pytest.raises(ValueError, match=rf"an id is {id_}; accepted: 0 to 3"):
        F.embedding(paddle.to_tensor([0, id_]), weight, padding_idx=padding_idx)
