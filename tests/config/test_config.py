"""Arguments: command line, files, defaults and refusals."""

import json

import pytest

from llm_npu import config
from llm_npu.config.formats import split_weights

pytestmark = pytest.mark.sampled


def refused(argv, *words):
    with pytest.raises(ValueError) as caught:
        config.read(argv)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def with_paddlenlp(flags, *words):
    return pytest.param(flags.split(), words, marks=pytest.mark.paddlenlp)


def test_defaults_train_a_small_llama_in_bf16_with_fused_operators():
    run = config.parse([])
    assert (run.model.model_name_or_path, run.data.input_dir, run.device) == ("llama-tiny", None, "npu")
    training = run.training
    assert (training.max_steps, training.bf16, training.fp16, training.fp16_opt_level) == (
        200,
        True,
        False,
        "O2",
    )
    assert training.amp_master_grad
    switches = run.fused.switches()
    decided_later = [switches.pop(f"use_fused_{name}") for name in ("linear_cross_entropy", "add_rms_norm")]
    assert decided_later == [None, None]
    assert all(switches.values()) and run.notes == ()
    assert run.model.fuse_attention_qkv and run.model.fuse_attention_ffn
    assert training.do_train and training.do_eval and not training.recompute
    assert run.explicit == {}
    assert run.ineffective == ()


@pytest.mark.parametrize(
    "name", ["npu", "npu:0", "npu:12", "npu:card", "virtual_npu", "virtual_npu:3", "cpu"]
)
def test_device_is_read_from_flag_and_file(name, tmp_path):
    assert config.read(["--device", name]).early.device == name
    assert config.read([f"--device={name}"]).early.device == name
    assert config.read(["--device", "cpu", "--recompute", "--device", name]).early.device == name
    for file, text in (("a.yaml", f'device: "{name}"\n'), ("a.json", json.dumps({"device": name}))):
        (tmp_path / file).write_text(text)
        assert config.read([str(tmp_path / file)]).early.device == name
        assert config.read([str(tmp_path / file), "--device", "npu:3"]).early.device == "npu:3"
        run = config.parse([str(tmp_path / file)])
        assert run.device == name
        special = {"npu:card": "npu", "virtual_npu": "npu", "virtual_npu:3": "npu:3"}
        assert run.training.device == special.get(name, name)


@pytest.mark.parametrize(
    "name", ["gpu", "npu:", "npu:x", "virtual", "virtual_npu:", "", "NPU", "npu:-1", "npu:٣"]
)
def test_unknown_devices_are_refused(name):
    with pytest.raises(ValueError, match="npu, npu:N, npu:card, virtual_npu, virtual_npu:N or cpu"):
        config.read(["--device", name])
    refused(["--device"], "--device: expected one argument")


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("--max_stps", "--max_steps"),
        ("--max-steps", "--max_steps"),
        ("--lerning_rate", "--learning_rate"),
        ("--use_fused_swiglo", "--use_fused_swiglu"),
        ("--confg", "--config"),
        ("--inputdir", "--input_dir"),
        ("--max_step", "--max_steps"),  # an abbreviation is no name either
    ],
)
def test_misspelt_names_are_refused_with_the_nearest(written, nearest, tmp_path):
    refused([written, "1"], written, f"did you mean {nearest}?")
    refused([f"{written}=1"], f"did you mean {nearest}?")
    file = tmp_path / "a.json"
    file.write_text(json.dumps({written.removeprefix("--"): 1}))
    refused([str(file)], f"did you mean {nearest}?")


