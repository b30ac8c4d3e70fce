"""Fused models as they are used: recomputed, captured, distributed, with positions and masks of all kinds."""

import json

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from fused_models.comparison import (
    array,
    assert_as_accurate,
    built,
    float64_results,
    loss_and_logits,
    random_batch,
    results,
    truth,
    unfused,
    unfused_results,
)
from fused_models.families import BY_NAME, one_process_mesh
from fused_models.weights import fill
from paddlenlp.transformers.llama.modeling_pp import (
    LlamaDecoderLayerPipe,
    LlamaEmbeddingPipe,
    LlamaLMHeadPipe,
    LlamaRMSNormPipe,
)
from places import SHARED

import paddle_fused
from llm_npu.surgery import apply_fused_kernels
from paddle_fused import masks

pytestmark = pytest.mark.sampled

PROGRAM = SHARED / "fused_models" / "static_program.py"
LLAMA = BY_NAME["llama"]
GRANULARITIES = ("full", "full_attn", "core_attn")
RECOMPUTED = [
    (BY_NAME[name], granularity)
    for name in (
        "llama",
        "llama-gqa",
        "qwen2",
        "qwen2-moe",
        "mixtral",
        "gpt",
        "gemma",
        "llama-auto",
        "llama-network",
    )
    for granularity in GRANULARITIES
] + [(BY_NAME["mistral"], "full")]


def recorded(operator, compute):
    """What ``compute`` returns, and for each mode of the operator that ran how often."""
    paddle_fused.reset_dispatch_log()
    outcome = compute()
    return outcome, {ran.mode: ran.count for ran in paddle_fused.dispatch_log() if ran.operator == operator}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "granularity"), RECOMPUTED, ids=str)
def test_recompute_keeps_the_mask_and_every_bit(family, granularity, dtype):
    plain = built(family, "all", dtype)
    plain.train()
    expected, modes = recorded("flash_attention", lambda: results(family, plain, random_batch(), "all"))
    (mode,) = modes
    assert is_causal(mode)
    for reentrant in (False, True):
        model = built(
            family, "all", dtype, recompute_granularity=granularity, recompute_use_reentrant=reentrant
        )
        model.train()
        model.recompute_enable()
        first, again = recorded("flash_attention", lambda m=model: results(family, m, random_batch(), "all"))
        assert again == {mode: 2 * modes[mode]}  # once forward and once more in the backward pass
        for name, values in expected.items():
            np.testing.assert_array_equal(first[name], values, err_msg=name)


def is_causal(mode: str) -> bool:
    """Whether the mode of flash_attention leaves out what follows, without a mask that is written out."""
    return mode in ("flash_attention_npu, causal", "pf_flash_attention, causal")


CAPTURED = [
    pytest.param(
        name,
        padded,
        id=f"{name}-{'padded' if padded else 'plain'}",
        marks=[] if name == "llama" or (name == "mixtral" and padded) else pytest.mark.slow,
    )
    for name in ("llama", "llama-gqa", "qwen2", "mistral", "qwen2-moe", "mixtral")
    for padded in (False, True)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "padded"), CAPTURED)
def test_to_static(name, padded):
    family = BY_NAME[name]
    model = built(family, "all")
    model.train()
    captured = paddle.jit.to_static(model, full_graph=True)
    captured_results = results(family, captured, random_batch(padded), "all")
    composed = unfused(family, "npu:0", "float32", padded)
    assert_as_accurate(captured_results, composed, truth(family, padded), "float32")


POSITIONS = {
    "restarted": [[*range(10), *range(6)], [*range(3), *range(13)]],
    "out of order": [[*range(15, -1, -1)], [*range(1, 16, 2), *range(0, 16, 2)]],
}


@pytest.mark.parametrize("name", ["llama", "llama-linear", "llama-dynamic_ntk", "qwen2", "mistral"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_position_ids_are_obeyed(name, kind):
    """PaddleNLP's own fused rotary embedding on an npu ignores them."""
    family = BY_NAME[name]
    ids = np.array(POSITIONS[kind])

    def with_positions(model):
        return results(family, model, random_batch(), position_ids=paddle.to_tensor(ids))

    composed = unfused_results(family, random_batch(), position_ids=paddle.to_tensor(ids))
    cpu_positions = paddle.to_tensor(ids, place=paddle.CPUPlace())
    exact = float64_results(family, random_batch(), position_ids=cpu_positions)
    ordinary = truth(family)
    assert np.abs(ordinary["logits"] - exact["logits"]).max() > 0.01  # ids that are ignored are found out
    for operator in ("rotary", "all"):
        assert_as_accurate(with_positions(built(family, operator)), composed, exact, "float32")


def test_a_packed_batch_is_its_documents():
    """Restarted positions and a mask of documents: each document as if it were alone."""
    model = built(LLAMA, "all")
    lengths = [[3, 5, 8], [16]]
    batch = random_batch()
    positions = paddle.to_tensor([[p for n in row for p in range(n)] for row in lengths])
    mask = masks.causal() & masks.documents(lengths)
    _, packed = loss_and_logits(LLAMA, model, batch, "all", position_ids=positions, attention_mask=mask)
    packed = array(packed)
    for row, row_lengths in enumerate(lengths):
        start = 0
        for length in row_lengths:
            alone = paddle.to_tensor(batch.ids[row : row + 1, start : start + length])
            logits = array(model(input_ids=alone, labels=alone)[1])[0]
            np.testing.assert_allclose(packed[row, start : start + length], logits, rtol=1e-4, atol=1e-4)
            start += length


@pytest.mark.parametrize("order", ["sharded first", "fused first"])
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "mistral"])
def test_sharding_annotations(name, order, on_cpu):
    family = BY_NAME[name]
    mesh, placements = one_process_mesh(), [dist.Replicate(), dist.Shard(0)]
    model = built(family)
    if order == "fused first":
        apply_fused_kernels(model)
    for layer in model.sublayers():
        for key, parameter in list(layer._parameters.items()):
            if parameter is not None:
                layer._parameters[key] = dist.shard_tensor(parameter, mesh, placements)
    before = {key: (p.process_mesh, p.placements, id(p)) for key, p in model.named_parameters()}
    if order == "sharded first":
        apply_fused_kernels(model)
    after = {key: (p.process_mesh, p.placements, id(p)) for key, p in model.named_parameters()}
    assert after == before
    sharded = results(family, model, random_batch(), "all")
    assert_as_accurate(sharded, unfused(family, "cpu", "float32"), truth(family), "float32")


