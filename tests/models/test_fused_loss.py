"""The head and the loss of PaddleNLP's models by linear_cross_entropy."""

import paddle
import pytest
from fused_models.comparison import built, random_batch
from fused_models.families import BY_NAME, FAMILIES
from fused_models.losses import OPERATOR, check

import paddle_fused
from llm_npu.surgery import apply_fused_kernels, remove_fused_kernels
from llm_npu.surgery.pending_logits import loss_only

pytestmark = pytest.mark.sampled

MODELS = [family for family in FAMILIES if family.criterion is None]
QUICK = ("llama-gqa", "qwen2-tied", "mistral", "mixtral", "qwen2-moe")
PLACES = [("npu:0", "float32"), ("npu:0", "bfloat16"), ("cpu", "float32")]


def cases():
    for family in MODELS:
        for place in PLACES:
            default = family.name in QUICK and place == PLACES[family.name == "qwen2-tied"]
            marks = () if default else pytest.mark.slow
            yield pytest.param(family, place, id=f"{family}-{'-'.join(place)}", marks=marks)


@pytest.mark.parametrize(("family", "place"), list(cases()))
def test_a_training_step(family, place):
    check(family, *place)


@pytest.mark.parametrize(
    "family",
    [pytest.param(model, marks=() if model.name == "llama" else pytest.mark.slow) for model in MODELS],
    ids=str,
)
def test_ignored_labels(family):
    check(family, "npu:0", "float32", padded=True)


@pytest.fixture
def fused():
    model = built(BY_NAME["llama-gqa"])
    apply_fused_kernels(model, [OPERATOR])
    return model


def inputs():
    batch = random_batch()
    return {"input_ids": paddle.to_tensor(batch.ids), "labels": paddle.to_tensor(batch.labels)}


def test_evaluation_returns_logits_unless_only_the_loss_is_wanted(fused):
    loss, logits = fused(**inputs())[:2]
    with loss_only():
        alone, nothing = fused(**inputs())[:2]
    assert logits.shape[-1] == fused.config.vocab_size and nothing is None
    assert abs(float(alone) - float(loss)) < 1e-6
    fused.train()
    assert fused(**inputs(), return_dict=True).logits is None
    assert fused(inputs()["input_ids"])[0].shape == logits.shape
    assert fused.lm_head(paddle.zeros([1, 2, fused.config.hidden_size])).shape[-1] == logits.shape[-1]


def test_it_is_undone(fused):
    fused.train()
    assert fused(**inputs())[1] is None
    remove_fused_kernels(fused)
    assert fused(**inputs())[1] is not None
    assert not [layer for layer in fused.sublayers(True) if "loss_func" in layer.__dict__]


def test_it_is_applied_where_it_is_asked_for():
    model = built(BY_NAME["llama-gqa"])
    assert OPERATOR not in apply_fused_kernels(model).operators()
    report = apply_fused_kernels(model, use_fused_linear_cross_entropy=True)
    assert {OPERATOR, "attention", "rms_norm"} < set(report.operators())


def test_a_frozen_head_gets_no_gradient(fused):
    fused.train()
    fused.lm_head.weight.stop_gradient = True
    paddle_fused.reset_dispatch_log()
    fused(**inputs())[0].backward()
    assert fused.lm_head.weight.grad is None
    assert fused.llama.norm.weight.grad is not None
    assert [entry.backend for entry in paddle_fused.dispatch_log() if entry.operator == OPERATOR] == [
        "ascend"
    ]