def test_names_far_from_all_others_are_refused():
    refused(["--qqqqqqqqqqqq", "1"], "--qqqqqqqqqqqq is not an argument")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max_steps", "abc"], ["--max_steps", "abc"]),
        (["--max_steps"], ["--max_steps", "expected one argument"]),
        (["--bf16", "perhaps"], ["--bf16", "perhaps"]),
        (["--no_bf17"], ["--no_bf17", "did you mean --no_bf16?"]),
        (["--seed", "1", "stray"], ["'stray'", "flag"]),
        (["--bf16", "--fp16"], ["--bf16", "--fp16", "choose one"]),
        (["--max_steps", "0"], ["--max_steps is 0"]),
        (["--max_steps", "-5"], ["--max_steps is -5"]),
        (["--max_steps", "-1", "--num_train_epochs", "0"], ["nothing to train"]),
        (["--learning_rate", "-1e-3"], ["--learning_rate"]),
        (["--learning_rate", "nan"], ["--learning_rate is nan"]),
        (["--learning_rate", "inf"], ["--learning_rate is inf"]),
        (["--min_learning_rate", "1"], ["--min_learning_rate 1.0 is greater than --learning_rate"]),
        (["--warmup_steps", "300"], ["300 steps", "step 200", "--max_steps"]),
        (["--warmup_steps", "30", "--decay_steps", "20"], ["step 20", "--decay_steps"]),
        (["--warmup_ratio", "1.5"], ["--warmup_ratio"]),
        (["--lr_scheduler_type", "polynomial", "--lr_end", "0.002"], ["--lr_end is 0.002", "below"]),
        (["--peak_tflops", "0"], ["--peak_tflops is 0"]),
        (["--peak_tflops", "ascend910b"], ["--peak_tflops", "did you mean ascend910b"]),
        (["--dump_tensors", "3:1"], ["--dump_tensors is 3:1"]),
        (["--compare_with", "native"], ["--compare_with", "composed or upstream"]),
        (["--compare_with", "upstream", "--disable_fused_options"], ["--compare_with", "this run has none"]),
        with_paddlenlp("--check_nan_inf --enable_auto_parallel", "--check_nan_inf", "--enable_auto_parallel"),
        (["--gradient_accumulation_steps", "0"], ["--gradient_accumulation_steps is 0"]),
        (["--per_device_train_batch_size", "0"], ["--per_device_train_batch_size"]),
        (["--max_seq_length", "0"], ["--max_seq_length"]),
        (["--adam_beta2", "1"], ["--adam_beta2", "below 1"]),
        (["--max_evaluate_steps", "0"], ["--max_evaluate_steps"]),
        (["--evaluation_strategy", "epoch"], ["--evaluation_strategy is 'epoch'", "--eval_steps"]),
        (["--save_strategy", "epoch"], ["--save_strategy is 'epoch'", "--save_steps"]),
        (["--skip_data_intervals", "0", "3"], ["--skip_data_intervals is 0 3", "counted from 1"]),
        (["--skip_data_intervals", "3"], ["--skip_data_intervals is 3", "the first and the last"]),
        (["--skip_data_intervals", "4", "200", "--skip_data_intervals", "1", "3"], ["all of the 200 steps"]),
        (["--lr_scheduler_type", "cosin"], ["cosin", "linear, cosine"]),
        (["--fp16_opt_level", "O3"], ["O3", "O0, O1 or O2"]),
        (["--optim", "sgd"], ["sgd", "must be adamw"]),
        (["--report_to", "visualdl", "mlflow"], ["--report_to is 'mlflow'", "a list of visualdl"]),
        (["--report_to", "none", "wandb"], ["--report_to is 'none'"]),
        (["--data_impl", "lazy"], ["lazy", "must be mmap"]),
        (["--split", "9,x"], ["--split", "9,x"]),
        (["--split", "0,1,0"], ["--split", "nothing for training"]),
        with_paddlenlp(
            "--model_type opt",
            "--model_type is 'opt'",
            "llama, qwen2, mistral, mixtral, qwen2_moe, gpt or gemma",
        ),
        (["--device", "cpu", "--bf16"], ["--bf16", "CPU place"]),
        (["--device", "cpu", "--fp16"], ["--fp16", "CPU place"]),
        with_paddlenlp("--to_static", "--to_static", "--enable_auto_parallel"),
        (["--continue_training"], ["llama-tiny", "preset"]),
        (["--do_eval", "false", "--evaluation_strategy", "steps"], ["--do_eval false contradicts"]),
        (["--do_eval", "--evaluation_strategy", "no"], ["--do_eval true contradicts"]),
        (["--do_train", "false"], ["--do_train", "nothing to do"]),
        with_paddlenlp("--enable_auto_parallel --fp16", "--enable_auto_parallel", "--bf16"),
        with_paddlenlp(
            "--enable_auto_parallel --fp16_opt_level O1", "--enable_auto_parallel", "--fp16_opt_level"
        ),
        with_paddlenlp(
            "--enable_auto_parallel --no_amp_master_grad", "--enable_auto_parallel", "--amp_master_grad"
        ),
        with_paddlenlp("--enable_auto_parallel --packing none", "--enable_auto_parallel", "--packing stream"),
        with_paddlenlp(
            "--enable_auto_parallel --pipeline_parallel_degree 2 --hybrid_parallel_topo_order sharding_first",
            "--hybrid_parallel_topo_order",
            "pp_first",
        ),
        with_paddlenlp(
            "--enable_auto_parallel --to_static --nonfinite skip", "--to_static", "--nonfinite skip"
        ),
        (["--stage", "rlhf"], ["--stage", "pt, sft or dpo"]),
        (["--stage", "dpo", "--dpo_beta", "0"], ["--dpo_beta is 0", "0.001 or more"]),
        (["--stage", "sft"], ["--stage sft needs --input_dir"]),
        (["--stage", "sft", "--input_dir", "x", "--packing", "stream"], ["--packing stream", "first_fit"]),
        (["--packing", "tight"], ["--packing", "tight", "first_fit"]),
        (["--padding", "some"], ["--padding", "none, longest or max_length"]),
        (["--finetuning_type", "qlora"], ["--finetuning_type", "full or lora"]),
        (["--lora_rank", "0"], ["--lora_rank is 0"]),
        (["--finetuning_type", "lora"], ["--finetuning_type lora", "llama-tiny", "preset"]),
        (["--lora_dropout", "1"], ["--lora_dropout", "below 1"]),
    ],
)
def test_values_that_cannot_work_are_refused(argv, words):
    refused(argv, *words)


