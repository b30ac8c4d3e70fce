"""scripts/check_dtypes.py and the audit of a training."""

import json
from types import SimpleNamespace

import pytest
from places import ROOT
from planted_dtypes import planted
from tiny_models import fields_of

from llm_npu.commands import check_dtypes
from llm_npu.config.arguments import DataArguments
from llm_npu.dtypes import DtypeCheck

pytestmark = pytest.mark.sampled

SCRIPT = ROOT / "scripts" / "check_dtypes.py"
PROGRAM = """
from planted_dtypes.planted import Training

def build(dtype="float64"):
    training = Training(dtype)
    return training.model, training.batch

def clean():
    return build("float32")

def model_alone():
    return build()[0]
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "my_model.py"
    file.write_text(PROGRAM)
    return file


@pytest.fixture
def directory(tmp_path):
    """A very small Llama's."""
    (tmp_path / "config.json").write_text(json.dumps(fields_of("llama")))
    return tmp_path


def test_planted_faults_end_with_exit_code_1(program, capsys):
    assert check_dtypes.main([f"{program}:build", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["clean"]
    named = {finding["source"]["line"] for finding in report["findings"] if finding["source"]}
    assert {planted.lines()[fault] for fault in planted.IN_THE_MODEL} <= named


def test_a_clean_model_ends_with_exit_code_0(program, capsys):
    assert check_dtypes.main([f"{program}:clean"]) == 0
    assert capsys.readouterr().out.startswith("clean: ")


def test_a_directory_and_a_file_of_arguments(directory, capsys):
    (directory / "run.yaml").write_text(f"model_name_or_path: {directory}\nmax_seq_length: 16\n")
    assert check_dtypes.main([str(directory / "run.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clean"]
    assert fields_of("llama")["max_position_embeddings"] < DataArguments().max_seq_length
    assert check_dtypes.main([str(directory)]) == 0  # with as many tokens as it has positions


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("nowhere.py:build", "nowhere.py is not a file"),
        ("{program}:nothing", "has no function nothing"),
        ("{program}:model_alone", "not a Planted"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(program, model, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_dtypes.main([model.format(program=program)])


@pytest.mark.slow
def test_bad_input_is_one_sentence_and_exit_code_2(run_python):
    done = run_python(SCRIPT, "llama-tinny", VIRTUAL_NPU_QUIET="1")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "Did you mean llama-tiny?" in done.stderr


def test_the_audit_of_a_training_says_one_line_before_and_one_after(on_npu):
    lines = []
    training, check = planted.Training("float32"), DtypeCheck(lines.append)
    state = SimpleNamespace(global_step=0)
    check.on_train_begin(None, state, None, model=training.model, optimizer=training.optimizer)
    for _ in range(3):
        training.step()
        state.global_step += 1
        check.on_step_end(None, state, None)
    check.on_train_end(None, state, None)
    assert [line.partition(":")[0] for line in lines] == ["dtypes   clean"] * 2


def test_the_audit_of_a_training_names_what_it_finds(on_npu):
    lines = []
    training, check = planted.Training(), DtypeCheck(lines.append)
    state = SimpleNamespace(global_step=0)
    check.on_train_begin(None, state, None, model=training.model, optimizer=training.optimizer)
    with pytest.warns(UserWarning, match="float64"):
        training.step()
    check.on_train_end(None, state, None)
    text = "\n".join(lines)
    assert all(f"planted.py:{line} " in text for line in planted.lines().values()), text
