"""Files of arguments: the text of a value is that of the file, whatever YAML would make of it."""

import contextlib
import json
import string
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llm_npu import config
from llm_npu.config.flag import written
from llm_npu.config.written import LARGEST, read_file
from llm_npu.core.errors import UserError
from paddle_fused.command_line import FALSE, TRUE, nearest_name

pytestmark = pytest.mark.sampled

# Plain scalars that YAML 1.1 reads as numbers, dates or truth values.
ODD_TEXTS = [
    "2026_11_27", "010", "0o17", "0x1F", "0b11", "1_000", "12:30:45", "1e3", "1.e+3", "3.10", ".5", "+7",
    "1.",
    ".inf", ".NaN", "on", "Yes", "no", "off", "y", "true", "FALSE", "2026-11-27", "2026-11-27 10:20:30",
    "2001-12-14t21:59:43.10-05:00", "99999999999999999999999", "1.0.0", "=", "<<",
]  # fmt: skip
SECONDS = 60  # for a file of the largest size; a tenth of it on an idle machine


def read(tmp_path, text, name="a.yaml"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return config.read([str(tmp_path / name)])


def test_text_flags_keep_their_text(tmp_path):
    keys = [f"a{number}" for number in range(len(ODD_TEXTS))]
    wanted = dict(zip(keys, ODD_TEXTS, strict=True))
    for pattern in ("{}: {}", "{}: '{}'", "{}: !!str {}"):
        file = tmp_path / "a.yaml"
        file.write_text("\n".join(pattern.format(*pair) for pair in wanted.items()))
        assert {name: written(value) for name, value in read_file(str(file)).items()} == wanted
    (tmp_path / "a.json").write_text(json.dumps(wanted))
    assert read_file(str(tmp_path / "a.json")) == wanted
    texts = ", ".join(ODD_TEXTS)
    run = read(tmp_path, f"output_dir: 2026_11_27\nrun_name: 3.10\nlabel_names: [{texts}]").values
    assert (run.output_dir, run.run_name, run.label_names) == ("2026_11_27", "3.10", ODD_TEXTS)


def test_values_of_a_file_keep_their_type(tmp_path):
    values = {"a": True, "b": False, "c": None, "d": 7, "e": -0.5, "f": 1e-05, "g": "7", "h": [1, "x", True]}
    (tmp_path / "a.json").write_text(json.dumps(values))
    quoted = "a: true\nb: false\nc: null\nd: 7\ne: -0.5\nf: 1e-05\ng: '7'\nh: [1, x, true]"
    (tmp_path / "a.yaml").write_text(quoted)
    for name in ("a.json", "a.yaml"):
        assert repr(read_file(str(tmp_path / name))) == repr(values)
    typed = (
        '{"lora_dropout": 0, "max_steps": 3, "bf16": false, "packing": true, "resume_from_checkpoint": true}'
    )
    run = read(tmp_path, typed, "b.json").values
    assert repr((run.lora_dropout, run.max_steps, run.bf16)) == "(0.0, 3, False)"
    assert (run.packing, run.resume_from_checkpoint) == ("stream", True)
    assert (
        read(tmp_path, "lora_target: [q_proj, o_proj]\nsplit: [9, 1]").values.lora_target == "q_proj,o_proj"
    )


def test_numbers_of_json_keep_their_text(tmp_path):
    content = '{"output_dir": 3.10, "run_name": 1E5, "max_steps": 7, "bf16": false, "data_cache": true}'
    run = read(tmp_path, content, "a.json").values
    assert (run.output_dir, run.run_name, run.max_steps, run.bf16) == ("3.10", "1E5", 7, False)
    assert run.data_cache == "true"


def test_null_means_the_default_and_is_reported_where_there_is_one(tmp_path):
    read_as = read(tmp_path, "output_dir: ~\nrun_name: null")
    (tmp_path / "nulls.yaml").write_text("a: null\nb: ~\nc:\nd: Null\ne: NULL\nf: !!null ''\ng: nULL")
    assert [*read_file(str(tmp_path / "nulls.yaml")).values()] == [*[None] * 6, "nULL"]
    assert (read_as.values.output_dir, read_as.values.run_name) == ("output", None)
    assert read_as.explicit == {}
    assert read_as.notes == ("--output_dir is null in the argument file; it keeps its default, output",)
    assert read(tmp_path, "output_dir: 'null'").values.output_dir == "null"
    with pytest.raises(UserError, match=r"--outputdir .*--output_dir"):
        read(tmp_path, "outputdir: null")


def test_switches_take_the_words_of_yaml(tmp_path):
    for word, value in (("on", True), ("Off", False), ("yes", True), ("n", False)):
        assert read(tmp_path, f"bf16: {word}").values.bf16 is value
        assert config.read(["--bf16", word]).values.bf16 is value


def test_truth_values_of_text_flags_that_have_two_meanings(tmp_path):
    for word in FALSE:
        run = read(tmp_path, f"evaluation_strategy: {word}\npacking: {word}\nresume_from_checkpoint: {word}\n"
                   "stage: sft\ninput_dir: x").values  # fmt: skip
        assert (run.evaluation_strategy, run.packing, run.resume_from_checkpoint) == ("no", "none", None)
    for word in TRUE:
        run = read(tmp_path, f"packing: {word}\nresume_from_checkpoint: {word}").values
        assert (run.packing, run.resume_from_checkpoint) == ("stream", True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("output_dir: [a, 2]", r"takes one value.*\[a, 2\]"),
        ("seed: 010", "'010' .*leading zeros"),
        ("seed: 1:30", "'1:30' is not a whole number"),
        ("seed: 1e3", "'1e3' is not a whole number"),
        (f"seed: {'9' * 5000}", r"--seed: '9{50,}\.\.\. is not a whole number"),
        (f"max_steps: {'9' * 30}", "more than 64 bits"),
        ("learning_rate: 1:30", "'1:30' is not a number"),
        (f"learning_rate: {'9' * 60000}", "--learning_rate is inf"),
        ("bf16: perhaps", "'perhaps' is not yes"),
        ('output_dir: "a\\0b"', "NUL character"),
        ('output_dir: "\\uD800"', "UTF-8 cannot encode"),
        (f"model_name_or_path: {'x' * 60000}", "is neither a preset"),
        ("output_dir: ''", "--output_dir is empty"),
        ("report_to: [--max_steps=5]", "--report_to is '--max_steps=5'"),
        ("skip_data_intervals: [[[1]]]", "skip_data_intervals must be a plain value"),
        ("report_to: [[wandb]]", "is a list, but must be a single value"),
        ("~: x", "None is not an argument name"),
        ("? [a]\n: 1", "is not an argument name"),
    ],
)
def test_values_that_could_mean_something_else_are_refused(tmp_path, text, words):
    with pytest.raises(UserError, match=words) as raised:
        read(tmp_path, text)
    assert len(str(raised.value)) < 1500


