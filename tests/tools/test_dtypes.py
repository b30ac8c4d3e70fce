"""llm_npu.dtypes: ten planted faults are named with their lines, and a clean model has none."""

import gc
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn
from planted_dtypes import planted
from planted_dtypes.planted import FAULTS, IN_THE_MODEL, Training, lines
from tiny_models import build, prompts

from llm_npu.dtypes import AICPUWarning, audit, audit_program, auditing, watch
from llm_npu.surgery import apply_fused_kernels

pytestmark = pytest.mark.sampled

FILE = planted.__file__


# The kind of finding for faults in tensors that exist before a step; the others are operators.
KINDS = {"parameter": "parameter", "buffer": "buffer", "learning rate": "learning rate"}


def found_by(*reports) -> dict[str, str]:
    """The planted faults that are named by their lines: the kind of finding."""
    faults = {line: name for name, line in lines().items()}
    named = {}
    for finding in (finding for report in reports for finding in report.findings):
        if finding.source is not None:
            assert finding.source.file == FILE, finding  # the user's, not a library's
            fault = faults.get(finding.source.line)
            if fault:
                named[fault] = finding.kind
    return named


def sources(report) -> set[str]:
    """The faults whose line is reported as a source of float64."""
    findings = [finding for finding in report.findings if finding.is_source]
    return set(found_by(replace(report, findings=findings)))


@pytest.mark.parametrize("to_static", [False, True])
def test_ten_planted_faults_are_named(device, to_static):
    training = Training(to_static=to_static)
    before = audit(training.model, training.optimizer, training.batch)
    with watch(training.model, action="collect") as watched:
        training.step()
    expected = {fault: KINDS.get(fault, "operator") for fault in FAULTS}
    assert found_by(before, watched.report()) == expected
    # Outside of captured programs paddle.to_tensor copies without a kernel: what uses it is named.
    copied = set() if to_static else {"numpy scalar", "mask"}
    assert sources(before + watched.report()) >= set(FAULTS) - copied
    static = found_by(before)  # what only a step makes is outside of the model
    assert static == {fault: expected[fault] for fault in (*IN_THE_MODEL, "learning rate")}
    if device != "cpu":  # every kernel is seen while it runs
        running = found_by(watched.report())
        assert running == {fault: kind for fault, kind in expected.items() if kind == "operator"}


@pytest.mark.parametrize("to_static", [False, True])
def test_a_fault_that_is_recomputed_has_its_layer(on_npu, to_static):
    training = Training(to_static=to_static)
    with watch(training.model, action="collect") as watched:
        training.step()
    for report in (audit(training.model, sample=training.batch), watched.report()):
        at = [
            finding
            for finding in report.findings
            if finding.source and finding.source.line == lines()["recompute"]
        ]
        assert {(finding.name, finding.layer, finding.place) for finding in at} == {
            ("cast", "block", "aicpu")
        }, at


@pytest.mark.parametrize("to_static", [False, True])
def test_the_same_model_without_them_is_clean(device, to_static):
    training = Training("float32", to_static=to_static)
    report = audit(training.model, training.optimizer, training.batch)
    with watch(training.model, action="error") as watched:
        training.step()
    assert report.clean and watched.report().clean, f"{report}\n{watched.report()}"
    assert report.summary().startswith("clean: 6 parameters, 1 buffers, the optimizer, a batch")


def test_an_optimizers_state_is_named_by_the_line_that_keeps_it():
    training = Training()
    states = audit(training.model, training.optimizer).of_kind("optimizer state")
    (source,) = {finding.source for finding in states}
    text = Path(FILE).read_text().splitlines()[source.line - 1]
    assert source.file == FILE and 'self._accumulators["average"] =' in text


@pytest.mark.parametrize("family", ["llama", "llama3", "qwen2", "mistral"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.paddlenlp
def test_fused_models_are_clean(family, dtype, on_npu):
    model = build(family, dtype)
    apply_fused_kernels(model)
    model.train()
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), multi_precision=True)
    ids = paddle.to_tensor(prompts(12, 12))
    with watch(model) as watched:
        for _ in range(2):
            loss = model(input_ids=ids, labels=ids)[0]
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
    report = audit(model, optimizer, {"input_ids": ids, "labels": ids}) + watched.report()
    assert report.clean, report


@pytest.mark.slow
@pytest.mark.paddlenlp
def test_a_fused_llama_captured_by_to_static_is_clean(on_npu):
    model = build("llama")
    apply_fused_kernels(model)
    static = paddle.jit.to_static(model, full_graph=True)
    report = audit(static, sample={"input_ids": paddle.to_tensor(prompts(12, 12))})
    assert report.clean, report


def test_findings_have_layer_shape_bytes_and_fix(on_npu):
    model = nn.Sequential(planted.Planted(), nn.Linear(4, 4))
    report = audit(model)
    (parameter,) = report.of_kind("parameter")
    assert (parameter.name, parameter.layer, parameter.dtype) == ("0.gain", "0", "float64")
    assert (parameter.shape, parameter.bytes, parameter.place) == ((16,), 128, "aicpu")
    assert "dtype='float32'" in parameter.fix
    assert str(lines()["parameter"]) in str(parameter)
    assert json.loads(json.dumps(report.as_dict()))["findings"][0]["bytes"] == 128


