"""flashmask_attention on the plugin's operator, as on a card: its modes, in both forms, and its memory.

VIRTUAL_NPU_STRICT=1 keeps host kernels away and refuses kernels that a card does not have.
"""

import json

import pytest

pytestmark = pytest.mark.sampled

PROGRAM = """
import json
import sys
import numpy as np
import paddle
from paddle_fused import registry, reset_dispatch_log, dispatch_log
from paddle_fused.dispatch import BackendError
from paddle_fused.ops.attention import tiles
from paddle_fused.parity import Case

tiles.ROWS = tiles.FEWEST_ROWS = 16
found = {}
for number, case in enumerate(registry.find("flashmask_attention").cases()):
    prepared = Case(case, ("bfloat16", "float16")[number % 2])
    reset_dispatch_log()
    tensors = prepared.measure("ascend", "npu")
    wrong = {key: str(accuracy) for key, accuracy in tensors.items() if not accuracy.passed}
    modes = [ran.mode for ran in dispatch_log() if ran.backend == "ascend"]
    found[case.name.partition(",")[0]] = f"wrong: {wrong}" if wrong else modes[0]
json.dump(found, open(sys.argv[1], "w"))
"""
CAUSAL, NONE = (f"flash_attention_npu, {kind}" for kind in ("causal", "no mask"))
TILES = "flash_attention_npu, row indices in 3 tiles of queries"
EXPECTED = {
    "documents": CAUSAL + ", varlen",
    "causal": CAUSAL,
    "padding at the tail": CAUSAL + ", varlen",
    "shared question": CAUSAL + ", varlen",
    "shared question and padding": CAUSAL + ", varlen",
    "sliding window": TILES,
    "bidirectional documents": NONE + ", varlen",
    "prefix": TILES,
    "rows of each key head": TILES,
    "rows of each head": TILES,
    "a range below the diagonal": TILES,
    "two ranges": TILES,
    "more keys": TILES.replace("3", "2"),
    "more queries": TILES,
}
WITHOUT_VARLEN = {name: TILES if "varlen" in mode else mode for name, mode in EXPECTED.items()}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tensor13", "v10"])
def test_modes(form, run_python, tmp_path):
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
    assert json.loads(result.read_text()) == (WITHOUT_VARLEN if form == "v10" else EXPECTED)


REASONS = """
import paddle
from paddle_fused import flashmask_attention
from paddle_fused.dispatch import explain_dispatch

x = paddle.zeros([1, 8, 2, 16], "float16")
rows = paddle.full([1, 1, 8, 1], 4, "int32")
documents = paddle.to_tensor([4] * 4 + [8] * 4, dtype="int32").reshape([1, 1, 8, 1])
CAUSAL = {"causal": True}
CALLS = {
    "query is float32": lambda: flashmask_attention(*[x.astype("float32")] * 3, rows, causal=True),
    "dropout only in its backward pass": lambda: flashmask_attention(x, x, x, rows, dropout=0.1, **CAUSAL),
    "statistics of shape [T, N, 8]": lambda: flashmask_attention(
        x, x, x, documents, causal=True, return_softmax_lse=True
    ),
}
for words, call in CALLS.items():
    reason = explain_dispatch(call).support["ascend"].reason
    assert reason is not None and words in reason, (words, reason)
_, lse = flashmask_attention(x, x, x, rows, causal=True, return_softmax_lse=True)
assert [round(value, 3) for value in lse[0, 0, :5].exp().tolist()] == [1, 2, 3, 4, 0]


def program(query, indices):
    return flashmask_attention(query, query, query, indices, causal=True)


captured = paddle.jit.to_static(program, full_graph=True)
print("captured:", list(captured(x, documents).shape))
"""


@pytest.mark.slow
def test_reasons(run_program):
    done = run_program(REASONS, VIRTUAL_NPU_STRICT="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "captured: [1, 8, 2, 16]"


MEMORY = """
import numpy as np
import paddle
from paddle_fused import flash_attention, flashmask_attention, masks, use_backend
from paddle_fused.ops.flashmask_attention.cases import documents, prefix, shared_question, sliding_window

def hole(s):
    return np.stack([np.minimum(s, np.arange(s) + 300), np.minimum(s, np.arange(s) + 700)], -1)


KINDS = {{
    "window": (lambda s: sliding_window(s, 511), True),
    "documents": (lambda s: documents(s // 2, s // 4, s // 8, padding=s // 8), True),
    "shared question": (lambda s: shared_question(s // 4, s // 4, s // 4, s // 4), True),
    "prefix": (lambda s: prefix(s, s // 8), False),
    "hole": (hole, True),
}}
rows, causal = KINDS.get("{kind}", (None, True))

def attention(s):
    q, k, v = (paddle.randn([1, s, n, 16]).astype("bfloat16") for n in (2, 1, 1))
    for x in (q, k, v):
        x.stop_gradient = False
    if rows is None:
        out = flash_attention(q, k, v, masks.causal() & masks.band(511, None))
    else:
        indices = paddle.to_tensor(np.asarray(rows(s), np.int32)[None, None])
        out = flashmask_attention(q, k, v, indices, causal=causal)
    out.sum().backward()

with use_backend("ascend", strict=True):
    attention(64)
    held = paddle.device.max_memory_allocated("npu:0")
    for s in ({s} // 2, {s}):
        attention(s)
        print((paddle.device.max_memory_allocated("npu:0") - held) / {s}**2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["window", "documents", "shared question", "prefix", "hole", "intent"])
def test_no_mask_of_all_queries_and_keys_is_made(kind, run_program):
    """All that attention takes is less than a third of a bool mask [S, S], and grows as S."""
    s = 16384
    done = run_program(MEMORY.format(s=s, kind=kind), VIRTUAL_NPU_STRICT="1", timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    half, whole = map(float, done.stdout.splitlines()[-2:])
    assert whole < 1 / 3 and whole < 2.5 * half, done.stdout
