"""Files made to harm whoever reads them: each is refused in a sentence, runs nothing and takes no memory."""

import gzip
import json
import math
import os
import pickle
import resource
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoint_files import store
from tiny_models import fields_of

from llm_npu.config.written import read_file
from llm_npu.core import tensor_file
from llm_npu.core.untrusted import memory, plain_json
from llm_npu.data import answers
from llm_npu.data.text import chat_template
from llm_npu.models import checks, families, presets
from llm_npu.models.stored import Stored
from llm_npu.profiling.report.reading import chrome_trace
from llm_npu.training import checkpoint, resume
from llm_npu.training.checkpoint import states
from llm_npu.training.checkpoint.random_state import as_plain, from_plain, random_state, set_random_state

pytestmark = pytest.mark.sampled

MEBIBYTE = 1 << 20
CHAT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """A function that calls a reader, which must raise ValueError with these words and change nothing."""
    monkeypatch.chdir(tmp_path)

    def refused(words, read, *arguments, most=16 * MEBIBYTE):
        before = sorted(tmp_path.rglob("*"))
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=words):
                read(*arguments)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < most
        assert sorted(tmp_path.rglob("*")) == before

    return refused


class Calls:
    """Pickles as a call of the shell."""

    def __reduce__(self):
        return os.system, ("touch run",)


