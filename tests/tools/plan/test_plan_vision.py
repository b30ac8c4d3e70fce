"""The plan of PaddleOCR-VL: its answer, and what it refuses."""

import json

import pytest
from plans import model

from llm_npu.core.errors import UserError
from llm_npu.plan import __main__ as command

VISION = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION |= {"image_size": 56, "patch_size": 14}
SAMPLE = ("--image_patches", "16x16", "--text_tokens", "64")
PARTS = ("vision tower", "projector", "text")


@pytest.fixture
def folder(tmp_path):
    return model(tmp_path, model_type="paddleocr_vl", head_dim=64, vision_config=VISION)


def planned(folder, *argv: str):
    words = ["--model_name_or_path", folder, *argv]
    return command.planned([*words] if "--cards" in argv else [*words, "--cards", "1"])[1]


def seconds(folder, *argv: str) -> dict[str, float]:
    return planned(folder, *SAMPLE, *argv).time.compute


def peak(folder, *argv: str) -> int:
    return planned(folder, *SAMPLE, "--per_device_train_batch_size", "32", *argv).memory.peak_memory_bytes


def test_the_parts_add_up_to_the_step(folder):
    answer = planned(folder, *SAMPLE, "--per_device_train_batch_size", "2", "--global_batch_size", "8")
    assert tuple(answer.time.compute) == PARTS
    assert sum(answer.shares.values()) == pytest.approx(answer.time.step_time_s)
    assert answer.layout.max_seq_length == 16 * 16 // 4 + 64
    assert "a vision tower" in answer.interval.unlike


def test_frozen_parts_and_lora_cost_less(folder):
    trained = seconds(folder)
    frozen = seconds(folder, "--freeze_config", "freeze_vision freeze_aligner")
    tower = seconds(folder, "--freeze_config", "freeze_vision")
    assert frozen["text"] == trained["text"]
    assert all(2 * frozen[part] < trained[part] for part in PARTS[:2])
    assert tower["vision tower"] == frozen["vision tower"]
    assert tower["projector"] == trained["projector"]
    assert peak(folder, "--lora_rank", "8") < peak(folder)
    assert peak(folder, "--recompute") < peak(folder)


def test_several_cards(folder):
    eight = ("--cards", "8")
    assert peak(folder, *eight, "--sharding", "stage1") < peak(folder, *eight)
    answer = planned(folder, *SAMPLE, *eight, "--sharding", "stage1")
    assert answer.time.communication["sharding"] > 0


def test_a_batch_that_does_not_fit_gets_a_smaller_one(folder):
    answer = planned(folder, *SAMPLE, "--per_device_train_batch_size", "4096")
    assert not answer.fits
    assert answer.to_change["recompute"]
    assert answer.to_change["per_device_train_batch_size"] < 4096


def test_command_line(folder, capsys):
    command.main(["--model_name_or_path", folder, "--cards", "1", *SAMPLE, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert {f"compute: {part}" for part in PARTS} <= set(answer["breakdown"]["time_s"])
    assert answer["plan"]["arguments"] is None
    command.main(["--model_name_or_path", folder, "--cards", "1", *SAMPLE])
    assert "llm-npu formers train" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "--image_patches"),
        (("--image_patches", "16x16"), "--text_tokens"),
        (("--image_patches", "15x16", "--text_tokens", "64"), "even"),
        (
            (*SAMPLE, "--tensor_parallel_degree", "2", "--cards", "2"),
            "not modeled for PaddleOCR-VL",
        ),
        ((*SAMPLE, "--search"), "--search is not modeled"),
        ((*SAMPLE, "--sharding", "stage2", "--cards", "2"), "stage1"),
        ((*SAMPLE, "--freeze_config", "freeze_llm"), "freeze_aligner"),
        ((*SAMPLE, "--freeze_config", "freeze_vision", "--lora_rank", "8"), "without --lora_rank"),
    ],
)
def test_refused(folder, argv, words):
    with pytest.raises(UserError, match=words):
        planned(folder, *argv)


def test_refused_files(tmp_path):
    with pytest.raises(UserError, match="intermediate_size None"):
        planned(model(tmp_path, model_type="paddleocr_vl", intermediate_size=None, head_dim=64), *SAMPLE)
    with pytest.raises(UserError, match="only for PaddleOCR-VL"):
        planned(model(tmp_path), *SAMPLE)
