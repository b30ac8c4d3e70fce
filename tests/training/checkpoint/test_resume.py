"""A run continues from a checkpoint only if it goes on where that one was."""

import json
import re

import numpy as np
import pytest
from checkpoint_files import store

from llm_npu import config
from llm_npu.data import pipeline
from llm_npu.data.indexed import write_indexed
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer
from llm_npu.training import resume
from llm_npu.training.checkpoint import states

pytestmark = pytest.mark.sampled

TEXT = "one two three four five six seven eight nine ten\n" * 20


@pytest.fixture
def settings(tmp_path):
    """A function from flags to the settings of a run on a little text."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)

    def of(*flags):
        run = config.parse(["--input_dir", str(text), *flags])
        source = pipeline.find(run.data)
        text_source = pipeline.find(config.parse(["--input_dir", str(text)]).data)
        folder = trained_tokenizer(text_source, 300, tmp_path)
        return resume.settings(run, source, load_tokenizer(folder))

    return of


@pytest.fixture
def written(tmp_path, settings):
    """A checkpoint of the run without flags."""
    states.write_run(settings(), tmp_path)
    return store(tmp_path / "out", 5, {states.RUN_FILE: (tmp_path / states.RUN_FILE).read_text()})


def test_the_same_run_goes_on_without_a_word(written, settings):
    assert resume.changes(written, settings()) == []
    assert resume.changes(written, settings("--logging_steps", "3", "--save_steps", "7")) == []


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--seed 7", "seed 42, but this run has 7"),
        ("--per_device_train_batch_size 4", "samples per step 8, but this run has 4"),
        ("--gradient_accumulation_steps 2", "samples per step 8, but this run has 16"),
        ("--max_seq_length 64", "max_seq_length 256, but this run has 64"),
        ("--split 9,1,0", "split 949,50,1, but this run has 9,1,0"),
        ("--fp16", "bf16 True, but this run has False"),
    ],
)
def test_what_moves_the_position_in_the_data_is_refused(written, settings, flags, sentence):
    with pytest.raises(ValueError, match=f"checkpoint-5 was written with {sentence}"):
        resume.changes(written, settings(*flags.split()))


def test_other_text_is_refused(written, settings, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT + "eleven")
    with pytest.raises(ValueError, match="was written with data "):
        resume.changes(written, settings())


def test_another_tokenizer_is_refused(written, settings):
    other = settings()
    other["fixed"]["tokenizer"] = "of other ids"
    with pytest.raises(ValueError, match="was written with tokenizer "):
        resume.changes(written, other)


def test_another_pair_is_refused(settings, tmp_path):
    def pair(name, documents):
        write_indexed(tmp_path / name, map(np.array, documents), 300)
        return settings("--input_dir", str(tmp_path / name))["fixed"]["data"]

    first = pair("a", [[1, 2, 3], [4, 5]])
    assert pair("a", [[1, 2, 3], [4, 5]]) == first
    assert pair("a", [[1, 2], [3, 4, 5]]) != first
    assert pair("b", [[1, 2, 3], [4, 5]]) != first


def changed(written, run) -> list[tuple[str, str, str]]:
    """(flag, its value, its value in the run that is continued) of each note."""
    return [
        re.fullmatch(r"(--\w+) is (\S+); .* (\S+)", note).groups() for note in resume.changes(written, run)
    ]


def test_a_changed_schedule_is_noted(written, settings):
    assert changed(written, settings("--max_steps", "300", "--warmup_steps", "20")) == [
        ("--max_steps", "300", "200"),
        ("--warmup_ratio", "0.0", "0.1"),
    ]


def test_changed_settings_of_the_optimizer_are_noted(written, settings):
    flags = "--weight_decay 0.3 --adam_beta1 0.8 --adam_beta2 0.9 --adam_epsilon 1e-6 --max_grad_norm 0.5"
    assert changed(written, settings(*flags.split())) == [
        ("--weight_decay", "0.3", "0.1"),
        ("--adam_beta1", "0.8", "0.9"),
        ("--adam_beta2", "0.9", "0.95"),
        ("--adam_epsilon", "1e-06", "1e-08"),
        ("--max_grad_norm", "0.5", "1.0"),
    ]


def test_what_an_earlier_version_has_not_written_is_no_change(written, settings):
    file = written / states.RUN_FILE
    earlier = json.loads(file.read_text())
    del earlier["schedule"]["weight_decay"]
    file.write_text(json.dumps(earlier))
    assert resume.changes(written, settings()) == []


def test_a_checkpoint_that_does_not_say_what_run_wrote_it_is_refused(settings, tmp_path):
    with pytest.raises(ValueError, match=r"has no run\.json"):
        resume.changes(tmp_path, settings())


@pytest.mark.parametrize("inside", ["", "run"])
def test_an_output_folder_that_is_a_file_is_refused(tmp_path, inside):
    (tmp_path / "file").write_text("")
    run = config.parse(["--output_dir", str(tmp_path / "file" / inside)])
    with pytest.raises(ValueError, match="file is a file"):
        resume.requested(run.training, None)


def test_auto_starts_at_step_0_where_there_is_no_checkpoint(tmp_path):
    run = config.parse(["--output_dir", str(tmp_path / "new"), "--resume_from_checkpoint", "auto"])
    assert resume.requested(run.training, None) is None
