"""PaddleFormers' vision-language models with fused operators, against the same models without."""

import ast
import functools
import importlib.util
import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from fused_models import vision
from fused_models.comparison import (
    assert_as_accurate,
    built,
    float64_results,
    loss_and_logits,
    results,
    unfused_results,
)
from fused_models.vision import FAMILIES

import paddle_fused
import virtual_npu
from llm_npu.models.paddleformers.vision_language import FAMILIES as RECORDS
from llm_npu.surgery import apply_fused_kernels
from llm_npu.surgery.batch import Batch as StepBatch
from llm_npu.surgery.explain import explain
from llm_npu.surgery.fusable_layers import MODELS, families_of, fusable_layer

PLACES = [("npu:0", "float32"), ("npu:0", "bfloat16"), ("cpu", "float32")]
everywhere = pytest.mark.parametrize(("device", "dtype"), PLACES)
every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
packed_or_not = pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
SHARED = {"RMSNorm", "MLP"}  # classes of paddleformers.nn


def is_of_vision(line) -> bool:
    return "visual" in line.layers.split(".")


def fused_results(family, model, packed):
    return results(family, model, vision.batch(packed), **vision.inputs(family, packed))


@functools.cache
def truth(family, packed):
    inputs = vision.inputs(family, packed, paddle.CPUPlace())
    return float64_results(family, vision.batch(packed), **inputs)


@functools.cache
def unfused(family, device, dtype, packed):
    paddle.set_device(device)
    return unfused_results(family, vision.batch(packed), dtype, **vision.inputs(family, packed))


@pytest.mark.slow
@every_family
@everywhere
@packed_or_not
def test_outputs_and_gradients(family, device, dtype, packed):
    composed = unfused(family, device, dtype, packed)
    fused = fused_results(family, built(family, "all", dtype), packed)
    assert all(np.abs(values).max() > 0 for name, values in fused.items() if "packing_position" not in name)
    assert_as_accurate(fused, composed, truth(family, packed), dtype)


@pytest.mark.slow
@every_family
def test_auto_cast_with_float32_weights(family):
    """AMP O1: embeddings of tokens are float32, and features of images bfloat16."""
    exact = truth(family, False)
    paddle.set_device("npu:0")
    batch, inputs = vision.batch(False), vision.inputs(family, False)
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        composed = unfused_results(family, batch, **inputs)
        fused = results(family, built(family, "all"), batch, **inputs)
    assert_as_accurate(fused, composed, exact, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "operator"),
    [(family, operator) for family in FAMILIES for operator in family.operators],
    ids=str,
)
def test_each_operator_alone(family, operator):
    fused = fused_results(family, built(family, operator, "bfloat16"), False)
    assert_as_accurate(fused, unfused(family, "npu:0", "bfloat16", False), truth(family, False), "bfloat16")


@pytest.mark.slow
@every_family
@packed_or_not
def test_what_is_announced_before_the_first_step_runs(family, packed):
    """Also, every operator runs on the card in bfloat16."""
    paddle.set_device("npu:0")
    model = family.build("bfloat16")
    report = apply_fused_kernels(model, family.operators, strict=True)
    tokens, inputs = vision.batch(packed), vision.inputs(family, packed)
    mask = None
    if packed:
        mask = paddle_fused.masks.documents([[vision.LENGTH] * len(vision.GRIDS)])
    step = StepBatch(*tokens.ids.shape, "bfloat16", mask, patches=vision.PATCHES)
    lines = explain(model, report, step)
    paddle_fused.reset_dispatch_log()
    results(family, model, tokens, **inputs)
    ran = {(entry.operator, entry.backend, entry.mode) for entry in paddle_fused.dispatch_log()}
    assert {(line.operator, line.backend, line.mode) for line in lines} == ran
    assert {backend for _, backend, _ in ran} == {"ascend"}
    vision_layers = {line.operator for line in lines if is_of_vision(line)}
    assert {"flash_attention", "rotary_mul"} <= vision_layers


@every_family
def test_layers_of_images_of_unknown_size_are_listed(family):
    paddle.set_device("npu:0")
    model = family.build("bfloat16")
    report = apply_fused_kernels(model, family.operators)
    lines = explain(model, report, StepBatch(1, vision.LENGTH, "bfloat16"))
    unknown = {line.operator for line in lines if is_of_vision(line) and line.backend == "?"}
    assert {"attention", "rotary"} <= unknown


