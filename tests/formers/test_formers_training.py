"""scripts/run_llama_npu.py with PaddleFormers: every family, packing, LoRA, resuming, and what is refused."""

import functools
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
import run_inputs
from paddleformers.nn.pp_model import CriterionLayerPipe
from places import ROOT
from roundings import ADAM_EPSILON, assert_trained_alike
from run_inputs import losses
from safetensors import safe_open
from safetensors.numpy import load_file
from small_runs import MORE, RUN, SCRIPT, STEPS, fields

from llm_npu.models.families import config_class, model_class
from llm_npu.parallel.features import mean_over_rows
from llm_npu.training import checkpoint, metrics
from paddle_fused.parity import ROUNDING

TRAINED = [
    "llama",
    "qwen3",
    *(pytest.param(f, marks=pytest.mark.slow) for f in ("qwen2", "ernie4_5", *MORE) if f != "qwen3"),
]


@pytest.mark.parametrize("precision", ["--bf16", pytest.param("--no_bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", TRAINED)
def test_a_family_learns_with_fused_operators(finished, family, precision):
    done, out = finished(family, precision)
    assert done.stderr.startswith("VIRTUAL NPU: ") and done.stderr.count("\n") == 1  # a calm screen
    lines = done.stdout.splitlines()
    (fused,) = (line for line in lines if line.startswith("fused "))
    for part in fused.removeprefix("fused").split(","):
        _, count, _, of = part.split()
        assert count == of, fused
    dtype = "bfloat16" if precision == "--bf16" else "float32"
    for operator in ("flash_attention", "rms_norm", "rotary_mul", "swiglu"):
        assert any(line.startswith(f"ran      {operator} {dtype}: ") for line in lines), operator
    assert any(line.startswith("backend  first step as predicted") for line in lines)
    train, evaluation = losses(out)
    guess = math.log(run_inputs.LLAMA["vocab_size"])
    assert abs(train[1] - guess) < 0.3
    assert train[STEPS] < train[1] - 0.3 and evaluation[STEPS] < train[1]  # on other text
    assert checkpoint.verify(out / f"checkpoint-{STEPS}") == STEPS


@pytest.mark.parametrize("family", TRAINED)
def test_a_continued_run_is_the_same_bit_for_bit(run_python, inputs, finished, tmp_path, family):
    _, whole = finished(family, "--bf16")
    half, out = whole / "checkpoint-6", tmp_path / "out"
    done = run_python(
        SCRIPT, *inputs(family), "--bf16", "--output_dir", out, "--resume_from_checkpoint", half
    )
    assert done.returncode == 0, done.stderr
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (out / f"checkpoint-{STEPS}" / name).read_bytes() == (
            whole / f"checkpoint-{STEPS}" / name
        ).read_bytes()
    assert [losses(out)[0][step] for step in (7, STEPS)] == [losses(whole)[0][step] for step in (7, STEPS)]


def test_a_checkpoint_has_the_layout_of_hugging_face(finished):
    _, out = finished("llama", "--bf16")
    with safe_open(out / f"checkpoint-{STEPS}/model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    size, inner, words = 256, 192, run_inputs.LLAMA["vocab_size"]
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == [words, size]
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == [size // 2, size]
    assert shapes["model.layers.1.mlp.down_proj.weight"] == [size, inner]
    config = json.loads((out / f"checkpoint-{STEPS}/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["tie_word_embeddings"] is False
    assert "tensor_model_parallel_size" not in config


TWO = [
    ("--tensor_parallel_degree", "2"),
    ("--tensor_parallel_degree", "2", "--sequence_parallel", "true"),
    ("--pipeline_parallel_degree", "2", "--gradient_accumulation_steps", "2"),
    *(("--sharding", stage) for stage in ("stage1", "stage2", "stage3")),
    ("--tensor_parallel_degree", "2", "--sharding", "stage1"),
]
SWITCHES = ("--use_fused_add_rms_norm", "true", "--use_fused_linear_cross_entropy", "true")
SWITCHED = [*TWO[:3], TWO[-1], (*TWO[1], *TWO[2])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [
        *((family, flags) for family in ("llama", "qwen2", "qwen3", "ernie4_5") for flags in TWO),
        *((family, (*flags, *SWITCHES)) for family in ("llama", "qwen3") for flags in SWITCHED),
    ],
    ids=lambda flag_or_flags: " ".join(flag_or_flags) if isinstance(flag_or_flags, tuple) else flag_or_flags,
)
def test_ranks_compute_what_one_process_does(run_python, inputs, finished, tmp_path, family, method):
    _, alone = finished(family, "--no_bf16")
    pairs = {"--tensor_parallel_degree", "--sharding"}, {"--tensor_parallel_degree", PP[0]}
    ranks = 4 if any(pair <= set(method) for pair in pairs) else 2
    shared = 1 if ranks == 2 and "--tensor_parallel_degree" in method else 2
    arguments = [*inputs(family), "--no_bf16", *method, "--per_device_train_batch_size", str(4 // shared)]
    done = run_python(SCRIPT, *arguments, "--nproc", str(ranks), "--output_dir", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first step as predicted" in done.stdout
    rows = done.stdout.partition("\nbackend  ")[2].partition("first step")[0]
    for switch, operator in (SWITCHES[:2], "add_rms_norm"), (SWITCHES[2:], "linear_cross_entropy"):
        assert bool(re.search(rf" {operator} +(ascend|native) ", rows)) is (set(switch) <= set(method)), rows
    actual, expected = losses(tmp_path / "out")[0], losses(alone)[0]
    assert [actual[step] for step in (1, 2, 3)] == pytest.approx(
        [expected[step] for step in (1, 2, 3)], rel=2e-5
    )


@pytest.mark.slow
def test_a_pipeline_evaluates_as_one_process_does(run_python, inputs, finished, tmp_path):
    """The samples held out do not fill the last batch, in which some micro batches have no labels at all."""
    held_out = int(
        re.search(r"([\d,]+) held out", finished("qwen3", "--no_bf16")[0].stdout)[1].replace(",", "")
    )
    parts = next(number for number in range(2, held_out) if held_out % number)
    ones = ("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", str(parts))
    once = ("--max_steps", "1", "--save_steps", "1", "--eval_steps", "1", "--max_evaluate_steps", "-1")
    evaluations = []
    for more in ((), ("--pipeline_parallel_degree", "2", "--nproc", "2")):
        out = tmp_path / str(len(more))
        done = run_python(SCRIPT, *inputs("qwen3"), "--no_bf16", *ones, *once, *more, "--output_dir", out)
        assert done.returncode == 0, done.stdout + done.stderr
        evaluations.append(losses(out)[1][1])
    assert evaluations[1] == pytest.approx(evaluations[0], rel=2e-5)


TP, SP = ("--tensor_parallel_degree", "2"), ("--sequence_parallel", "true")
EP, S1 = ("--expert_parallel_degree", "2"), ("--sharding", "stage1")
HALF = ("--per_device_train_batch_size", "2")
PP, TWICE = ("--pipeline_parallel_degree", "2"), ("--gradient_accumulation_steps", "2")
SHARED = [
    (2, "--sharding", "stage2"),
    (2, *TP, *TWICE),
    (2, *TP, *SP, *TWICE),
    (4, *TP, "--sharding", "stage1"),
    (4, *TP, *SP, "--sharding", "stage2"),
]
STAGES = [(2, *PP, *TWICE), (4, *PP, "--sharding", "stage1"), (4, *TP, *SP, *PP, *TWICE)]
SHARE_EXPERTS = [
    *((f, *options) for f in ("qwen3_moe", "ernie4_5_moe", "deepseek_v3") for options in (*SHARED, *STAGES)),
    *((f, 4, *TP, *PP, *TWICE) for f in ("qwen3_moe", "deepseek_v3")),
    *((f, 2, *TP, *SP, *TWICE, *SWITCHES) for f in ("qwen3_moe", "ernie4_5_moe", "deepseek_v3")),
    *((f, 2, *PP, *TWICE, *SWITCHES) for f in ("ernie4_5_moe", "deepseek_v3")),
    *((f, 2, *EP, *S1) for f in ("qwen3_moe", "ernie4_5_moe", "deepseek_v3")),
    ("qwen3_moe", 2, *EP),
    *((f, 2, *EP, "--expert_overlap", "pipelined:2") for f in ("qwen3_moe", "deepseek_v3")),
    ("ernie4_5_moe", 2, *EP, "--recompute", "true"),
    *((f, 2, *TP, *SP, *EP, *TWICE) for f in ("qwen3_moe", "ernie4_5_moe", "deepseek_v3")),
    ("ernie4_5_moe", 4, *TP, *SP, EP[0], "4", *S1),
    ("qwen3_moe", 4, *TP, *SP, *EP),
    ("deepseek_v3", 4, *PP, *EP, *S1),
    ("ernie4_5_moe", 4, *TP, *SP, *PP, *EP, *TWICE),
    ("ernie4_5_moe", 4, *TP, *SP, *PP, *EP, *TWICE, "--expert_overlap", "auto"),
    ("ernie4_5_moe", 8, *TP, *SP, *PP, EP[0], "4", *S1),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [
        *(
            (f, (*EP, "--expert_overlap", "pipelined:2"))
            for f in ("qwen3_moe", "ernie4_5_moe", "deepseek_v3")
        ),
        ("deepseek_v3", (*PP, *TWICE)),  # its first stage has no experts
    ],
)
def test_ranks_drop_the_tokens_that_one_process_drops(micro_batched, family, method):
    """The capacity is one of a micro batch on a rank: two ranks drop what two micro batches drop."""
    capacity = ("--moe_expert_capacity_factor", "0.75")
    alone = micro_batched(family, *TWICE, *capacity)
    several = micro_batched(family, *method, *capacity, "--nproc", "2")
    assert losses(several)[0] == pytest.approx(losses(alone)[0], rel=2e-5)
    records = [metrics.read(out / metrics.FILE) for out in (several, alone)]
    shares = [[record["dropped_share"] for record in run if "loss" in record] for run in records]
    assert shares[0] == pytest.approx(shares[1], abs=2e-3) and 0.25 <= min(shares[0]) < 0.9
    of_evaluation = [record["eval_dropped_share"] for record in records[0] if "eval_loss" in record]
    assert of_evaluation and all(0 < share < 1 for share in of_evaluation), of_evaluation


@pytest.mark.slow
@pytest.mark.parametrize("case", SHARE_EXPERTS, ids=lambda case: " ".join(map(str, case)))
def test_ranks_share_a_model_with_experts(micro_batched, case):
    """Loss and weights are those of one process with the same micro batches, of which routers have a loss."""
    family, ranks, *flags = case
    alone, several = micro_batched(family, *TWICE), micro_batched(family, *flags, "--nproc", str(ranks))
    expected, shared = losses(alone)[0], losses(several)[0]
    assert shared == pytest.approx(expected, rel=2e-5)
    weights, wanted = (load_file(folder / "checkpoint-3/model.safetensors") for folder in (several, alone))
    assert weights.keys() == wanted.keys()
    for name, values in wanted.items():  # each step moves a weight by about the learning rate
        assert np.sqrt(np.square(weights[name] - values).mean()) < 0.01 * float(RUN["learning_rate"]), name
    config, same = ((folder / "checkpoint-3/config.json").read_text() for folder in (several, alone))
    assert config == same


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method"),
    [
        *((family, (*TP, *TWICE)) for family in ("llama", "qwen2", "ernie4_5", "qwen3", "qwen3_moe")),
        *((family, (*TP, *TWICE, *SWITCHES)) for family in ("qwen3", "ernie4_5")),
        *((family, (*TP, *SP, *TWICE)) for family in ("deepseek_v3", "ernie4_5_moe")),
        ("qwen3_moe", (*EP, *S1)),
        *((family, (*TP, *SP, *EP, *TWICE)) for family in ("ernie4_5_moe", "deepseek_v3")),
        ("qwen3_moe", ("--nproc", "8", *TP, *SP, *PP, *EP, *S1)),
    ],
)
def test_ranks_share_a_model_in_bfloat16(micro_batched, family, method):
    """Its gradients are summed in float32, beside those of Paddle."""
    firsts = []
    for flags in (TWICE, ("--nproc", "2", *method)):
        first = metrics.read(micro_batched(family, "--bf16", *flags) / metrics.FILE)[0]
        firsts.append([first["loss"], first["grad_norm"]])
    assert firsts[1] == pytest.approx(firsts[0], rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "method", "alone"),
    [
        *((f, (*TP, *SP, *TWICE), TWICE) for f in ("qwen3_moe", "ernie4_5_moe", "deepseek_v3")),
        *((f, (*PP, *TWICE), TWICE) for f in ("qwen3_moe", "ernie4_5_moe", "deepseek_v3")),
        ("qwen3_moe", (*EP, *S1, *HALF), (*HALF, *TWICE)),
        ("ernie4_5_moe", (*EP, *HALF), (*HALF, *TWICE)),
        ("deepseek_v3", (*TP, *SP, *EP, *TWICE), TWICE),
        ("qwen3_moe", ("--nproc", "4", *PP, *EP, *HALF, *TWICE), TWICE),
    ],
)
def test_shared_experts_continue_from_a_checkpoint(run_python, inputs, tmp_path, family, method, alone):
    """On as many ranks bit for bit; one process reads the same files, in Hugging Face's layout."""
    losses_of = {}
    steps = ("--save_steps", "2", "--max_steps", "4", "--eval_steps", "4")
    run = [*inputs(family), "--no_bf16", *steps]
    shared = ("--nproc", "2", *method)
    half = ("--resume_from_checkpoint", tmp_path / "whole/checkpoint-2")
    for name, more in {"whole": shared, "same": (*shared, *half), "one": (*alone, *half)}.items():
        done = run_python(SCRIPT, *run, *more, "--output_dir", tmp_path / name)
        assert done.returncode == 0, done.stdout + done.stderr
        losses_of[name] = losses(tmp_path / name)[0]
    for name in ("model.safetensors", "optimizer.safetensors"):
        whole, same = (tmp_path / folder_name / "checkpoint-4" / name for folder_name in ("whole", "same"))
        assert whole.read_bytes() == same.read_bytes(), name
    assert [losses_of["one"][step] for step in (3, 4)] == pytest.approx(
        [losses_of["whole"][step] for step in (3, 4)], rel=2e-5
    )


@pytest.mark.slow
def test_expert_parallelism_needs_fused_moe_layers(run_python, inputs, tmp_path):
    capacity = {**fields("ernie4_5_moe"), "moe_capacity": [1, 1, 1]}  # the gate drops tokens
    model = run_inputs.inputs(tmp_path, **capacity)["model_name_or_path"]
    more = ("--model_name_or_path", model, *EP, "--nproc", "2", "--output_dir", tmp_path / "out")
    done = run_python(SCRIPT, *inputs("ernie4_5_moe"), *more)
    assert done.returncode == 2 and "moe_capacity [1, 1, 1]" in done.stderr, done.stderr


@pytest.mark.slow
def test_stages_with_spread_experts_are_sequence_parallel(run_python, inputs, tmp_path):
    stages = (*TP, *PP, "--nproc", "4", "--output_dir", tmp_path)
    done = run_python(SCRIPT, *inputs("ernie4_5_moe"), *stages)
    assert done.returncode == 2
    assert "needs --sequence_parallel" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "deepseek_v3"])
def test_stages_without_fused_operators_compute_the_same(micro_batched, family):
    stages = (*PP, *TWICE, "--nproc", "2")
    unfused = ("--disable_fused_options", "true")
    fused, plain = (losses(micro_batched(family, *stages, *more)) for more in ((), unfused))
    for fused_loss, other in zip(fused, plain, strict=True):
        assert other == pytest.approx(fused_loss, rel=2e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_a_micro_batch_without_labels_has_no_gradient(family):
    """The criterion divides by the number of its labels."""
    computed = []
    of_stages = model_class(family, in_stages=True)._criterion_pipe_cls or CriterionLayerPipe
    upstream = of_stages(config_class(family)(vocab_size=8))

    def criterion(logits, labels):
        computed.append(upstream(logits, labels))
        return computed[-1]

    model = SimpleNamespace(_loss_fn=[criterion])
    mean_over_rows(model)
    logits = paddle.randn([2, 3, 8])
    logits.stop_gradient = False
    nothing, half = [[-100] * 3] * 2, [[1, 2, 3], [-100] * 3]
    loss = model._loss_fn[0](logits, paddle.to_tensor(nothing))
    loss.backward()
    assert float(loss) == 0 and (logits.grad == 0).all() and paddle.isfinite(computed[0])
    assert float(model._loss_fn[0](logits, paddle.to_tensor(half))) == pytest.approx(float(computed[1]) / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "field", "size"),
    [("qwen3_moe", "moe_intermediate_size", 63), ("ernie4_5_moe", "moe_num_experts", 3)],
)
def test_a_degree_must_divide_the_experts(run_python, inputs, tmp_path, family, field, size):
    sizes = run_inputs.LLAMA | fields(family) | {field: size}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    shared = ("--model_name_or_path", tmp_path, *TP, "--nproc", "2", "--output_dir", tmp_path / "out")
    done = run_python(SCRIPT, *inputs("llama"), *shared)
    assert done.returncode == 2
    assert f"has {field} {size}" in done.stderr


@pytest.mark.slow
def test_the_last_norm_of_a_pipeline_has_no_weight_decay(run_python, inputs, tmp_path):
    """A step that would halve every weight with decay, and moves one without by at most 5e-3."""
    one_step = ("--max_steps", "1", "--save_steps", "1", "--eval_steps", "1", "--weight_decay", "100")
    stages = ("--pipeline_parallel_degree", "2", "--nproc", "2")
    done = run_python(SCRIPT, *inputs("llama"), "--no_bf16", *one_step, *stages, "--output_dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    with safe_open(tmp_path / "checkpoint-1/model.safetensors", "np") as file:
        for name in ("model.layers.1.input_layernorm.weight", "model.norm.weight"):
            assert abs(file.get_tensor(name) - 1).max() < 6e-3, name


@pytest.fixture(scope="module")
def conversations(tmp_path_factory):
    """A file of short conversations."""
    file = tmp_path_factory.mktemp("conversations") / "chat.jsonl"
    turns = [
        ("Who are you?", "A test."),
        ("What is 2+2?", "4."),
        ("A color?", "Blue, or red, or green."),
    ] * 20
    file.write_text(
        "".join(
            json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]})
            + "\n"
            for q, a in turns
        )
    )
    return file


def tuned(run_python, finished, conversations, out, *more):
    _, base = finished("qwen3", "--no_bf16")
    arguments = RUN | {
        "stage": "sft",
        "input_dir": conversations,
        "model_name_or_path": base / f"checkpoint-{STEPS}",
        "max_seq_length": 64,
        "learning_rate": "1e-3",
        "output_dir": out,
    }
    done = run_python(SCRIPT, *run_inputs.words(arguments), "--no_bf16", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return losses(out)[0], done.stdout


LORA, PACKED = ("--finetuning_type", "lora"), ("--packing", "first_fit")
FLOAT16 = ("--fp16", "--scale_loss", "262144")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [PACKED, LORA, FLOAT16, (*LORA, *PACKED, *FLOAT16), (*LORA, "--sharding", "stage1", "--nproc", "2")],
    ids=" ".join,
)
def test_the_loss_without_logits_trains_as_with_them(run_python, finished, conversations, tmp_path, method):
    precision = "float16" if "--fp16" in method else "float32"
    losses_and_norms = []
    for name, more in {
        "without": SWITCHES[2:],
        "with": (SWITCHES[2], "false"),
        "unfused": ("--disable_fused_options", "--padding", "none" if "--packing" in method else "longest"),
    }.items():
        more = (*method, *more, "--adam_epsilon", ADAM_EPSILON)
        trained, stderr = tuned(run_python, finished, conversations, tmp_path / name, *more)
        assert (f"ran      linear_cross_entropy {precision}: ascend" in stderr) is (name == "without"), stderr
        losses_and_norms.append([*trained.values()])
    here, there, unfused = losses_and_norms
    assert_trained_alike("losses", here, there, [unfused], ROUNDING[precision])


@pytest.mark.slow
def test_packed_conversations_train_as_without_fused_operators(run_python, finished, conversations, tmp_path):
    run = functools.partial(tuned, run_python, finished, conversations)
    fused, _ = run(tmp_path / "fused", *PACKED)
    upstream, _ = run(tmp_path / "upstream", *PACKED, "--disable_fused_options", "--padding", "none")
    assert fused[STEPS] < fused[1] - 0.3
    assert [fused[step] for step in (1, 2, 3)] == pytest.approx(
        [upstream[step] for step in (1, 2, 3)], rel=2e-5
    )


@pytest.mark.slow
def test_lora_trains_and_its_merged_model_generates(run_python, finished, conversations, tmp_path):
    trained, _ = tuned(run_python, finished, conversations, tmp_path / "out", *LORA)
    assert trained[STEPS] < trained[1] - 0.1
    merged = tmp_path / "out" / "merged"
    done = run_python(
        ROOT / "scripts/generate.py", merged, "--prompt", "Who are you?", "--chat", "--max_new_tokens", "4"
    )
    assert done.returncode == 0 and "fused operators: attention 2 of 2" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model_type", "mistral"), "--model_type is 'mistral', but must be llama, "),
        (("--enable_auto_parallel", "true"), "this environment has PaddleFormers"),
        (("--overlap", "auto"), "the extra paddlenlp"),
        (("--recompute_granularity", "full"), "--recompute_granularity "),
        (("--nproc", "2", "--context_parallel_degree", "2"), "--context_parallel_degree"),
        (("--nproc", "2", "--sep_parallel_degree", "2"), "this environment has PaddleFormers"),
        (("--nproc", "2", *EP, *TP), "set --sequence_parallel true"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(run_python, tmp_path, arguments, sentence):
    done = run_python(SCRIPT, *arguments, "--output_dir", tmp_path / "out")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert sentence in line