def test_a_choice_turns_off_the_defaults_against_it():
    assert not config.parse(["--fp16"]).training.bf16
    for argv in (["--bf16", "false"], ["--no_bf16"]):
        training = config.parse(argv).training
        assert not (training.bf16 or training.amp_master_grad)
    assert not config.parse(["--fp16_opt_level", "O1"]).training.amp_master_grad
    assert not config.parse(["--device", "cpu"]).training.bf16
    assert config.parse(["--do_eval", "false"]).training.evaluation_strategy.value == "no"
    assert not config.parse(["--evaluation_strategy", "no"]).training.do_eval
    assert config.parse(["--learning_rate", "1e-5"]).training.min_learning_rate == pytest.approx(1e-6)


def test_samples_by_stage(tmp_path):
    def samples(*argv):
        data = config.parse(argv).data
        return data.packing, data.padding

    sft = ("--stage", "sft", "--input_dir", "x")
    assert samples() == samples("--packing", "true") == ("stream", "longest")
    assert samples("--packing", "false") == samples(*sft) == ("none", "longest")
    assert samples(*sft, "--packing", "true") == samples("--packing", "first_fit") == ("first_fit", "none")
    assert samples(*sft, "--packing", "length_grouped", "--padding", "max_length") == (
        "length_grouped",
        "max_length",
    )
    (tmp_path / "a.yaml").write_text("packing: true\nstage: SFT\ninput_dir: x")
    assert samples(str(tmp_path / "a.yaml")) == ("first_fit", "none")


def test_fine_tuning_has_smaller_learning_rates(tmp_path):
    (tmp_path / "model.safetensors").touch()
    lora = ("--finetuning_type", "lora", "--model_name_or_path", str(tmp_path))

    def rates(*argv):
        training = config.parse(["--stage", "sft", "--input_dir", "x", *argv]).training
        return training.learning_rate, training.min_learning_rate

    assert rates() == pytest.approx((3e-5, 3e-6))
    assert rates(*lora) == pytest.approx((3e-4, 3e-5))
    assert rates("--learning_rate", "1e-3") == pytest.approx((1e-3, 1e-4))
    assert config.parse([]).model.lora_alpha == 16
    assert config.parse(["--lora_rank", "4"]).model.lora_alpha == 8
    assert config.read([*lora, "--lora_rank", "4"]).ineffective() == ()
    refused([*lora, "--continue_training", "false"], "remove --continue_training false")


def test_resume_without_a_folder_means_the_newest_checkpoint(tmp_path):
    def resumed(*argv):
        return config.parse(argv).training.resume_from_checkpoint

    assert resumed() is None
    assert resumed("--resume_from_checkpoint") == resumed("--resume_from_checkpoint", "--bf16") is True
    assert (
        resumed("--resume_from_checkpoint", "folder")
        == resumed("--resume_from_checkpoint=folder")
        == "folder"
    )
    for value, expected in (("true", True), ("false", None), ("null", None), ('"folder"', "folder")):
        (tmp_path / "a.json").write_text(f'{{"resume_from_checkpoint": {value}}}')
        assert resumed(str(tmp_path / "a.json")) == expected
    assert resumed(str(tmp_path / "a.json"), "--resume_from_checkpoint", "false") is None