@pytest.mark.slow
@every_family
@packed_or_not
def test_no_kernel_of_a_step_leaves_the_card(family, packed):
    """In bfloat16; a kernel that a card's plugin lacks would run on the host."""
    paddle.set_device("npu:0")
    model, inputs = built(family, "all", "bfloat16").train(), vision.inputs(family, packed)
    virtual_npu.reset_kernel_record()
    loss, _ = loss_and_logits(family, model, vision.batch(packed), "all", **inputs)
    loss.backward()
    assert {(row.name, row.dtype) for row in virtual_npu.kernel_record() if row.placement != "npu"} == set()


READS = """
import sys

import virtual_npu

import paddle

model_type, shared, packed = sys.argv[1:]
packed = packed == "True"
sys.path.insert(0, shared)
from fused_models import vision
from fused_models.comparison import built, loss_and_logits

paddle.set_device("npu:0")
(family,) = (family for family in vision.FAMILIES if family.model_type == model_type)
model, inputs = built(family, "all", "bfloat16").train(), vision.inputs(family, packed)
virtual_npu.mark_journal("step")
loss, _ = loss_and_logits(family, model, vision.batch(packed), "all", **inputs)
loss.backward()
virtual_npu.mark_journal("end")
"""


@pytest.mark.slow
@every_family
@packed_or_not
def test_a_step_reads_the_sizes_of_its_images_once(family, packed, run_python, tmp_path):
    """A read waits for the device. Packed documents have another: their rows."""
    program, journal = tmp_path / "program.py", tmp_path / "journal"
    program.write_text(READS)
    shared = Path(vision.__file__).parents[1]
    arguments = ("-m", "virtual_npu", program, family.model_type, shared, packed)
    done = run_python(*arguments, VIRTUAL_NPU_JOURNAL=str(journal))
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    step, end = (index for index, event in enumerate(events) if event["event"] == "mark")
    assert sum(event.get("kind") == "MemcpyDtoH" for event in events[step:end]) == 1 + packed


@pytest.mark.slow
@every_family
def test_recompute_keeps_every_bit(family):
    paddle.set_device("npu:0")
    expected, recomputed = (
        fused_results(family, model, True)
        for model in (
            built(family, "all", "bfloat16").train(),
            built(
                family,
                "all",
                "bfloat16",
                recompute_granularity="full",
                recompute_method="uniform",
                recompute_num_layers=1,
            ).train(),
        )
    )
    if "deepstack_visual_indexes" in family.vision:  # their gradients are added in another order
        composed = unfused(family, "npu:0", "bfloat16", True)
        assert_as_accurate(recomputed, composed, truth(family, True), "bfloat16")
        return
    for name, values in expected.items():
        np.testing.assert_array_equal(recomputed[name], values, err_msg=name)


@pytest.mark.slow
@every_family
def test_the_trainers_size_of_one_process_divides_nothing(family):
    """Its arguments set tensor_model_parallel_size to -1 without tensor parallelism."""
    paddle.set_device("npu:0")
    model = family.build(tensor_model_parallel_size=-1)
    batch, inputs = vision.batch(False), vision.inputs(family, False)
    loss = results(family, model, batch, **inputs)["loss"]
    assert loss == results(family, family.build(), batch, **inputs)["loss"]


def classes_of(model_type):
    """The classes in a package of PaddleFormers' models, from its source, by their names with the patches."""
    spec = importlib.util.find_spec("paddleformers")
    file = Path(spec.origin).parent / "transformers" / model_type / "modeling.py"
    nodes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    return {node.name.removesuffix("Deprecated") for node in nodes}


@pytest.mark.parametrize("record", RECORDS.values(), ids=lambda record: record.title)
def test_the_classes_of_a_family_are_those_of_its_package(record):
    named = {*record.models, *(name for layers in record.layers.values() for name in layers)}
    assert named - SHARED <= classes_of(record.model_type)
    assert set(record.models) <= set(MODELS)


def test_a_class_belongs_to_the_family_of_its_package():
    """PaddleOCR-VL's decoder is named after ERNIE-4.5, whose rotary embedding is another."""
    layers = {}
    for model_type in ("ernie4_5", "paddleocr_vl", "unknown_vl"):
        module = f"paddleformers.transformers.{model_type}.modeling"
        kind = type("Ernie4_5Attention", (), {"__module__": module})
        layers[model_type] = fusable_layer(kind(), "rotary")
    assert layers["ernie4_5"].variant == "interleaved table of tokens"
    assert layers["paddleocr_vl"].variant == "multimodal"
    assert layers["unknown_vl"] is None
    shared = type("RMSNorm", (), {"__module__": "paddleformers.nn.norm"})
    assert {family.model_type for family in families_of(shared)} >= {"ernie4_5", "paddleocr_vl"}