def test_numbers_in_other_bases_are_those_of_yaml(tmp_path):
    assert read(tmp_path, "seed: 0x1F").values.seed == 31
    assert read(tmp_path, "max_steps: 1_000").values.max_steps == 1000
    assert read(tmp_path, "skip_data_intervals: [1, 2]").values.skip_data_intervals == [[1, 2]]


MARKS = ["~", "null", "'", '"', "[", "]", "{", "}", ": ", "- ", "\n", "  ", "#", "&a ", "*a", "!!int ", "|\n"]
WORDS = st.sampled_from([*ODD_TEXTS, *MARKS, ">\n", "%", "\\", "\t", "é", "\x00", "a", "\ud800"])
FLAGS = ["output_dir", "seed", "bf16", "learning_rate", "report_to", "skip_data_intervals", "x"]
NAMES = st.sampled_from(FLAGS)
VALUES = st.one_of(st.lists(WORDS, max_size=6).map("".join), st.text(max_size=20))
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(quick, max_examples=30)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=4), st.sampled_from(["a.yaml", "a.json"]))
@example([("output_dir", "2026_11_27")], "a.yaml")
def test_generated_files_are_read_or_refused(tmp_path, pairs, name):
    if name == "a.json":
        text = json.dumps(dict(pairs))
    else:
        text = "\n".join(f"{key}: {value}" for key, value in pairs)
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        arguments = config.read([str(tmp_path / name)])
    except UserError as error:
        assert len(str(error)) < 1000
        return
    if name == "a.json" and pairs:
        wanted = dict(pairs).get("output_dir", "output")
        assert arguments.values.output_dir == wanted


@settings(quick, max_examples=300)
@given(st.text(string.ascii_letters + string.digits + "_.+-:/=", min_size=1))
def test_a_plain_scalar_is_the_text_of_its_flag(tmp_path, text):
    (tmp_path / "a.yaml").write_text(f"run_name: {text}")
    try:
        value = read_file(str(tmp_path / "a.yaml"))["run_name"]
    except UserError as error:  # what is no scalar for YAML: "a: - b", "a: b:"
        assert "not valid YAML" in str(error) or "mapping" in str(error) or "plain value" in str(error)
        return
    assert written(value) == text or (value is None and text in ("~", "null", "Null", "NULL"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["a: [" + "x: 1," * LARGEST, "a: [" + "'x'," * LARGEST, "a:\n" + "- 1\n" * LARGEST, "a: b\n" * LARGEST],
    ids=["pairs", "list", "block", "keys"],
)
def test_a_large_file_takes_bounded_time(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text[: LARGEST - 1])
    begin = time.monotonic()
    with contextlib.suppress(UserError):
        read_file(str(tmp_path / "a.yaml"))
    assert time.monotonic() - begin < SECONDS


@pytest.mark.parametrize(
    ("given_name", "meant"),
    [
        ("max_stps", "max_steps"),
        ("max-steps", "max_steps"),
        ("inputdir", "input_dir"),
        ("max_seq_len", "max_seq_length"),
        ("lerning_rate", "learning_rate"),
        ("confg", "config"),
        ("decay", None),  # of several names
        ("lora_r", None),
        ("dataset_path", None),
        ("a" * 10**6, None),
    ],
)
def test_hints_are_misspelt_names_only(given_name, meant):
    assert nearest_name(given_name, (*config.flags(), "config")) == meant


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lora", "set --finetuning_type lora"),
        ("dataset_name_or_path", "--input_dir"),
        ("train_dataset_path", "--input_dir"),
        ("fine_tuning", "--finetuning_type"),
        ("compute_type", "--bf16 or --fp16"),
    ],
)
def test_names_of_the_libraries_scripts_are_answered_with_the_flag(tmp_path, name, words):
    with pytest.raises(UserError, match=words):
        read(tmp_path, f"{name}: true")
