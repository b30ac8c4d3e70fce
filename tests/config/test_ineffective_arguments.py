"""Arguments that change nothing in a run are named, with the reason; PaddleNLP's script is accepted."""

import shlex

import pytest

from llm_npu import config
from llm_npu.config.parallel_checks import DEGREES, UNSUPPORTED_PARALLELISM
from llm_npu.training.model import config_for

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--tensor_parallel_degree", "4", "--sharding", "stage1"], ["sharding", "tensor_parallel_degree"]),
        (["--tensor_parallel_degree", "1", "--sequence_parallel", "0", "--sharding", ""], []),
        (["--scale_loss", "1024"], ["scale_loss"]),
        (["--scale_loss", "1024", "--fp16"], []),
        (["--fp16_opt_level", "O2"], []),
        (["--fp16_opt_level", "O2", "--no_bf16"], ["fp16_opt_level"]),
        (["--amp_master_grad", "--fp16_opt_level", "O1"], ["amp_master_grad"]),
        (["--warmup_ratio", "0.2", "--warmup_steps", "3"], ["warmup_ratio"]),
        (["--warmup_steps", "3", "--lr_scheduler_type", "constant"], ["warmup_steps"]),
        (["--min_learning_rate", "0", "--lr_scheduler_type", "polynomial"], ["min_learning_rate"]),
        (["--num_train_epochs", "3"], ["num_train_epochs"]),
        (["--num_train_epochs", "3", "--max_steps", "-1"], []),
        (["--eval_steps", "3", "--do_eval", "false"], ["eval_steps"]),
        (["--per_device_eval_batch_size", "2"], []),
        (["--per_device_eval_batch_size", "2", "--do_eval", "false"], ["per_device_eval_batch_size"]),
        (["--pipeline_parallel_degree", "2", "--per_device_eval_batch_size", "2"],
         ["pipeline_parallel_degree"]),
        (["--pipeline_parallel_degree", "2", "--per_device_eval_batch_size", "2", "--nproc", "2"],
         ["per_device_eval_batch_size"]),
        (["--save_steps", "3", "--save_strategy", "no"], ["save_steps"]),
        pytest.param(["--recompute_granularity", "full"], ["recompute_granularity"],
                     marks=pytest.mark.paddlenlp),
        pytest.param(["--recompute_granularity", "full", "--recompute"], [], marks=pytest.mark.paddlenlp),
        (["--use_fast_layer_norm", "--enable_linear_fused_grad_add"],
         ["enable_linear_fused_grad_add", "use_fast_layer_norm"]),
        (["--enable_linear_fused_grad_add", "false"], []),
        (["--disable_fused_options", "--use_fused_rope", "--no_use_fused_swiglu"], ["use_fused_rope"]),
        (["--use_fused_moe"], ["use_fused_moe"]),
        pytest.param(["--use_fused_moe", "--model_type", "mixtral"], [], marks=pytest.mark.paddlenlp),
        pytest.param(["--fuse_attention_qkv", "--model_type", "mistral"], ["fuse_attention_qkv"],
                     marks=pytest.mark.paddlenlp),
        pytest.param(["--fuse_attention_qkv", "--model_type", "qwen2"], [], marks=pytest.mark.paddlenlp),
        pytest.param(["--fuse_attention_qkv", "--no_fuse_attention_ffn", "--enable_auto_parallel"],
                     ["fuse_attention_qkv"], marks=pytest.mark.paddlenlp),
        (["--hidden_dropout_prob", "0.1"], ["hidden_dropout_prob"]),
        (["--lora_rank", "4", "--lora_target", "o_proj"], ["lora_rank", "lora_target"]),
        (["--chat_template", "a.jinja", "--padding", "longest"], ["chat_template", "padding"]),
        (["--reset_attention_mask"], []),
        (["--reset_attention_mask", "--packing", "first_fit"], ["reset_attention_mask"]),
        (["--dpo_beta", "0.2", "--label_smoothing", "0.1"], ["dpo_beta", "dpo_label_smoothing"]),
        (["--dataloader_num_workers", "1"], ["dataloader_num_workers"]),
        (["--dataloader_num_workers", "0"], []),
        (["--unified_checkpoint", "1", "--load_best_model_at_end", "--save_steps", "100"],
         ["load_best_model_at_end", "unified_checkpoint"]),
    ],
)  # fmt: skip
def test_arguments_without_effect_are_named(argv, names):
    ineffective = config.read(argv).ineffective()
    assert [name for name, _ in ineffective] == names
    assert all(why for _, why in ineffective)


@pytest.mark.paddlenlp
def test_every_flag_named_in_a_table_exists():
    assert not {*DEGREES, *UNSUPPORTED_PARALLELISM} - config.flags().keys()


@pytest.mark.paddlenlp
def test_arguments_of_paddlenlps_npu_script_are_accepted():
    """The flags of PaddleNLP's llm/npu/llama/llama_npu_opt_ppt.sh, all but the tokenizer on a hub."""
    flags = shlex.split(
        "--model_name_or_path meta-llama/Llama-2-13b --input_dir ./pre-data --output_dir ./output "
        "--split 949,50,1 --max_seq_length 4096 --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 32 --per_device_eval_batch_size 1 --use_flash_attention 1 "
        "--use_fused_rms_norm 1 --virtual_pp_degree 1 --learning_rate 0.00001 --min_learning_rate 0.000001 "
        "--max_steps 800 --decay_steps 2000 --save_steps 2000 --seed 100 "
        "--weight_decay 0.01 --warmup_steps 20 --max_grad_norm 1.0 --logging_steps 1 "
        "--dataloader_num_workers 1 --eval_steps 1001 "
        "--tensor_parallel_degree 4 --disable_tqdm true --continue_training 0 --do_train --device npu "
        "--enable_linear_fused_grad_add false --fuse_attention_qkv true --fuse_attention_ffn true "
        "--use_fused_rope true --recompute_use_reentrant true --data_cache ./data_cache --bf16 "
        "--fp16_opt_level O2 --amp_master_grad --load_sharded_model true --save_sharded_model true "
        "--pipeline_parallel_degree 1 --ignore_data_skip 0 --force_reshard_pp true --sequence_parallel 1 "
        "--pipeline_parallel_config disable_partial_send_recv --sharding stage1 --sharding_parallel_degree 2"
    )
    run = config.parse(flags)
    named = {name for name, _ in run.ineffective}
    assert run.training.dataloader_num_workers == 0  # a worker would be forked, and use the device there
    assert {"tensor_parallel_degree", "sharding", "sequence_parallel", "recompute_use_reentrant"} <= named
    assert (
        not {"learning_rate", "decay_steps", "bf16", "virtual_pp_degree", "enable_linear_fused_grad_add"}
        & named
    )
    assert run.notes == ("--use_flash_attention is read as --use_npu_fusion_attention",)
    llama = config_for(run)
    assert (llama.hidden_size, llama.num_hidden_layers, llama.seq_length) == (5120, 40, 4096)


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], []),
        (["--tensor_parallel_degree", "2"], ["sharding"]),
        (["--sharding_parallel_degree", "2"], []),
        (["--sharding_parallel_degree", "1"], ["sharding"]),
    ],
)
def test_sharding_among_no_processes_is_named(argv, names):
    """PaddleNLP turns it off where the other degrees leave no process to share with."""
    arguments = config.read(["--nproc", "2", "--sharding", "stage1", *argv])
    assert [name for name, _ in arguments.ineffective()] == names
