"""flash_attention on the plugin's operator, as on a card: VIRTUAL_NPU_STRICT=1, in each of its three public
forms.

Strict means that host kernels stay away from npu tensors and that kernels which a card does not have are
refused, so that the composed operators, which are the noise floor, prove to be legal on a card as well.
"""

import json

import pytest

PROGRAM = """
import json
import sys
import numpy as np
import paddle
from paddle_fused import BackendError, masks, reset_dispatch_log, dispatch_log
from paddle_fused.ops.attention.cases import batch_case, packed_case
from paddle_fused.parity import Case

own = np.random.default_rng(1).random((2, 4, 20, 30)) < 0.4
own[..., 0] = False
D = (64, 64)
CASES = {
    "no mask": batch_case(None, dims=D),
    "no mask, BNSD, MQA": batch_case(None, "BNSD", heads=(4, 1), lengths=(9, 33), dims=D),
    "causal": batch_case(masks.causal(), dims=D),
    "causal, BSH": batch_case(masks.causal(), "BSH", dims=D),
    "causal, SBH": batch_case(masks.causal(), "SBH", dims=D),
    "causal, more keys": batch_case(masks.causal(), lengths=(20, 33), dims=D),
    "causal, more queries": batch_case(masks.causal(), lengths=(33, 20), dims=D),
    "causal window": batch_case(masks.causal() & masks.band(5, None), dims=D),
    "prefix": batch_case(masks.prefix([3, 20]), dims=D),
    "own mask": batch_case(masks.dense(own), lengths=(20, 30), dims=D),
    "documents": batch_case(masks.documents([[10, 0, 1, 22], [33]]), dims=D),
    "documents, not causal": batch_case(masks.documents([10, 23], causal=False), dims=D),
    "twice the scale": batch_case(masks.causal(), dims=D, scale=0.25),
    "other scale": batch_case(masks.causal(), dims=D, scale=0.2),
    "bias": batch_case(masks.causal(), dims=D, bias=(2, 4, 33, 33)),
    "Dv below D": batch_case(masks.causal(), dims=(64, 32)),
    "Dv below D, BSH, own mask": batch_case(masks.dense(own), "BSH", lengths=(20, 30), dims=(64, 24)),
    "latent attention, documents": batch_case(masks.documents([10, 23]), "BNSD", dims=(192, 128)),
    "TND, no mask": packed_case(None, [7, 0, 1, 20], [9, 3, 1, 20]),
    "TND, causal": packed_case(masks.causal(), [7, 0, 1, 20], [7, 0, 1, 20]),
    "TND, causal top left": packed_case(masks.causal("top_left"), [7, 0, 1, 20], [9, 3, 1, 22]),
    "TND, causal, more keys": packed_case(masks.causal(), [7, 1, 20], [9, 1, 22]),
    "TND, window": packed_case(masks.band(4, 0), [7, 1, 20], [7, 1, 20]),
}
found = {}
for name, case in CASES.items():
    for dtype in ("bfloat16", "float16"):
        prepared = Case(case, dtype)
        reset_dispatch_log()
        try:
            tensors = prepared.measure("ascend", "npu")
        except BackendError as error:
            found[f"{name} {dtype}"] = "refused: " + error.reasons["ascend"]
            continue
        wrong = {key: str(accuracy) for key, accuracy in tensors.items() if not accuracy.passed}
        modes = [ran.mode for ran in dispatch_log() if ran.backend == "ascend"]
        found[f"{name} {dtype}"] = f"wrong: {wrong}" if wrong else modes[0]
json.dump(found, open(sys.argv[1], "w"))
"""
FULL, CAUSAL, NONE = (f"flash_attention_npu, {kind}" for kind in ("full mask", "causal", "no mask"))
PADDED = ", value padded"
DIFFER = "refused: flash_attention_npu shares one mask"
EXPECTED = {
    "no mask": NONE,
    "no mask, BNSD, MQA": NONE,
    "causal": CAUSAL,
    "causal, BSH": CAUSAL,
    "causal, SBH": CAUSAL,
    "causal, more keys": FULL,
    "causal, more queries": "refused: flash_attention_npu does not support fully masked rows",
    "causal window": FULL,
    "prefix": FULL,
    "own mask": FULL,
    "documents": CAUSAL + ", varlen",
    "documents, not causal": NONE + ", varlen",
    "twice the scale": CAUSAL,
    "other scale": "refused: flash_attention_npu supports only the scale 1 / sqrt(D); 0.2",
    "bias": "refused: flash_attention_npu does not support a position bias",
    "Dv below D": CAUSAL + PADDED,
    "Dv below D, BSH, own mask": FULL + PADDED,
    "latent attention, documents": CAUSAL + ", varlen" + PADDED,
    "TND, no mask": NONE + ", varlen",
    "TND, causal": CAUSAL + ", varlen",
    "TND, causal top left": CAUSAL + ", varlen",
    "TND, causal, more keys": DIFFER,
    "TND, window": FULL + ", varlen",
}
NO_VARLEN = "refused: flash_attention_npu of the installed plugin has no varlen form"
EXPECTED_V10 = {
    **{name: NO_VARLEN if name.startswith("TND") else answer for name, answer in EXPECTED.items()},
    "documents": FULL,
    "documents, not causal": FULL,
    "latent attention, documents": FULL + PADDED,
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tensor13", "v10"])
def test_form(form, run_python, tmp_path):
    program, result = tmp_path / "program.py", tmp_path / "found.json"
    program.write_text(PROGRAM)
    done = run_python(
        "-m",
        "virtual_npu",
        program,
        result,
        VIRTUAL_NPU_FLASH_ATTENTION_ABI=form,
        VIRTUAL_NPU_STRICT="1",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(result.read_text())
    expected = EXPECTED_V10 if form == "v10" else EXPECTED
    assert {name.rpartition(" ")[0] for name in report} == set(expected)
    for name, answer in report.items():
        wanted = expected[name.rpartition(" ")[0]]
        assert answer.startswith(wanted) if wanted.startswith("refused") else answer == wanted, name


REFUSALS = """
import paddle
from paddle_fused import flash_attention, masks, use_backend, BackendError
from paddle_fused.dispatch import explain_dispatch

x = paddle.zeros([1, 6, 2, 8], "float16")
t = paddle.zeros([6, 2, 8], "float16")
long = paddle.zeros([0, 65538, 1, 8], "float16")
blind = paddle.zeros([6, 6], "bool")
blind[2] = True
varlen = {"layout": "TND", "cu_seqlens_q": [0, 6], "cu_seqlens_k": [0, 6]}
CALLS = {
    "query is float32": lambda: flash_attention(*[x.astype("float32")] * 3),
    "dropout only in its backward pass": lambda: flash_attention(x, x, x, dropout=0.1),
    "fully masked rows": lambda: flash_attention(x, x, x, masks.dense(blind,
    invalid_rows=True)), "65536 tokens before and after": lambda: flash_attention(long, long, long,
    masks.causal()), "statistics of shape [T, N, 8]": lambda: flash_attention(t, t, t,
    return_softmax_stats=True, **varlen), "the tensors are on cpu": lambda: flash_attention(*[x.cpu()] * 3),
}
for words, call in CALLS.items():
    reason = explain_dispatch(call).support["ascend"][0]
    assert reason is not None and words in reason, (words, reason)
inactive = explain_dispatch(lambda: flash_attention(x, x, x, dropout=0.1, training=False))
assert inactive.support["ascend"][0] is None
out, row_max, row_sum = flash_attention(x, x, x, masks.causal(), return_softmax_stats=True)
assert (out.shape, row_max.shape, row_sum.shape) == ([1, 6, 2, 8], [1, 2, 6, 8], [1, 2, 6, 8])
assert (row_sum[0, 0, :, 0].numpy() == [1, 2, 3, 4, 5, 6]).all()
"""


def test_reasons(run_program):
    done = run_program(REFUSALS, VIRTUAL_NPU_STRICT="1")
    assert done.returncode == 0, done.stderr[-3000:]


CAPTURED = """
import numpy as np
import paddle
from paddle_fused import flash_attention, masks, dispatch_log

random = np.random.default_rng(0)
q, k, v = (paddle.to_tensor(random.standard_normal((2, 12, n, 16)), dtype="float16") for n in (4, 2, 2))
own = paddle.to_tensor(random.random((12, 12)) < 0.3)
own[:, 0] = False

def attention(q, k, v, own):
    window = flash_attention(q, k, v, masks.band(3, 1))
    packed = flash_attention(q, k, v, masks.documents([5, 7]))
    return window + packed + flash_attention(q, k, v, masks.dense(own))

plain = attention(q, k, v, own)
captured = paddle.jit.to_static(attention, full_graph=True)(q, k, v, own)
assert (plain == captured).all()
assert {ran.backend for ran in dispatch_log()} == {"ascend"}, dispatch_log()
"""


@pytest.mark.slow
def test_a_captured_program_runs_the_plugins_operator(run_program):
    done = run_program(CAPTURED, VIRTUAL_NPU_STRICT="1")
    assert done.returncode == 0, done.stderr[-3000:]


COMPOSED = """
import numpy as np
import paddle
from paddle_fused import flash_attention, masks, dispatch_log

blind = paddle.to_tensor(np.triu(np.ones((9, 9), bool)))  # the first query sees nothing
for dtype in ("bfloat16", "float16", "float32"):
    query, key = (paddle.randn([2, 9, heads, 8]).astype(dtype) for heads in (4, 2))
    query.stop_gradient = key.stop_gradient = False
    dropped, _, _ = flash_attention(query, key, key, masks.prefix(3), dropout=0.2, return_softmax_stats=True)
    zeroed = flash_attention(query, key, key, masks.dense(blind, invalid_rows=True))
    (dropped + zeroed).astype("float32").sum().backward()
    gradient, zeros = (x.astype("float32").numpy() for x in (query.grad, zeroed[:, 0]))
    assert np.isfinite(gradient).all() and gradient.any() and not zeros.any()
assert {(ran.backend, ran.dtype, ran.count) for ran in dispatch_log()} >= {("composed", "float32", 2)}
assert {ran.backend for ran in dispatch_log()} == {"composed"}, dispatch_log()
"""


@pytest.mark.slow
def test_what_the_operator_refuses_is_composed_of_a_cards_kernels(run_program):
    done = run_program(COMPOSED, VIRTUAL_NPU_STRICT="1")
    assert done.returncode == 0, done.stderr[-3000:]