def safetensors(header, data=bytes(16), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "a terabyte of header": safetensors(b"{}", length=1 << 40),
    "a header without end": safetensors(b"{}", length=(1 << 64) - 1),
    "a terabyte of data": safetensors({"a": entry([1 << 38], 0, 1 << 40)}),
    "overlapping": safetensors({"a": entry([4], 0, 16), "b": entry([2], 8, 16)}),
    "a gap": safetensors({"a": entry([2], 0, 8), "b": entry([1], 12, 16)}),
    "negative": safetensors({"a": entry([4], -16, 0)}),
    "negative shape": safetensors({"a": entry([-2, -2], 0, 16)}),
    "backwards": safetensors({"a": entry([4], 16, 0)}),
    "another shape": safetensors({"a": entry([5], 0, 16)}),
    "a product of 2^64": safetensors({"a": entry([1 << 32, 1 << 32], 0, 0)}),
    "another dtype": safetensors({"a": entry([4], 0, 16, "F65")}),
    "fractions": safetensors({"a": entry([4.0], 0, 16)}),
    "truths": safetensors({"a": entry([True, 4], 0, 16)}),
    "a list": safetensors([1, 2]),
    "nested": safetensors(b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "cut off": safetensors({"a": entry([4], 0, 16)}, data=bytes(15)),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_of_tensors(refused, tmp_path, kind):
    file = tmp_path / "model.safetensors"
    file.write_bytes(HEADERS[kind])
    refused("cannot be read as safetensors", tensor_file.Reader, [file])
    refused("cannot be read as safetensors", lambda: [Stored(tmp_path)[name] for name in ("a",)])


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", 7, None, ["a"]])
def test_an_index_names_files_beside_it(refused, tmp_path, name):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    refused("not a file next to it|cannot be read", Stored, tmp_path)


def test_arrays_of_the_cache(refused, tmp_path):
    def write(**changed):
        ids, ends = np.arange(9, dtype=np.int32), np.array([4, 9])
        arrays = {"ids": ids, "learnt": ids > 3, "ends": ends, "last_texts": np.array([1, 2])}
        for name, array in (arrays | changed).items():
            np.save(tmp_path / f"{name}.npy", array)

    write(ends=np.array([Calls()], dtype=object))
    refused("damaged", answers.count, tmp_path)
    write(ends=np.array([4, 10**12]))
    refused("inconsistent sizes", answers.count, tmp_path)
    write(ids=np.arange(9.0))
    refused("unexpected dtypes", answers.count, tmp_path)
    write()
    content = (tmp_path / "ids.npy").read_bytes()
    (tmp_path / "ids.npy").write_bytes(content.replace(b"(9,)", b"(9999999999999,)").replace(b" " * 12, b""))
    refused("damaged", answers.count, tmp_path)
    (tmp_path / "ids.npy").write_bytes(pickle.dumps(Calls()))
    refused("damaged", answers.count, tmp_path)
    assert not (tmp_path / "run").exists()


YAML = {
    "code": ("a: !!python/object/apply:os.system ['touch run']", "not valid YAML"),
    "a class": ("a: !!python/name:os.system", "not valid YAML"),
    "aliases": ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "alias"),
    "itself": ("a: &a [*a]", "alias"),
    "deep": ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    "lists of lists of lists": ("a: [[[1]]]", "plain value"),
    "null in a list": ("a: [1, null]", "plain value"),
    "bytes": ("a: !!binary aGVsbG8=", "the tag .*binary"),
    "a set": ("a: !!set {x, y}", "the tag .*set"),
    "two documents": ("a: 1\n---\nb: 2", "several documents"),
    "no character": ('a: "\\U00110000"', "not valid YAML"),
    "no version": ("%YAML 1." + "9" * 5000 + "\n---\na: 1", "not valid YAML"),
    "long": ("a: " + "x" * (2 << 20), "larger than 64 KiB"),
}


@pytest.mark.parametrize("kind", YAML)
def test_files_of_arguments(refused, tmp_path, kind):
    content, words = YAML[kind]
    (tmp_path / "run.yaml").write_text(content)
    refused(words, read_file, str(tmp_path / "run.yaml"), most=64 * MEBIBYTE)


def test_json_without_end(refused, tmp_path):
    file = tmp_path / "a.json"
    for content in ("[" * 10**6, '{"a":' * 10**5, "9" * 10**6, '"\\ud800', "\x00"):
        file.write_text(content)
        refused("cannot be read as JSON", plain_json.load, file)
    with file.open("wb") as stream:
        stream.truncate(1 << 40)  # a terabyte of zeros, which takes no room on the disk
    refused("larger than 32 MiB", plain_json.load, file, most=80 * MEBIBYTE)
    file.unlink()


def test_archives_that_grow(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(chrome_trace, "CHUNK", 1 << 18)
    file = tmp_path / "rank_0.paddle_trace.json.gz"
    event = b'{"ph":"X","name":"' + b"a" * 100 + b'"},'
    file.write_bytes(gzip.compress(b"[" + event * 10_000))  # 1.2 MB in 4 kB
    refused("more than 200 times", lambda: sum(1 for _ in chrome_trace.TraceFile(file)), most=200 * MEBIBYTE)
    for content in (gzip.compress(b"[" + event * 99)[:-20], b"\x1f\x8b\x08\x00" + bytes(40), b"no archive"):
        file.write_bytes(content)
        trace = chrome_trace.TraceFile(file)
        try:
            list(trace)
            assert trace.broken_at is not None
        except ValueError as error:
            assert file.name in str(error)


TEMPLATES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['__builtins__']['open']('run', 'w') }}",
    "its own functions": "{{ cycler.__init__.__globals__.os.system('touch run') }}",
    "imports": "{% import '/etc/passwd' as passwd %}",
    "files": "{% include 'run.jinja' %}",
    "a change of the messages": "{{ messages.append(1) }}",
    "text without end": "{{ messages[0]['content'] * 10000000000 }}",
    "text that doubles": "{% set n = namespace(s='ab') %}"
    "{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "wide text": "{{ 'a' | center(9999999999) }}",
    "wide numbers": "{{ '%9999999999d' % 1 }}",
    "powers": "{{ 9 ** 9 ** 9 ** 9 }}",
    "long ranges": "{% for i in range(9999999999) %}{{ i }}{% endfor %}",
    "itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "numbers by nothing": "{{ 1 / 0 }}",
    "other types": "{{ 1 + 'a' }}",
    "nested": "{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "nested blocks": "{% if 1 %}" * 200 + "{% endif %}" * 200,
}  # fmt: skip


@pytest.mark.parametrize("kind", TEMPLATES)
def test_chat_templates(refused, monkeypatch, kind):
    monkeypatch.setattr(chat_template, "MOST_MEMORY", 256 * MEBIBYTE)

    def write():
        tokenizer = SimpleNamespace(special_tokens_map={}, init_kwargs={})
        chat_template.attach(tokenizer, TEMPLATES[kind])
        chat_template.rendered(tokenizer, CHAT, prompt=False)

    # What this process has freed but still maps is not limited; it depends on the tests before.
    refused("chat template", write, most=math.inf)


IN_A_NEW_PROCESS = """
import resource, sys
from types import SimpleNamespace
from llm_npu.data.text import chat_template

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

chat_template.MOST_MEMORY = 256 << 20
tokenizer = SimpleNamespace(special_tokens_map={}, init_kwargs={})
before = resident()
try:
    chat_template.attach(tokenizer, sys.argv[1])
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]
    chat_template.rendered(tokenizer, chat, prompt=False)
except ValueError:
    print(resident() - before)
"""


@pytest.mark.parametrize("kind", ["text that doubles", "text without end", "wide text", "powers"])
def test_chat_templates_take_little_memory(kind):
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, TEMPLATES[kind]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300 * MEBIBYTE


