"""``~`` in paths is the home folder, wherever no shell has expanded it."""

import json
import os
from pathlib import Path

import pytest

from llm_npu import config
from llm_npu.config.read import flags
from llm_npu.core import paths

GIVEN = {
    "tokenizer_name_or_path": "~/tokenizer",
    "input_dir": "~/data",
    "data_cache": "~/cache",
    "chat_template": "~/own.jinja",
    "output_dir": "~/out",
    "resume_from_checkpoint": "~/out/checkpoint-1",
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def test_the_home_folder_in_flags_and_files(home):
    expected = {name: str(home / value[2:]) for name, value in GIVEN.items()}
    expected["model_name_or_path"] = str(home / "model")
    settings = GIVEN | {"model_name_or_path": "~/model"}
    (home / "run.yaml").write_text(json.dumps(settings))
    for argv in ([f"--{name}={value}" for name, value in settings.items()], ["--config=~/run.yaml"]):
        read = config.read(argv)
        assert {name: getattr(read.values, name) for name in expected} == expected
        assert read.early.output_dir == home / "out"


def test_every_flag_that_names_a_path_is_marked():
    texts = [name for name, flag in flags().items() if flag.kind is str]
    named = {name for name in texts if name.endswith(("_dir", "_path", "_cache", "_template"))}
    unused = {"output_signal_dir"}  # it has no effect
    assert {name for name in named - unused if not flags()[name].path} == set()


def test_the_user_of_another_home(home):
    assert paths.path_argument("~/x") == home / "x"
    assert paths.path_argument("x~/~") == Path("x~/~")
    assert paths.expanded("~nobody-has-this-name/x") == "~nobody-has-this-name/x"
    assert os.fspath(paths.path_argument("~")) == str(home)
