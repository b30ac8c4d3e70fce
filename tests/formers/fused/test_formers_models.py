"""Every model family of PaddleFormers with all fused operators, against the same model without."""

import functools

import numpy as np
import paddle
import pytest
from fused_models import table
from fused_models.comparison import (
    BATCH,
    IGNORED,
    LENGTH,
    SHORTER,
    Batch,
    assert_as_accurate,
    built,
    float64_results,
    random_batch,
    results,
    truth,
    unfused,
    unfused_results,
)
from fused_models.formers import FAMILIES, without_router_losses
from fused_models.generation import greedy
from fused_models.rounding import round_otherwise
from fused_models.training import assert_tracks, memorised, train

import paddle_fused
from llm_npu.surgery import apply_fused_kernels
from llm_npu.surgery.batch import Batch as StepBatch
from llm_npu.surgery.explain import explain

PLACES = [("npu:0", "float32"), ("npu:0", "bfloat16"), ("cpu", "float32")]
STEPS = 40
DISTURBED = range(8)
FIRST_OF_FAMILY = list({family.model_type: family for family in reversed(FAMILIES)}.values())
# By default the first model of every family runs in bfloat16, where all operators are the card's.
CELLS = [
    pytest.param(
        family, place, marks=[] if family in FIRST_OF_FAMILY and place == PLACES[1] else pytest.mark.slow
    )
    for family in FAMILIES
    for place in PLACES
]
everywhere = pytest.mark.parametrize(
    ("family", "place"),
    CELLS,
    ids=lambda flag_or_flags: (
        "-".join(flag_or_flags) if isinstance(flag_or_flags, tuple) else str(flag_or_flags)
    ),
)
# Rows of documents, the last of which are padding that PaddleFormers hides from itself.
VARLEN = "flash_attention_npu, causal, varlen"
PACKED, TAIL = [[5, 7, 4], [9, 7]], [4, 0]


@everywhere
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_outputs_and_gradients(family, place, padded):
    device, dtype = place
    family = without_router_losses(family) if padded else family
    composed = unfused(family, device, dtype, padded)
    fused = results(family, built(family, "all", dtype), random_batch(padded))
    assert_as_accurate(fused, composed, truth(family, padded), dtype)


@pytest.mark.parametrize("family", FIRST_OF_FAMILY, ids=str)
def test_auto_cast_with_float32_weights(family):
    """AMP O1, PaddleFormers' default: Qwen3's norms of heads return float32 beside a bfloat16 value."""
    paddle.set_device("npu:0")
    exact = truth(family)
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        composed = unfused_results(family, random_batch())
        fused = results(family, built(family, "all"), random_batch())
    assert_as_accurate(fused, composed, exact, "bfloat16")


def left_padded_batch():
    """Queries of padding see no key; NaN there would reach every token through the next layer's values."""
    whole = random_batch()
    mask = np.ones_like(whole.ids)
    mask[-1, : LENGTH - SHORTER] = 0
    return Batch(np.where(mask, whole.ids, 0), np.where(mask, whole.labels, IGNORED), mask)


@everywhere
def test_padding_on_the_left(family, place):
    device, dtype = place
    paddle.set_device(device)
    family, batch = without_router_losses(family), left_padded_batch()
    composed = unfused_results(family, batch, dtype)
    fused = results(family, built(family, "all", dtype), batch)
    assert_as_accurate(fused, composed, float64_results(family, batch), dtype)


def packed_inputs(place=None):
    """Start rows of the documents, and positions that begin again in each."""
    rows = np.zeros((BATCH, 1, LENGTH, 1), np.int32)
    positions = np.zeros((BATCH, LENGTH), np.int64)
    for row, lengths in enumerate(PACKED):
        ends = np.cumsum(lengths)
        rows[row, 0, :, 0] = np.repeat(ends, lengths)
        positions[row] = np.concatenate([np.arange(length) for length in lengths])
        tail = np.arange(LENGTH - TAIL[row], LENGTH)
        rows[row, 0, tail, 0] = tail
    return {
        "attn_mask_startend_row_indices": paddle.to_tensor(rows, place=place),
        "position_ids": paddle.to_tensor(positions, place=place),
    }