def test_a_layer_of_paddle_is_named_by_the_line_that_makes_it():
    class Owner(nn.Layer):
        def __init__(self):
            super().__init__()
            self.projection = nn.Linear(4, 4).to(dtype="float64")

    line = test_a_layer_of_paddle_is_named_by_the_line_that_makes_it.__code__.co_firstlineno + 4
    findings = audit(Owner()).of_kind("parameter")
    assert [(finding.name, finding.source.line) for finding in findings] == [
        ("projection.weight", line),
        ("projection.bias", line),
    ]


def test_the_default_dtype_and_a_batch():
    paddle.set_default_dtype("float64")
    try:
        report = audit(nn.ReLU())
    finally:
        paddle.set_default_dtype("float32")
    assert [finding.kind for finding in report.findings] == ["default dtype"]
    sample = [{"rows": np.zeros(3), "ids": np.arange(3)}]
    names = [finding.name for finding in auditing.of_batch(sample)]
    assert names == ["sample[0]['rows']"]


def test_a_grad_scaler_with_a_double_scale():
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
    assert audit(nn.ReLU(), scaler=scaler).clean
    scaler._scale = scaler._scale.astype("float64")
    (finding,) = audit(nn.ReLU(), scaler=scaler).findings
    assert (finding.kind, finding.dtype) == ("loss scaling", "float64")


class Products(nn.Layer):
    """Kernels that a card does not run on its cores for these dtypes, and one that it does not have."""

    def forward(self, x):
        largest = paddle.topk(paddle.arange(6), 2)[0]
        powers = paddle.pow(paddle.arange(6), 2)
        return (largest.sum() + powers.sum()).astype("float32") + paddle.erfinv(x * 0.5).sum()


@pytest.mark.parametrize("to_static", [False, True])
def test_integers_on_the_aicpu_and_pairs_that_are_not_registered(device, to_static):
    model = paddle.jit.to_static(Products(), full_graph=True) if to_static else Products()
    report = audit(model, sample=paddle.ones([4]))
    by_name = {finding.name: finding for finding in report.findings}
    assert {name: (finding.dtype, finding.place) for name, finding in by_name.items()} == {
        "topk": ("int64", "aicpu"),
        "pow": ("int64", "host"),
    }
    assert "only for bfloat16, float16, float32" in by_name["pow"].fix


def test_one_warning_for_a_site_which_is_counted_afterwards(device):
    wide = paddle.ones([3], "float64")
    with warnings.catch_warnings(record=True) as caught, watch() as watched:
        warnings.simplefilter("always")
        for _ in range(5):
            _ = wide + wide
    (warning,) = [
        caught_warning for caught_warning in caught if issubclass(caught_warning.category, AICPUWarning)
    ]
    assert warning.filename == __file__
    (finding,) = watched.report().findings
    assert (finding.name, finding.count, finding.source.line) == ("add", 5, warning.lineno)
    assert not finding.is_source and finding.shape == (3,)


def test_an_error_stops_at_the_operator(device):
    wide = paddle.ones([3], "float64")
    with pytest.raises(RuntimeError, match="float64"), watch(action="error"):
        _ = wide + wide
    _ = wide + wide  # nobody watches any more


def test_a_watch_that_nobody_ended_goes_with_its_last_reference(on_npu):
    wide = paddle.ones([3], "float64")
    lost = watch(action="error").__enter__()
    with watch(action="collect") as watched:
        del lost
        gc.collect()
        _ = wide + wide
    _ = wide + wide
    (finding,) = watched.report().findings
    assert finding.count == 1


def test_hooks_leave_paddle_as_it_was(on_cpu):
    before = {name: vars(paddle.Tensor)[name] for name in ("__add__", "__mul__", "sum")}
    functions = dict(vars(paddle._C_ops))
    with watch():
        assert paddle._C_ops.matmul is not functions["matmul"]
    assert {name: vars(paddle.Tensor)[name] for name in before} == before
    assert dict(vars(paddle._C_ops)) == functions


def test_backward_and_optimizer_are_seen_on_the_virtual_npu(on_npu):
    weight = paddle.create_parameter([4], "float64")
    optimizer = paddle.optimizer.AdamW(0.1, parameters=[weight])
    with watch(action="collect") as watched:
        (weight * 2).sum().backward()
        optimizer.step()
    names = {finding.name for finding in watched.report().findings}
    assert {"scale_grad", "adamw"} <= names or {"sum_grad", "adamw"} <= names, names


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(ValueError, match="not a function"):
        audit(lambda x: x)
    with pytest.raises(ValueError, match="PIR program, not a str"):
        audit_program("program")
    with pytest.raises(ValueError, match="'warn', 'error', 'collect'"):
        watch(action="shout")
