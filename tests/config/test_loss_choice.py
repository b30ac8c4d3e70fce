"""Which runs compute their loss without logits."""

from dataclasses import replace

import pytest

from llm_npu import config
from llm_npu.models import logits
from llm_npu.training.model import LOSS_SWITCH, MEMORY_LIMIT, choose_loss, config_for

pytestmark = pytest.mark.sampled

GIB = 1 << 30
ROWS = ("--max_seq_length", "1024", "--per_device_train_batch_size")
LIMIT_ROWS = (*ROWS, "64")  # 2 GiB with a vocabulary of 8192
LARGE = (*ROWS, "65")


def decided(*argv, on_virtual_npu: bool = True):
    run = config.parse(argv)
    reason = choose_loss(run, config_for(run), on_virtual_npu)
    return run.fused.use_fused_linear_cross_entropy, reason


def test_the_share_of_memory_decides(monkeypatch):
    monkeypatch.delenv(MEMORY_LIMIT, raising=False)
    assert not logits.are_large(GIB // 2, 1) and logits.are_large(GIB // 2 + 1, 1)
    on, reason = decided(*LIMIT_ROWS)
    assert not on and "2,048 MiB" in reason and "65,536 MiB" in reason  # exactly the share
    assert decided(*LARGE) == (True, "")
    monkeypatch.setenv(MEMORY_LIMIT, "32")
    assert decided(*LIMIT_ROWS) == (True, "")
    assert not decided(*LIMIT_ROWS, on_virtual_npu=False)[0]


@pytest.mark.parametrize("value", [True, False])
def test_the_flag_is_stronger(value):
    flag = f"--{LOSS_SWITCH}"
    assert decided(*LARGE, flag, str(value).lower()) == (value, "")
    assert decided(flag, str(value).lower()) == (value, "")


@pytest.mark.paddlenlp
def test_auto_parallel_always_does():
    assert decided("--enable_auto_parallel", f"--{LOSS_SWITCH}", "false") == (True, "")
    run = config.parse(["--enable_auto_parallel", f"--{LOSS_SWITCH}"])
    assert [name for name, _ in run.ineffective] == [LOSS_SWITCH]


def test_preference_pairs_never_do():
    run = config.parse([*LARGE, f"--{LOSS_SWITCH}"])
    pairs = replace(run, data=replace(run.data, stage="dpo", packing="none"))
    reason = choose_loss(pairs, config_for(run), True)
    assert not pairs.fused.use_fused_linear_cross_entropy and "pairs" in reason