def packed_batch():
    """The tail is no label: what its queries give is read by nobody."""
    whole = random_batch()
    labels = whole.labels.copy()
    for row, tail in enumerate(TAIL):
        labels[row, LENGTH - tail :] = IGNORED
    return Batch(whole.ids, labels)


@everywhere
def test_packed_documents(family, place):
    device, dtype = place
    paddle.set_device(device)
    family, batch = without_router_losses(family), packed_batch()
    composed = unfused_results(family, batch, dtype, **packed_inputs())
    exact = float64_results(family, batch, **packed_inputs(paddle.CPUPlace()))
    paddle_fused.reset_dispatch_log()
    fused = results(family, built(family, "all", dtype), batch, **packed_inputs())
    if dtype == "bfloat16" and "sliding_window" not in family.settings:
        modes = {ran.mode for ran in paddle_fused.dispatch_log() if ran.operator == "flash_attention"}
        assert {mode.removesuffix(", value padded") for mode in modes} == {VARLEN}
    assert_as_accurate(fused, composed, exact, dtype)


@pytest.mark.parametrize("family", FIRST_OF_FAMILY, ids=str)
def test_every_operator_runs_on_the_card(family):
    """In bfloat16: the plugin's attention takes no float32."""
    model = built(family, "all", "bfloat16")
    paddle_fused.reset_dispatch_log()
    results(family, model, random_batch())
    ran = paddle_fused.dispatch_log()
    assert {entry.operator for entry in ran} == OPERATORS[len(family.operators)]
    assert {(entry.operator, entry.backend) for entry in ran if entry.backend != "ascend"} == set()


# By number of the family's operators: those of a dense decoder, and with experts.
DENSE = {"flash_attention", "rms_norm", "add_rms_norm", "rotary_mul", "swiglu"}
OPERATORS = {5: DENSE, 6: DENSE | {"moe_token_permute", "grouped_matmul", "moe_token_unpermute"}}


def test_the_page_has_the_table():
    assert table.written() == table.markdown(), "run: python tests/shared/fused_models/table.py"


@functools.cache
def unfused_text(family, device):
    return greedy(family, built(family))


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[] if f in FIRST_OF_FAMILY else pytest.mark.slow, id=f.name) for f in FAMILIES],
)
def test_greedy_generation(family, device):
    expected = unfused_text(family, device)
    assert greedy(family, built(family, "all"), "all") == expected
    assert len({token for row in expected for token in row}) > 2  # it is not one token over and over


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_training_tracks_the_unfused_model(family, dtype):
    disturbed = [built(family, dtype=dtype) for _ in DISTURBED]
    for seed, model in zip(DISTURBED, disturbed, strict=True):
        round_otherwise(model, seed)
    models = [built(family, dtype=dtype), *disturbed, built(family, "all", dtype)]
    run, *runs, fused = (train(family, model, memorised(STEPS)) for model in models)
    if dtype == "float32":
        assert run.losses[-1] < 0.8 * run.losses[0]
    assert_tracks(fused, run, runs, dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("family", FIRST_OF_FAMILY, ids=str)
def test_recompute_keeps_every_bit(family):
    plain = built(family, "all", "bfloat16")
    plain.train()
    expected = results(family, plain, random_batch(padded=True))
    model = built(
        family,
        "all",
        "bfloat16",
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        recompute_use_reentrant=False,
    )
    model.train()
    recomputed = results(family, model, random_batch(padded=True))
    for parameter, values in expected.items():
        np.testing.assert_array_equal(recomputed[parameter], values, err_msg=parameter)


@pytest.mark.parametrize("family", FIRST_OF_FAMILY, ids=str)
def test_what_is_announced_before_the_first_step_runs(family):
    model = family.build("bfloat16")
    report = apply_fused_kernels(model, family.operators)
    lines = explain(model, report, StepBatch(BATCH, LENGTH, "bfloat16"))
    paddle_fused.reset_dispatch_log()
    results(family, model, random_batch())
    ran = {(entry.operator, entry.backend, entry.mode) for entry in paddle_fused.dispatch_log()}
    assert {(line.operator, line.backend, line.mode) for line in lines} == ran
