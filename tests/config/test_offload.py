"""--offload_optimizer and --offload_activations: names and values, and what they are refused with."""

import shlex

import pytest

from llm_npu import config
from llm_npu.config.formats import layer_range


def read(*argv):
    return config.read(list(argv)).values


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        ("", None),
        ("--offload_optimizer", "device"),
        ("--offload_optimizer host", "host"),
        ("--offload_optimizer true", "device"),
        ("--offload_optimizer false", None),
        ("--offload_optim true", "device"),  # PaddleNLP's
        ("--tensorwise_offload_optimizer", "device"),  # PaddleFormers'
    ],
)
def test_values(argv, value):
    assert read(*argv.split()).offload_optimizer == value


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        ("--offload_optimizer disk", "device or host"),
        ("--offload_optimizer --use_fused_adamw false", "--use_fused_adamw false"),
        ("--offload_optimizer --disable_fused_options", "--disable_fused_options"),
        pytest.param("--offload_optimizer --enable_auto_parallel", "auto", marks=pytest.mark.paddlenlp),
        ("--nproc 2 --offload_optimizer --sharding stage2", "--sharding stage2"),
        ("--nproc 2 --offload_optimizer --sharding stage3", "--sharding stage3"),
        ("--recompute --offload_activations 3:1:0", "0:32:2"),
        pytest.param(
            "--recompute --offload_activations --enable_auto_parallel", "auto", marks=pytest.mark.paddlenlp
        ),
        ("--nproc 2 --recompute --offload_activations --sharding stage3", "--sharding stage3"),
        pytest.param(
            "--recompute --offload_activations --recompute_granularity full_attn",
            "--recompute_granularity is full_attn",
            marks=pytest.mark.paddlenlp,
        ),
        pytest.param(
            "--recompute --offload_activations --refined_recompute flash_attn:-1",
            "--refined_recompute",
            marks=pytest.mark.paddlenlp,
        ),
        ("--nproc 2 --sharding 'stage2 offload'", "--sharding stage1 --offload_optimizer"),
    ],
)
def test_refused(argv, key):
    with pytest.raises(ValueError) as caught:
        read(*shlex.split(argv))
    assert key in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "layers"),
    [
        ("", None),
        ("--offload_activations", range(32)),
        ("--offload_activations 3", range(3, 4)),
        ("--offload_activations 0:16", range(16)),
        ("--offload_activations 1:32:2", range(1, 32, 2)),
        ("--offload_recompute_inputs true", range(32)),  # PaddleNLP's
        ("--offload_recompute_inputs false", None),
    ],
)
def test_layers(argv, layers):
    value = read("--recompute", *argv.split()).offload_activations
    assert (value if value is None else range(32)[layer_range(value)]) == layers


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("--offload_optimizer --device cpu", "offload_optimizer"),
        ("--offload_activations --recompute --device cpu", "offload_activations"),
        ("--offload_activations", "offload_activations"),
    ],
)
def test_no_effect(argv, name):
    assert name in dict(config.read(argv.split()).ineffective())
