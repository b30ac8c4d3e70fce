"""The backend report: what the table announces is what runs, and a table that is wrong is found out."""

from dataclasses import replace

import pytest
import run_inputs
from fused_models.comparison import BATCH, LENGTH, loss_and_logits, random_batch
from fused_models.families import BY_NAME, FAMILIES
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM
from places import ROOT

import paddle_fused
import virtual_npu
from llm_npu.config import ModelArguments
from llm_npu.console import backend_report
from llm_npu.models import lora, weights
from llm_npu.surgery import apply_fused_kernels
from llm_npu.surgery.batch import Batch
from llm_npu.surgery.explain import UPSTREAM, Line, explain, grouped, table
from llm_npu.surgery.names import collapsed
from paddle_fused import masks
from paddle_fused.dispatch import OPERATORS

pytestmark = pytest.mark.sampled

SCRIPT = ROOT / "scripts/run_llama_npu.py"
FLOAT32 = ("--bf16", "false")


def batch_for(model, dtype: str, length: int = LENGTH, mask=None) -> Batch:
    return Batch(BATCH, length, dtype, mask)


def announced(model, dtype: str = "bfloat16", length: int = LENGTH, mask=None, **switches) -> list[Line]:
    report = apply_fused_kernels(model, **switches)
    return grouped(explain(model, report, batch_for(model, dtype, length, mask), switches))


def by_operator(lines: list[Line]) -> dict[str, Line]:
    lines_of = {line.operator: line for line in lines}
    assert len(lines_of) == len(lines), lines
    return lines_of


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_table_is_what_runs(family, dtype, on_npu):
    model = family.build(dtype)
    lines = announced(model, dtype)
    paddle_fused.reset_dispatch_log()
    virtual_npu.reset_kernel_record()
    loss, _ = loss_and_logits(family, model, random_batch(), "all")
    loss.backward()
    first, *others = backend_report.proof(lines, paddle_fused.dispatch_log(), virtual_npu.kernel_record())
    assert first.startswith("first step as predicted"), [first, *others]
    (recorded,) = others
    assert recorded.startswith("kernels launched by the device: ")


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "mixtral"])
def test_the_table_is_what_runs_with_lora(name, on_npu):
    family = BY_NAME[name]
    model = lora.wrap(
        family.build("bfloat16"), ModelArguments(finetuning_type="lora", lora_rank=4, lora_alpha=8)
    )
    lines = announced(model)
    assert {"flash_attention", "rms_norm", "swiglu"} <= {line.operator for line in lines}
    paddle_fused.reset_dispatch_log()
    virtual_npu.reset_kernel_record()
    loss, _ = loss_and_logits(family, model, random_batch(), "all")
    loss.backward()
    first, *others = backend_report.proof(lines, paddle_fused.dispatch_log(), virtual_npu.kernel_record())
    assert first.startswith("first step as predicted"), [first, *others]


def test_a_table_of_llama(on_npu):
    model = BY_NAME["llama"].build("bfloat16")
    by_name = by_operator(announced(model, length=64))
    attention, norm = by_name["flash_attention"], by_name["rms_norm"]
    assert attention.layers == "llama.layers.0-1.self_attn" and attention.reason == ""
    assert (attention.backend, attention.mode) == ("ascend", "flash_attention_npu, causal")
    assert norm.layers == ("llama.layers.0-1.{input_layernorm,post_attention_layernorm}, llama.norm")
    assert (norm.backend, norm.computed) == ("ascend", 1.0)
    heading, *rows = table(list(by_name.values()))
    assert heading.split() == ["layers", "operator", "backend", "mode", "computed", "reason"]
    assert len(rows) == len(by_name) and all(row.startswith("llama.") for row in rows)


@pytest.mark.parametrize(
    ("mask", "mode", "computed"),
    [
        (None, "flash_attention_npu, causal", 0.75),  # three of four blocks of 128 x 128
        (masks.documents([[128, 128]] * BATCH), "flash_attention_npu, causal, varlen", 0.5),
        (masks.band(63, 63), "flash_attention_npu, full mask", 1.0),
    ],
    ids=["causal", "documents", "band"],
)
def test_how_much_attention_is_computed(mask, mode, computed, on_npu):
    model = BY_NAME["llama"].build("bfloat16")
    line = by_operator(announced(model, length=256, mask=mask))["flash_attention"]
    assert (line.mode, line.computed) == (mode, computed)
    with paddle_fused.use_backend("native"):
        host = by_operator(announced(model, length=256, mask=mask))["flash_attention"]
    assert host.mode.startswith("pf_flash_attention") and host.computed <= computed
    with paddle_fused.use_backend("composed"):
        plain = by_operator(announced(model, length=256, mask=mask))["flash_attention"]
    assert (plain.backend, plain.computed) == ("composed", 1.0)


