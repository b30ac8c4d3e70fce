"""The tools beside PaddleFormers: what works, and what is refused in a sentence before anything is built."""

import importlib.util
import re

import numpy as np
import paddle
import pytest
import run_inputs
from places import ROOT

from llm_npu import config
from llm_npu.core.errors import UserError
from llm_npu.formers import switches
from llm_npu.inference import export
from llm_npu.models import families, other_library
from llm_npu.models.families import config_class, model_class
from llm_npu.numerics.compare_backends import COMPOSED, other_backend
from llm_npu.numerics.nan_inf import NonFiniteCheck
from llm_npu.plan import search
from llm_npu.plan.layout import Layout
from llm_npu.plan.shape import ModelShape
from llm_npu.surgery import apply_fused_kernels

SCRIPT = ROOT / "scripts/run_llama_npu.py"
PLAN = ("-m", "llm_npu.plan", "--model_name_or_path", "meta-llama/Llama-2-7b", "--cards", 8)
SIZES = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
FAMILIES = {"llama": SIZES, "qwen3_moe": SIZES | EXPERTS}


def test_the_planner_names_no_change_that_the_trainer_refuses(run_python):
    done = run_python(*PLAN, "--tensor_parallel_degree", 2)
    assert done.returncode == 0, done.stderr
    assert "Time per step" in done.stdout and "overlap" not in done.stdout


@pytest.mark.sampled
@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_planner_searches_pipelines_and_tensor_parallelism_of_every_family(name):
    """Tensor parallelism is planned unless every process holds the whole experts."""
    shape, experts = ModelShape.of(families.FAMILIES[name].tiny), families.FAMILIES[name].experts
    layouts = list(search.layouts(shape, Layout(cards=8, global_batch_size=16, max_seq_length=512), 8))
    assert max(layout.pipeline_parallel_degree for layout in layouts) > 1
    splits = experts is None or experts.tensor_parallel in ("size", "number")
    assert (max(layout.tensor_parallel_degree for layout in layouts) > 1) == splits
    of_experts = [layout for layout in layouts if layout.expert_parallel_degree > 1]
    assert any(layout.pipeline_parallel_degree > 1 for layout in of_experts) == (experts is not None)
    assert any(layout.sequence_parallel for layout in of_experts) == (experts is not None and splits)
    for layout in layouts:
        layout.check(shape)


def test_the_trainer_takes_what_the_planner_proposes():
    """It has no --recompute_granularity."""
    shape = ModelShape.of("llama2-7b")
    layouts = list(search.layouts(shape, Layout(cards=2, global_batch_size=2), cards_per_server=8))
    assert {layout.recompute for layout in layouts} == {False, True}
    for layout in layouts:
        proposed = config.parse(layout.arguments(shape)).training
        assert bool(proposed.recompute) == layout.recompute


def test_the_planner_takes_no_granularity_of_recompute(run_python):
    done = run_python(*PLAN, "--recompute", "--recompute_granularity", "core_attn")
    assert done.returncode == 2
    assert "recompute_granularity is 'core_attn'" in done.stderr and "full" in done.stderr


def test_the_planner_takes_no_overlap(run_python):
    done = run_python(*PLAN, "--tensor_parallel_degree", 2, "--overlap", "mc2")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--overlap needs PaddleNLP" in line
    assert "PaddleNLP only" in " ".join(run_python(*PLAN, "--help").stdout.split())


def test_help_says_which_flags_are_for_paddlenlp_only(run_python):
    help_text = " ".join(run_python(SCRIPT, "--help").stdout.split())
    for name, instead in other_library.ONLY_PADDLENLP.items():
        about = help_text.rpartition(f" --{name} ")[2]
        assert f"PaddleNLP only; with PaddleFormers, {instead}." in about[:400], name
    assert help_text.count("PaddleNLP only") == len(other_library.ONLY_PADDLENLP)
    assert "Keep the layers of PaddleFormers" in help_text