class Pipeline(paddle.nn.Layer):
    """The layers of LlamaForCausalLMPipe one after another, in one process and without fleet."""

    def __init__(self, config):
        super().__init__()
        self.stages = paddle.nn.LayerList(
            [
                LlamaEmbeddingPipe(config),
                *(LlamaDecoderLayerPipe(config) for _ in range(config.num_hidden_layers)),
                LlamaRMSNormPipe(config),
                LlamaLMHeadPipe(config),
            ]
        )

    def forward(self, arguments):
        for stage in self.stages:
            arguments = stage(arguments)
        return arguments


@pytest.mark.parametrize("operator", ["attention", "all"])
@pytest.mark.parametrize("padded", [False, True], ids=["no mask", "padding mask"])
@pytest.mark.parametrize("name", ["llama", "llama-gqa"])
def test_pipeline_layers_hide_what_follows(name, padded, operator):
    """On an npu the upstream layers make a mask without padding that is True where a token may be seen, and
    hand it to an operator that hides what is True."""
    family, batch = BY_NAME[name], random_batch(padded)
    whole = built(family)
    pipeline = Pipeline(whole.config)
    pipeline.eval()
    names = {
        "stages.0.": "llama.",
        **{f"stages.{i + 1}.": f"llama.layers.{i}." for i in range(whole.config.num_hidden_layers)},
        "stages.3.norm.": "llama.norm.",
        "stages.4.": "lm_head.",
    }
    weights = dict(whole.named_parameters())
    for key, parameter in pipeline.named_parameters():
        (start,) = [prefix for prefix in names if key.startswith(prefix)]
        parameter.set_value(weights[names[start] + key.removeprefix(start)])
    apply_fused_kernels(pipeline, kernels="auto" if operator == "all" else [operator])
    ids = paddle.to_tensor(batch.ids)
    logits = pipeline((ids, paddle.to_tensor(batch.mask)) if padded else ids)
    logits = {"logits": array(logits)[batch.labels >= 0]}
    expected = {"logits": truth(family, padded)["logits"]}
    assert_as_accurate(logits, unfused_logits(family, padded), expected, "float32")


def unfused_logits(family, padded):
    return [{"logits": run["logits"]} for run in unfused(family, "npu:0", "float32", padded)]


def test_float32_norms_in_a_bfloat16_model():
    """amp.decorate(level="O2") may leave norms in float32; their input then is bfloat16."""
    results_of = {}
    for operator in (None, "rms_norm", "all"):
        model = built(LLAMA, operator, "bfloat16")
        for layer in model.sublayers():
            if type(layer).__name__ == "LlamaRMSNorm":
                layer.to(dtype="float32")
        with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
            results_of[operator] = results(LLAMA, model, random_batch(), operator)
        assert model.llama.norm.weight.dtype == paddle.float32
    for operator in ("rms_norm", "all"):
        assert_as_accurate(results_of[operator], [results_of[None]], truth(LLAMA), "bfloat16")


def test_weights_are_filled_alike():
    """What the comparisons rest on: a model of another class with the same parameters computes the same."""
    first, second = built(LLAMA), built(LLAMA)
    with paddle.no_grad():
        for parameter in second.parameters():
            parameter.set_value(paddle.zeros_like(parameter))
    fill(second)
    for mine, other in zip(first.parameters(), second.parameters(), strict=True):
        np.testing.assert_array_equal(array(mine), array(other))


AUTO_PARALLEL = ("llama-auto", "llama-network")


@pytest.fixture(scope="module")
def static_training(run_python):
    done = run_python("-m", "virtual_npu", PROGRAM, *AUTO_PARALLEL, PYTHONPATH=str(SHARED))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", AUTO_PARALLEL)
def test_static_auto_parallel_training(name, static_training):
    """PaddleNLP's auto-parallel Llamas, which never reach the npu's attention and rotary operators, do."""
    report = static_training[name]
    assert report["fused"]["ran"] == ["add_rms_norm", "flash_attention", "rms_norm", "rotary_mul", "swiglu"]
    assert report["unfused"]["ran"] == []
    assert report["fused"]["losses"][-1] < report["fused"]["losses"][0]
    np.testing.assert_allclose(report["fused"]["losses"], report["unfused"]["losses"], rtol=1e-5)