def test_reasons(on_npu):
    model = BY_NAME["llama"].build()  # the plugin's operators take no float32
    line = by_operator(announced(model, "float32"))["flash_attention"]
    assert line.backend == "native" and line.reason.startswith("not ascend: ") and "float32" in line.reason
    with paddle_fused.use_backend("ascend", strict=True):
        refused = by_operator(announced(model, "float32"))["flash_attention"]
    assert (refused.backend, refused.computed) == ("none", None) and "float32" in refused.reason


def test_layers_that_are_not_fused(on_npu):
    model = BY_NAME["llama"].build("bfloat16")
    model.llama.layers[0].mlp.forward = lambda x: x
    lines = announced(model, use_fused_rope=False)
    upstream = {line.operator: (line.layers, line.reason) for line in lines if line.backend == UPSTREAM}
    norms, reason = upstream.pop("add_rms_norm")
    assert reason.startswith("off by default: ")
    assert norms == ("llama.layers.0-1.post_attention_layernorm, llama.layers.1.input_layernorm, llama.norm")
    assert upstream == {
        "swiglu": ("llama.layers.0.mlp", "its forward has been replaced on the instance"),
        "rotary": ("llama.layers.0-1.self_attn", "switched off by use_fused_rope"),
    }
    (swiglu,) = [line for line in lines if line.operator == "swiglu" and line.backend != UPSTREAM]
    assert swiglu.layers == "llama.layers.1.mlp"


def test_a_wrong_table_is_found_out(on_npu):
    family = BY_NAME["llama"]
    model = family.build("bfloat16")
    lines = announced(model)
    paddle_fused.reset_dispatch_log()
    with paddle_fused.use_backend("composed"):
        loss_and_logits(family, model, random_batch(), "all")
    verdict, *others = backend_report.proof(lines, paddle_fused.dispatch_log(), [])
    assert verdict.startswith("first step not as predicted")
    assert any(line.startswith("not as predicted: rms_norm bfloat16 by composed") for line in others)
    assert any("not called in this step: rms_norm by ascend rms_norm_npu" in line for line in others)


def step_of_llama(lines_of) -> list[str]:
    """The proof after a step of a fused Llama, for the table ``lines_of(lines)``."""
    family = BY_NAME["llama"]
    model = family.build("bfloat16")
    lines = lines_of(announced(model))
    paddle_fused.reset_dispatch_log()
    virtual_npu.reset_kernel_record()
    loss_and_logits(family, model, random_batch(), "all")
    return backend_report.proof(lines, paddle_fused.dispatch_log(), virtual_npu.kernel_record())


