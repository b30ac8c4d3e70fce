"""What is asked of a run against what its model is."""

import json

import pytest
from paddlenlp.trainer.trainer_utils import ShardingOption

from llm_npu import config
from llm_npu.presets import config_for


def test_a_run_that_the_model_cannot_do_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--max_seq_length is 2048, but llama-tiny has 1024 positions"):
        config_for(config.parse(["--max_seq_length", "2048"]))
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rope_scaling": scaling}))
    packed = ["--model_name_or_path", str(tmp_path), "--packing", "first_fit"]
    with pytest.raises(ValueError, match=r"dynamic rotary scaling of .* give --padding longest"):
        config_for(config.parse(packed))
    config_for(config.parse([*packed, "--padding", "longest"]))
    with pytest.raises(ValueError, match="names layer 6, but the model has layers 0 to 5"):
        config_for(config.parse(["--recompute", "--no_recompute_layers", "0", "6"]))


def test_lora_does_not_train_weights_that_are_split():
    run = config.parse([])
    model = config_for(run)
    run.model.finetuning_type = "lora"
    for stage in ("stage1", "stage2"):
        run.training.sharding = [ShardingOption(stage)]
        config.check_model(run, model)
    run.training.sharding = [ShardingOption("stage3")]
    with pytest.raises(ValueError, match=r"lora keeps whole weights .* give stage1 or stage2"):
        config.check_model(run, model)
