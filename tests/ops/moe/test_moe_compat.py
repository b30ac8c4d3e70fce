"""torch_npu's mixture-of-experts operators: every way to group lists of tensors."""

import inspect

import numpy as np
import paddle
import pytest

from paddle_fused import grouped_matmul
from paddle_fused.compat import npu_grouped_matmul, npu_moe_token_permute, npu_moe_token_unpermute

pytestmark = pytest.mark.sampled

SIZES = [2, 0, 3]
ENDS = [2, 2, 5]


@pytest.fixture(autouse=True, params=["cpu", "npu:0"])
def _device(request):
    paddle.set_device(request.param)


def _random(*shape):
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return paddle.to_tensor(values.astype(np.float32), stop_gradient=False)


def _assert_close(results, expected):
    assert len(results) == len(expected)
    for result, right in zip(results, expected, strict=True):
        assert result.shape == right.shape
        np.testing.assert_allclose(result.numpy(), right.numpy(), rtol=1e-5, atol=1e-5)


def _products(x, weights, sizes=SIZES):
    return [rows @ weight for rows, weight in zip(paddle.split(x, sizes), weights, strict=True)]


@pytest.mark.parametrize("split_item", [2, 3])
@pytest.mark.parametrize(("group_list", "group_list_type"), [(ENDS, 0), (SIZES, 1)])
def test_rows_of_one_x_by_one_weight(split_item, group_list, group_list_type):
    x, weight = _random(5, 4), _random(3, 4, 6)
    groups = {"group_list": paddle.to_tensor(group_list), "group_list_type": group_list_type}
    results = npu_grouped_matmul([x], [weight], split_item=split_item, group_type=0, **groups)
    _assert_close(results, [paddle.concat(_products(x, list(weight)))])


@pytest.mark.parametrize("split_item", [0, 1, 2, 3])
def test_a_list_of_ends_groups_rows_by_as_many_weights(split_item):
    x, weights = _random(5, 4), [_random(4, 6) for _ in SIZES]
    results = npu_grouped_matmul([x], weights, group_list=ENDS, split_item=split_item)
    products = _products(x, weights)
    _assert_close(results, products if split_item < 2 else [paddle.concat(products)])


def test_weights_of_different_width_give_a_result_each():
    x, weights = _random(5, 4), [_random(4, columns) for columns in (6, 2, 9)]
    _assert_close(npu_grouped_matmul([x], weights, group_list=ENDS), _products(x, weights))


def test_without_groups_x_may_have_up_to_six_dimensions():
    x, weights = [_random(2, 3, 4), _random(1, 5, 8)], [_random(4, 6), _random(8, 3)]
    results = npu_grouped_matmul(x, weights, group_type=-1)
    _assert_close(results, [a @ w for a, w in zip(x, weights, strict=True)])


@pytest.mark.parametrize("split_item", [0, 2])
@pytest.mark.parametrize("group_list", [None, ENDS])
def test_as_many_x_as_weights(split_item, group_list):
    x, weights = [_random(size, 4) for size in SIZES], [_random(4, 6) for _ in SIZES]
    results = npu_grouped_matmul(x, weights, split_item=split_item, group_list=group_list)
    products = [a @ w for a, w in zip(x, weights, strict=True)]
    _assert_close(results, products if split_item == 0 else [paddle.concat(products)])


@pytest.mark.parametrize(("group_list", "group_list_type"), [(ENDS, 0), (SIZES, 1)])
def test_groups_of_depth_make_the_gradient_of_a_weight(group_list, group_list_type):
    """As the autograd functions of LLaMA-Factory and MindSpeed call it in their backward pass."""
    x, weight, dout = _random(5, 4), _random(3, 4, 6), _random(5, 6)
    groups = {"group_list": paddle.to_tensor(group_list), "group_list_type": group_list_type}
    (grouped_matmul(x, weight, *groups.values()) * dout).sum().backward()
    results = npu_grouped_matmul([x.detach().t()], [dout.detach()], split_item=3, group_type=2, **groups)
    _assert_close(results, [weight.grad])


def test_groups_of_depth_by_weights_of_their_own_rows():
    x, weights = _random(4, 7), [_random(2, 6), _random(4, 3)]
    results = npu_grouped_matmul([x], weights, group_type=2)
    _assert_close(results, [x[:, :2] @ weights[0], x[:, 2:6] @ weights[1]])


def test_gradients_flow_through_lists():
    x, weights = _random(5, 4), [_random(4, 6) for _ in SIZES]
    sum(result.sum() for result in npu_grouped_matmul([x], weights, group_list=ENDS)).backward()
    ones = paddle.ones([5, 6])
    expected = [rows.t() @ ones[: rows.shape[0]] for rows in paddle.split(x.detach(), SIZES)]
    _assert_close([weight.grad for weight in weights], expected)


@pytest.mark.parametrize("number", [0, 1])
def test_what_a_list_may_not_hold_is_named(number):
    lists = [[_random(3, 4)], [_random(4, 6)]]
    lists[number] = [None]
    name = ("x", "weight")[number]
    with pytest.raises(ValueError, match=rf"npu_grouped_matmul.*{name}\[0\].*NoneType"):
        npu_grouped_matmul(*lists)


def test_a_group_list_is_a_list_or_a_tensor():
    with pytest.raises(ValueError, match=r"npu_grouped_matmul.*group_list.*ndarray"):
        npu_grouped_matmul([_random(3, 4)], [_random(4, 6)], group_list=np.array([3]))


def test_permute_and_unpermute_take_torch_npu_s_arguments():
    tokens, indices = _random(3, 4), paddle.to_tensor([[0, 1], [1, 0], [2, 0]])
    permuted, places = npu_moe_token_permute(tokens, indices, None, False)
    halves = paddle.full([3, 2], 0.5)
    _assert_close([npu_moe_token_unpermute(permuted, places, halves, False, None)], [tokens])


def test_signature_is_that_of_torch_npu():
    names = (
        "x weight bias scale offset antiquant_scale antiquant_offset per_token_scale group_list "
        "activation_input "
        "activation_quant_scale activation_quant_offset split_item group_type group_list_type act_type "
        "output_dtype tuning_config"
    )
    parameters = inspect.signature(npu_grouped_matmul).parameters
    assert list(parameters) == names.split()
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[2:])
