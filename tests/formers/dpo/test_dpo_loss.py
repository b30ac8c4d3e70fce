"""The loss on preference pairs and its gradients, against the formula in float64 on separate sequences."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from fused_models.comparison import OTHER_ROUNDINGS, array, assert_as_accurate, built, float32_means_float64
from fused_models.formers import BY_NAME
from fused_models.rounding import round_otherwise
from fused_models.weights import VOCABULARY

import paddle_fused
from llm_npu.data.collate import IGNORED, Collator, PairCollator
from llm_npu.data.pairs import PairRows, Pairs
from llm_npu.models.paddleformers.adapter import preference_criterion
from llm_npu.training.dpo import logits_and_criterion, logits_of

SIZES = np.array([[6, 5, 4], [3, 7, 2], [5, 1, 6]])  # tokens of prompts, chosen and rejected answers
BETA, SMOOTHING = 0.3, 0.1
PLACES = [("npu:0", "float32"), ("npu:0", "bfloat16"), ("cpu", "float32")]
FAMILIES = ["llama-gqa", "qwen2", "qwen3", "qwen3-tied", "ernie4.5"]
FAMILIES += ["qwen3-moe", "ernie4.5-moe", "deepseek-v3"]
CELLS = [
    pytest.param(
        name,
        place,
        marks=[] if name in ("llama-gqa", "qwen3") and place == PLACES[1] else pytest.mark.slow,
        id="-".join((name, *place)),
    )
    for name in FAMILIES
    for place in PLACES
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three pairs of random tokens, as they are cached."""
    folder = tmp_path_factory.mktemp("pairs")
    ids = np.random.default_rng(3).integers(3, VOCABULARY, SIZES.sum(), dtype=np.int32)
    np.save(folder / "ids.npy", ids)
    np.save(folder / "sizes.npy", SIZES)
    return folder


def batch_of(folder, padding, reference):
    """Two rows, one pair in the first and two in the second."""
    rows = PairRows(Pairs(folder, 0, len(SIZES), 32, VOCABULARY), [[0], [1, 2]])
    rows.reference = reference
    batch = PairCollator(Collator(padding, mask="rows"))([rows[0], rows[1]])
    return {
        name: paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }


def sequences(folder):
    """[prompt, then the chosen answer; prompt, then the rejected one] of each pair: (ids, prompt tokens)."""
    ids, start = np.load(folder / "ids.npy").astype(np.int64), 0
    for prompt, chosen, rejected in SIZES:
        shared_prompt, first, second = np.split(
            ids[start : start + prompt + chosen + rejected], [prompt, prompt + chosen]
        )
        start += prompt + chosen + rejected
        yield [(np.concatenate([shared_prompt, answer]), prompt) for answer in (first, second)]


def collected(model, loss, logits):
    loss.backward()
    arrays = {"loss": array(loss), "logits": logits}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        arrays[name] = np.zeros(parameter.shape) if gradient is None else array(gradient)
    model.clear_gradients()
    return arrays


def results(model, batch, loss):
    """Loss, the logits of the labels, and the gradient of every parameter."""
    criterion = preference_criterion(model.config, loss, BETA, SMOOTHING)
    logits, (*_, value) = logits_and_criterion(model, batch, criterion)
    return collected(model, value, array(logits)[array(batch["labels"]) != IGNORED])


def losses(loss, h):
    """Of log-ratios h, elementwise: DPO (Rafailov et al., conservative), SLiC's hinge, IPO."""
    return {
        "sigmoid": -(1 - SMOOTHING) * F.log_sigmoid(BETA * h) - SMOOTHING * F.log_sigmoid(-BETA * h),
        "hinge": F.relu(1 - BETA * h),
        "ipo": (h - 1 / (2 * BETA)) ** 2,
    }[loss]


def exact_results(family, folder, reference, loss):
    """The same in float64 by the formula, one sequence after the other."""
    device = paddle.device.get_device()
    paddle.set_device("cpu")
    try:
        model, logits, logps = built(family.truth, dtype="float64"), [], []
        with float32_means_float64():
            for ids, prompt in (sequence for pair in sequences(folder) for sequence in pair):
                rows = logits_of(model, {"input_ids": paddle.to_tensor(ids[None, :-1])})[0, prompt - 1 :]
                labels = paddle.to_tensor(ids[prompt:, None])
                logits.append(array(rows))
                total = paddle.take_along_axis(F.log_softmax(rows, axis=-1), labels, axis=1).sum()
                logps.append(total / len(labels) if loss == "ipo" else total)
            policy = paddle.stack(logps).reshape([-1, 2])
            ratios = policy - paddle.to_tensor(reference.astype(np.float64))
            value = losses(loss, ratios[:, 0] - ratios[:, 1]).mean()
            return collected(model, value, np.concatenate(logits))
    finally:
        paddle.set_device(device)


def reference_of(loss):
    """Log-probabilities near those of a model that guesses, so that no loss is saturated."""
    tokens = np.ones_like(SIZES[:, 1:]) if loss == "ipo" else SIZES[:, 1:]
    noise = np.random.default_rng(5).normal(0, 0.5, tokens.shape)
    return (-np.log(VOCABULARY) * tokens + noise).astype(np.float32)


def compare(family, place, folder, padding, loss):
    device, dtype = place
    paddle.set_device(device)
    reference = reference_of(loss)
    batch = batch_of(folder, padding, reference)
    composed = [built(family, dtype=dtype) for _ in range(1 + len(OTHER_ROUNDINGS))]
    for seed, model in zip(OTHER_ROUNDINGS, composed[1:], strict=True):
        round_otherwise(model, seed)
    unfused = [results(model, batch, loss) for model in composed]
    paddle_fused.reset_dispatch_log()
    fused = results(built(family, "all", dtype), batch, loss)
    assert_as_accurate(fused, unfused, exact_results(family, folder, reference, loss), dtype)
    return {(ran.operator, ran.backend) for ran in paddle_fused.dispatch_log()}


@pytest.mark.parametrize("padding", ["none", pytest.param("longest", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "place"), CELLS)
def test_loss_and_gradients(folder, name, place, padding):
    ran = compare(BY_NAME[name], place, folder, padding, "sigmoid")
    assert {"flash_attention", "rms_norm", "rotary_mul", "swiglu"} <= {operator for operator, _ in ran}
    if place == PLACES[1]:
        assert ("flash_attention", "ascend") in ran


@pytest.mark.parametrize("loss", ["hinge", "ipo"])
def test_the_other_losses(folder, loss):
    compare(BY_NAME["llama"], PLACES[0], folder, "longest", loss)


def test_a_policy_that_is_its_reference_has_the_loss_log_2(folder):
    paddle.set_device("npu:0")
    model = built(BY_NAME["llama"], "all", "bfloat16")
    dpo = preference_criterion(model.config, "sigmoid", BETA, 0.0)
    whole = batch_of(folder, "longest", None)
    with paddle.no_grad():
        _, logps = logits_and_criterion(model, whole, dpo)
        batch = batch_of(folder, "longest", np.stack([tensor.numpy() for tensor in logps], axis=1))
        *_, value = logits_and_criterion(model, batch, dpo)[1]
    assert float(value) == pytest.approx(np.log(2), rel=1e-6)
    assert getattr(model.config, "dpo_config", None) is None  # its own, which config.json has, is untouched