def test_warmup_is_a_share_of_the_steps_unless_given():
    assert config.parse([]).training.warmup_steps == 20
    assert config.parse(["--max_steps", "5"]).training.warmup_steps == 0
    assert config.parse(["--max_steps", "50", "--warmup_ratio", "0.2"]).training.warmup_steps == 10
    assert config.parse(["--max_steps", "50", "--warmup_steps", "0"]).training.warmup_steps == 0


def test_flags_override_the_file_and_null_leaves_the_default(tmp_path):
    yaml = tmp_path / "run.yaml"
    yaml.write_text(
        "max_steps: 7\nlearning_rate: 1e-4\nbf16: true\nsplit: 8,1,1\nevaluation_strategy: no\n"
        "save_steps: null\namp_custom_white_list: [matmul_v2, elementwise_add]\n"
        "skip_data_intervals: [[1, 2], [5, 6]]\noutput_dir: -odd-\nreport_to: []\n"
    )
    run = config.parse([str(yaml), "--max_steps", "9", "--skip_data_intervals", "3", "4"])
    assert (run.training.max_steps, run.training.learning_rate, run.data.split) == (9, 1e-4, "8,1,1")
    assert run.training.evaluation_strategy.value == "no"
    assert run.training.save_steps == 100
    assert run.training.amp_custom_white_list == ["matmul_v2", "elementwise_add"]
    assert run.training.skip_data_intervals == [[3, 4]]
    assert run.training.output_dir == "-odd-"
    assert "save_steps" not in run.explicit
    assert run.explicit["max_steps"] == 9
    assert config.parse([str(yaml)]).training.skip_data_intervals == [[1, 2], [5, 6]]

    yaml.write_text("split: [949, 50, 1]")
    assert config.parse([str(yaml)]).data.split == "949,50,1"

    same = tmp_path / "run.json"
    same.write_text(json.dumps({"max_steps": 7, "bf16": False, "no_cuda": None}))
    assert config.parse([str(same)]).training.max_steps == 7
    assert not config.parse([str(same)]).training.bf16


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", ["a.json", "not valid JSON"]),
        ("a.yaml", "a: [", ["a.yaml", "not valid YAML"]),
        ("a.json", "[1]", ["must map", "list"]),
        ("a.yaml", "just text", ["must map", "str"]),
        ("a.yaml", "seed: {a: 1}", ["seed is a mapping"]),
        ("a.yaml", "1: 2", ["1 is not an argument"]),
        ("a.yaml", "seed: 1\nseed: 2", ["seed twice"]),
        ("a.json", '{"seed": 1, "seed": 2}', ["seed twice"]),
        ("a.yaml", "seed: true", ["--seed", "'true' is not a whole number"]),
        ("a.yaml", "seed: [1, 2]", ["seed takes one value", "the list [1, 2]"]),
        ("a.json", '{"max_steps": []}', ["max_steps takes one value", "the list []"]),
        ("a.yaml", "split: [949, x]", ["--split is '949,x'"]),
        ("a.yaml", "split: []", ["--split is ''"]),
        ("a.yaml", "no_bf16: true", ["--no_bf16 is not an argument", "did you mean --bf16?"]),
        ("a.toml", "seed = 1", ["a.toml", ".yaml, .yml, .json"]),
        ("a.json", "\udcff", ["a.json", "cannot be read"]),
    ],
)
def test_bad_files_of_arguments_are_refused(tmp_path, name, text, words):
    file = tmp_path / name
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    refused([str(file)], *words)


def test_a_missing_file_is_refused_and_an_empty_one_changes_nothing(tmp_path):
    refused([str(tmp_path / "none.yaml")], "none.yaml", "cannot be read")
    (tmp_path / "empty.yaml").write_text("")
    assert config.parse([str(tmp_path / "empty.yaml")]).explicit == {}
    (tmp_path / "late.yaml").write_text("seed: 1")
    refused(["--bf16", "true", str(tmp_path / "late.yaml")], "late.yaml", "must come before all flags")


def test_split_weights():
    assert split_weights("949,50,1") == pytest.approx((0.949, 0.05, 0.001))
    assert split_weights("3/1") == (0.75, 0.25, 0)
    assert split_weights("1") == (1, 0, 0)
    for bad in ("", "1,2,3,4", "-1,2,3", "nan,1,1", "inf,1,1", "0,0,0", "a"):
        with pytest.raises(ValueError, match="--split"):
            split_weights(bad)