def test_memory_is_limited_for_a_while():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), memory.limited(64 * MEBIBYTE):
        bytearray(1 << 32)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(128 * MEBIBYTE)) == 128 * MEBIBYTE


@pytest.mark.parametrize(
    "sizes",
    [
        {"vocab_size": 10**13},
        {"hidden_size": 4 * 10**8},
        {"intermediate_size": 10**13},
        {"max_position_embeddings": 10**13},
        pytest.param({"model_type": "mixtral", "num_local_experts": 10**12}, marks=pytest.mark.paddlenlp),
    ],
)
def test_models_larger_than_the_machine(refused, tmp_path, sizes):
    (tmp_path / "config.json").write_text(json.dumps(fields_of("llama") | sizes))
    config = presets.model_config(str(tmp_path))
    refused("machine has", families.new_model, config)


def test_more_layers_than_any_model(refused, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields_of("llama") | {"num_hidden_layers": 10**9}))
    refused("num_hidden_layers is 1000000000", presets.model_config, str(tmp_path))


def test_numbers_that_are_none(refused, tmp_path):
    for field in checks.NUMBERS:
        for value in ("1e-5", -1.0, [1], True, float("nan"), float("inf")):
            (tmp_path / "config.json").write_text(json.dumps(fields_of("llama") | {field: value}))
            refused(field, presets.model_config, str(tmp_path))


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "inside/../../outside"])
def test_a_mark_names_files_beside_it(refused, tmp_path, name):
    folder = store(tmp_path / "out", 3, {"a": "b"})
    mark = json.loads((folder / checkpoint.MARK).read_text())
    mark["files"][name] = mark["files"]["a"]
    (folder / checkpoint.MARK).write_text(json.dumps(mark))
    refused("cannot be read", checkpoint.verify, folder)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"best_model_checkpoint": "/tmp"}, "best_model_checkpoint"),
        ({"global_step": 4}, "global_step 4"),
        ({"global_step": True}, "global_step"),
        ({"log_history": 5}, "log_history"),
        ({"load": "os.system"}, "'load'"),
    ],
)
def test_the_state_of_the_trainer(refused, tmp_path, changed, words):
    state = {"global_step": 3, "log_history": [], "best_model_checkpoint": None}
    for content, accepted in ((state, None), (state | changed, words)):
        folder = store(tmp_path / "out", 3, {"trainer_state.json": json.dumps(content)})
        if accepted:
            refused(accepted, resume.check_state, folder)
        else:
            resume.check_state(folder)


def test_states_of_generators(refused):
    state = as_plain(random_state())
    words = state["host"]["engine"].split(" ")
    wrong = [
        {"numpy": [*state["numpy"][:2], 10**6, 0, 0.0]},
        {"numpy": ["PCG64", *state["numpy"][1:]]},
        {"numpy": [state["numpy"][0], state["numpy"][1][:-1], *state["numpy"][2:]]},
        {"python": [3, [*state["python"][1][:-1], 10**6], None]},
        {"python": [2, *state["python"][1:]]},
        {"host": state["host"] | {"engine": " ".join([*words[:-1], "100000"])}},
        {"host": state["host"] | {"engine": " ".join(words[:-1])}},
        {"host": state["host"] | {"engine": " ".join([str(1 << 64), *words[1:]])}},
        {"device": state["device"] | {"seed": -1}},
        {"device": None},
        {"named": {"nobody": [state["host"]]}},
        {"named": []},
    ]
    for changed in wrong:
        refused("rng.json has no valid state", from_plain, state | changed, "rng.json")
    set_random_state(from_plain(state, "rng.json"))
    assert as_plain(random_state()) == state


def test_states_keep_every_bit(tmp_path):
    numbers = np.random.default_rng(0).integers(0, 1 << 63, 1000).view(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    own = {"a": numbers, "b": np.float32([0.1, -0.0]), "c": {"d": float(numbers[0]), "e": 3, "f": True}}
    (tmp_path / "scaler.json").write_text(states.text(own))
    restored = states.like(states.read(tmp_path, "scaler"), own, "here")
    assert restored["a"].tobytes() == numbers.tobytes() and restored["b"].tobytes() == own["b"].tobytes()
    assert restored["c"] == own["c"] and restored["b"].dtype == np.float32
    for wrong in (
        {"a": 1},
        own | {"c": {"d": "1", "e": 3, "f": True}},
        own | {"b": [1.0]},
        own | {"a": None},
    ):
        with pytest.raises(ValueError, match="here"):
            states.like(wrong, own, "here")