@pytest.mark.parametrize("name", other_library.ONLY_PADDLENLP)
def test_flags_for_paddlenlp_only_are_refused(name):
    value = ["auto"] if name == "overlap" else []
    with pytest.raises(UserError, match=rf"--{name} needs PaddleNLP"):
        config.read([f"--{name}", *value])


def test_a_tracker_without_its_package_is_refused():
    assert importlib.util.find_spec("swanlab") is None, "this environment has it; take another tracker"
    with pytest.raises(UserError, match="--report_to swanlab "):
        config.read(["--report_to", "swanlab"])


def test_a_switch_of_cuda_has_no_effect_in_a_file(tmp_path):
    (tmp_path / "job.yaml").write_text("use_fast_layer_norm: true")
    (sentence,) = switches.without_effect([str(tmp_path / "job.yaml")])
    assert sentence.startswith("use_fast_layer_norm: True does nothing. ")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3-moe-tiny", "ernie4.5-moe-tiny", "deepseek-v3-tiny"])
def test_a_dry_run_with_experts_has_the_memory_of_the_real_run(run_python, tmp_path, model):
    """Up to the tokens of single experts, which the dry run assumes to be equally many."""
    peaks = []
    for dry in "01":
        flags = {"model_name_or_path": model, "max_steps": 2, "max_seq_length": 64, "do_eval": "false"}
        words = run_inputs.words(flags | {"output_dir": tmp_path / dry})
        done = run_python(SCRIPT, *words, VIRTUAL_NPU_DRY=dry)
        assert done.returncode == 0, done.stderr
        (peak,) = re.findall(r"^memory +peak ([\d,]+) MiB$", done.stdout, re.MULTILINE)
        peaks.append(int(peak.replace(",", "")))
    assert peaks[1] == pytest.approx(peaks[0], rel=0.03)


def test_messages_name_the_library_that_is_installed():
    with pytest.raises(UserError, match=r"--deepspeed .* stage3, as in PaddleFormers, and --nproc"):
        config.read(["--deepspeed", "zero.json"])
    unread = config.ineffective_variables("virtual", {"MC2": "1"})
    assert unread == [("MC2", "PaddleFormers reads FLAGS_NPU_MC2")]


@pytest.mark.slow
def test_a_run_without_fused_operators_says_whose_layers_it_has(finished):
    done, _ = finished("llama", "--disable_fused_options")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("fused    none"))
    assert "PaddleFormers" in line


def test_an_export_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(UserError, match="cannot be captured as one program; generate with"):
        export.export(tmp_path / "none", tmp_path / "served")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healthy_step_passes_the_check_fused_and_composed(on_npu, family):
    """The composed attention expands the infinity of its mask."""
    model = model_class(family)(config_class(family)(**FAMILIES[family]))
    apply_fused_kernels(model, strict=True)
    ids = paddle.to_tensor(np.arange(24).reshape(2, 12))

    def step():
        loss = model(input_ids=ids, labels=ids)[0]
        loss.backward()
        return float(loss)

    check = NonFiniteCheck(model.train(), operators=True, backward=True).around(step)
    fused = check()
    with other_backend(model, COMPOSED, {}):
        assert check() == pytest.approx(fused, rel=1e-5)


def test_an_infinity_behind_inputs_by_keyword(on_npu):
    """PaddleFormers' decoder layers give their attention everything by keyword."""
    model = model_class("llama")(config_class("llama")(**FAMILIES["llama"])).train()
    attention = model.model.layers[0].self_attn
    forward = attention.forward

    def spoilt(*args, **kwargs):
        out, *rest = forward(*args, **kwargs)
        return (paddle.log(out - out.abs() - 1), *rest)

    attention.forward = spoilt
    ids = paddle.to_tensor([[3, 4, 5]])
    check = NonFiniteCheck(model, operators=True, backward=True)
    with pytest.raises(UserError, match="keyword arguments"):
        check.around(lambda: model(input_ids=ids))()
