"""A call compiles its mask once, and makes the arguments of the card's operator and its mask tensor once.

Checks, dispatch, explain_dispatch and run share them, and the backward pass makes none.
"""

from collections import Counter

import numpy as np
import paddle
import paddle.distributed as dist
import pytest

from paddle_fused import flash_attention, masks, use_backend
from paddle_fused.dispatch import explain_dispatch
from paddle_fused.ops.attention import ascend, call

pytestmark = pytest.mark.usefixtures("on_npu")

HIDDEN = np.random.default_rng(0).random((2, 1, 20, 20)) < 0.3
HIDDEN[..., 0] = False
# The mask, and the numbers of mask tensors that the host's operator and the card's need.
MASKS = {
    "none": (lambda: None, 0, 0),
    "causal": (masks.causal, 0, 0),
    "window": (lambda: masks.band(3, 0), 0, 1),
    "documents": (lambda: masks.documents([8, 12]), 0, 0),
    "tensor": (lambda: masks.dense(HIDDEN), 1, 1),
    "tensor and band": (lambda: masks.dense(HIDDEN) & masks.causal(), 1, 1),
    "row indices": (lambda: masks.row_indices(np.full((1, 1, 20, 1), 20, np.int32)), 0, 0),
}


@pytest.fixture
def counts(monkeypatch):
    """The calls of each function so far."""
    calls = Counter()

    def count(module, name):
        function = getattr(module, name)

        def counted(*arguments, **options):
            calls[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    count(masks, "compile_mask")
    count(ascend, "_one_call")
    count(ascend, "hidden_tensor")
    count(call, "hidden_tensor")
    return calls


def qkv():
    tensors = [paddle.randn([2, 20, 2, 16]).astype("bfloat16") for _ in range(3)]
    for x in tensors:
        x.stop_gradient = False
    return tensors


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("backend", ["native", "ascend"])
def test_a_call_computes_its_request_once(backend, name, counts):
    make, *tensors = MASKS[name]
    mask, inputs = make(), qkv()
    expected = {"compile_mask": 1, "hidden_tensor": tensors[backend == "ascend"]}
    expected["_one_call"] = int(backend == "ascend")
    with use_backend(backend, strict=True):
        out = flash_attention(*inputs, mask)
        assert counts == Counter(expected)
        paddle.grad(out, inputs, paddle.ones_like(out))
        assert counts == Counter(expected)


def test_explain_dispatch_computes_it_once(counts):
    inputs = qkv()
    explain_dispatch(lambda: flash_attention(*inputs, masks.band(3, 0)))
    assert counts == {"compile_mask": 1, "_one_call": 1}


def test_a_process_with_all_shards_computes_it_once(counts):
    mesh = dist.ProcessMesh([0], dim_names=["x"])
    inputs = [dist.shard_tensor(x.detach(), mesh, [dist.Shard(0)]) for x in qkv()]
    with use_backend("native", strict=True):
        flash_attention(*inputs, masks.dense(HIDDEN) & masks.causal())
    assert counts == {"compile_mask": 1, "hidden_tensor": 1}
