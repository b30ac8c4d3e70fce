"""A profile of a vision-language model has rows for its vision tower, projector and text."""

import paddle
import pytest
from fused_models import vision

from llm_npu.models.paddleformers.vision_language import FAMILIES as RECORDS
from llm_npu.models.paddleformers.vision_language import PROJECTOR, TEXT, VISION_TOWER
from llm_npu.profiling import Capture
from llm_npu.profiling.report import summary
from llm_npu.profiling.report.pages import tables

STEPS = 2
FAMILIES = [family for family in vision.FAMILIES if RECORDS[family.model_type].parts]


def step(model, family) -> None:
    tokens = vision.batch(False)
    ids, labels = map(paddle.to_tensor, (tokens.ids, tokens.labels))
    model(input_ids=ids, labels=labels, return_dict=True, **vision.inputs(family, False)).loss.backward()


def of_vision(model, family) -> list[paddle.nn.Layer]:
    """The layers of vision tower and projector that are not inside of another one."""
    classes = {name for name, part in RECORDS[family.model_type].parts.items() if part != TEXT}
    layers = {path: layer for path, layer in model.named_sublayers() if type(layer).__name__ in classes}
    return [
        layer for path, layer in layers.items() if not any(path.startswith(f"{other}.") for other in layers)
    ]


def tasks_alone(layers, run, folder) -> int:
    """The tasks of the forward and backward pass of ``layers``, called alone with their inputs in ``run``."""
    calls = []

    def keep(layer, arguments, keywords):
        own = [value.detach() if isinstance(value, paddle.Tensor) else value for value in arguments]
        for value, original in zip(own, arguments, strict=True):
            if isinstance(value, paddle.Tensor):
                value.stop_gradient = original.stop_gradient
        calls.append((layer, own, keywords))

    def results(layer, arguments, keywords) -> list[paddle.Tensor]:
        values = paddle.utils.flatten(layer(*arguments, **keywords))
        return [value for value in values if isinstance(value, paddle.Tensor) and not value.stop_gradient]

    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    gradients = [[paddle.ones_like(value) for value in results(*call)] for call in calls]
    with Capture(folder, warmup=0, active=1) as capture:
        for call, own in zip(calls, gradients, strict=True):
            if values := results(*call):
                paddle.autograd.backward(values, own)
        capture.step()
    return sum(work.calls for work in summary.build(folder).ranks[0].works.values())


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_parts_of_a_step(family, frozen, tmp_path):
    paddle.set_device("npu:0")
    model = family.build()
    model.train()
    layers = of_vision(model, family)
    for parameter in [parameter for layer in layers for parameter in layer.parameters()]:
        parameter.stop_gradient = frozen
    with Capture(tmp_path / "step", active=STEPS, model=model) as capture:
        for _ in range(1 + STEPS):
            step(model, family)
            paddle.lgamma(paddle.ones([3]))  # after the backward pass
            capture.step()
    report = summary.build(tmp_path / "step")
    parts = report.ranks[0].parts
    assert set(parts) == {VISION_TOWER, PROJECTOR, TEXT}
    alone = tasks_alone(layers, lambda: step(model, family), tmp_path / "alone")
    # Alone, all outputs have gradients, also those that the model does not use.
    assert parts[VISION_TOWER].calls + parts[PROJECTOR].calls == pytest.approx(STEPS * alone, rel=0.01)
    (table,) = (table for table in tables.of(report, 1) if table.title == "Time by part of the model")
    everything = sum(work.calls for work in report.ranks[0].works.values())
    assert sum(int(row[1]) for row in table.rows) == everything
    assert "lgamma" in {operator.name for operator in report.operators}


def test_model_without_a_vision_tower(tmp_path):
    paddle.set_device("npu:0")
    with pytest.raises(ValueError, match="PaddleOCR-VL"):
        Capture(tmp_path, active=1, model=paddle.nn.Linear(2, 2)).start()
