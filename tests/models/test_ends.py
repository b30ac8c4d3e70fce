"""The end-of-text tokens of config.json and generation_config.json."""

import json

import pytest

from llm_npu.core.errors import UserError
from llm_npu.models import upstream_config
from llm_npu.models.ends import with_tokenizers
from llm_npu.models.presets import fields_of, model_config


def model_folder(tmp_path, generation=None, **fields):
    (tmp_path / "config.json").write_text(json.dumps({**fields_of("llama-tiny"), **fields}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("fields", "generation", "ends"),
    [
        ({"eos_token_id": 2}, None, 2),
        ({"eos_token_id": [5, 6]}, None, [5, 6]),
        ({"eos_token_id": 5}, {"eos_token_id": [6, 5]}, [5, 6]),
        ({"eos_token_id": 5}, {"eos_token_id": 6}, [5, 6]),
        ({"eos_token_id": [5]}, {"top_p": 0.9}, 5),
        ({"eos_token_id": None}, {"eos_token_id": [6, 7]}, [6, 7]),
    ],
)
def test_ends_of_text_are_those_of_both_files_and_outlive_training(tmp_path, fields, generation, ends):
    config = model_config(model_folder(tmp_path, generation, **fields))
    assert config.eos_token_id == ends
    config.eos_token_id = with_tokenizers(config.eos_token_id, 7)  # as training does
    upstream_config.save(config, tmp_path, "float32")
    saved = json.loads((tmp_path / "config.json").read_text())["eos_token_id"]
    assert saved == (7 if isinstance(ends, int) else list(dict.fromkeys([*ends, 7])))
    assert model_config(str(tmp_path)).eos_token_id is not None


@pytest.mark.parametrize("ends", ["2", -1, True, [2, "x"], {"a": 1}, 2.5])
def test_ends_of_text_that_are_no_ids_are_refused(tmp_path, ends):
    with pytest.raises(UserError, match=r"generation_config\.json: eos_token_id is "):
        model_config(model_folder(tmp_path, {"eos_token_id": ends}))