WRONG = {
    "another backend": ("swiglu", {"backend": "native", "mode": "pf_swiglu"}),
    "another mode": ("flash_attention", {"mode": "flash_attention_npu, full mask"}),
    "a composition": ("rms_norm", {"backend": "composed", "mode": ""}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_table_that_was_made_wrong_is_found_out(wrong, on_npu):
    name, changes = WRONG[wrong]
    verdicts = {}

    def changed(lines):
        verdicts.update(by_operator(lines))
        return [replace(line, **changes) if line.operator == name else line for line in lines]

    verdict, _, *others = step_of_llama(changed)
    line = verdicts[name]
    claimed = replace(line, **changes)
    assert verdict.startswith("first step not as predicted")
    assert len(others) == 2, others
    assert others[0].startswith(f"not as predicted: {name} bfloat16 by {line.backend} {line.mode}, ")
    assert (
        others[1] == f"in the table but not called in this step: {name} by {claimed.backend} {claimed.mode}"
    )


@pytest.mark.parametrize("name", ["rms_norm", "flash_attention", "swiglu"])
def test_the_devices_own_record_convicts_a_dispatcher_that_says_what_is_not_so(name, on_npu, monkeypatch):
    operator = OPERATORS[name]
    # Says that the plugin's kernel runs, and computes with others.
    lying = replace(operator.ascend, run=operator.composed.run)
    monkeypatch.setitem(operator.backends, "ascend", lying)
    verdict, launched, *others = step_of_llama(list)
    mode = {"rms_norm": "rms_norm_npu", "flash_attention": "flash_attention_npu, causal"}.get(
        name, "swiglu of "
    )
    assert verdict.startswith("first step not as predicted") and f"{name} by ascend" in verdict
    assert f" {mode.partition(',')[0].split()[0]} " not in launched
    (line,) = others
    prefix = "in the dispatch log but not launched by the device: "
    assert line.startswith(f"{prefix}{name} by ascend {mode}"), line


def test_what_ranks_have_found():
    same, other = ["as predicted", "kernels"], ["not as predicted"]
    assert backend_report.by_rank([same]) == backend_report.by_rank([same, same]) == same
    assert backend_report.by_rank([same, other, same, same]) == [
        "ranks 0,2-3: as predicted",
        "ranks 0,2-3: kernels",
        "rank 1: not as predicted",
    ]


def test_nothing_is_computed_to_make_a_table(on_npu):
    model = BY_NAME["mixtral"].build("bfloat16")
    paddle_fused.reset_dispatch_log()
    virtual_npu.reset_kernel_record()
    announced(model)
    assert paddle_fused.dispatch_log() == []
    computed = {record.name for record in virtual_npu.kernel_record()} - {"empty", "full", "full_int_array"}
    assert not {name for name in computed if "matmul" in name or "norm" in name or "attention" in name}


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["norm"], "norm"),
        (["layers.0.mlp", "layers.1.mlp", "layers.3.mlp", "norm"], "layers.0-1,3.mlp, norm"),
        (["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"], "a.0-1.b.0-1"),
        (["a.0.b", "a.1.b", "c", "a.0.d", "a.1.d", "e"], "a.0-1.{b,d}, c, e"),
        (["a.0.b.0", "a.0.b.1", "a.1.b.5"], "a.0.b.0-1, a.1.b.5"),
    ],
)
def test_names_of_many_layers(paths, name):
    assert collapsed(paths) == name


RUNS = {
    "documents": ["--packing", "first_fit"],
    "float16": ["--fp16", "--scale_loss", "1024"],
    "O1": ["--fp16_opt_level", "O1", "--amp_master_grad", "false"],
    "recompute": ["--recompute", "true"],
    "LoRA": ["--finetuning_type", "lora", "--lora_rank", "4"],
    "tensor parallel": ["--nproc", "2", "--tensor_parallel_degree", "2", "--sequence_parallel", "true"],
    "pipeline": ["--nproc", "2", "--pipeline_parallel_degree", "2"],
    "auto-parallel": ["--nproc", "2", "--enable_auto_parallel", "--tensor_parallel_degree", "2", *FLOAT32],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [pytest.param(RUNS[name], id=name, marks=[pytest.mark.slow] * (name != "documents")) for name in RUNS],
)
def test_runs_are_as_their_tables_say(arguments, run_python, tmp_path):
    inputs = run_inputs.inputs(tmp_path)
    if "lora" in arguments:  # which begins with weights that there are
        config = LlamaConfig(**{**run_inputs.LLAMA, "tie_word_embeddings": False})
        weights.save(LlamaForCausalLM(config), inputs["model_name_or_path"])
    fields = {
        **inputs,
        "output_dir": tmp_path / "out",
        "max_seq_length": 32,
        "max_steps": 2,
        "split": "80,20,0",
    }
    fields |= {"fuse_attention_qkv": "false", "fuse_attention_ffn": "false", "do_eval": "false"}
    fields["evaluation_strategy"] = "no"
    done = run_python(SCRIPT, *run_inputs.words(fields), *arguments, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("backend "))
    assert lines[start].split()[1:] == ["layers", "operator", "backend", "mode", "computed", "reason"]
    assert any("flash_attention" in line for line in lines[start : start + 6])
    verdicts = [line for line in lines if "first step" in line]
    begins = ["backend  "]
    if "--pipeline_parallel_degree" in arguments:  # whose stages do different things
        begins = ["backend  rank 0: ", "         rank 1: "]
    predictions = [f"{begin}first step as predicted" for begin in begins]
    assert len(verdicts) == len(predictions) and all(map(str.startswith, verdicts, predictions)), lines
