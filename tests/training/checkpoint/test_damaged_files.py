"""Files that a user may get from somebody else, damaged at random: each is read, or refused with a sentence.

A reader's result is looked at as the program would. What is no ValueError or OSError is a fault, also of the
libraries below.
"""

import gzip
import json
import shutil

import numpy as np
import pytest
from handmade_profiles import msprof
from handmade_profiles.step import STEP
from mutations import mutations
from tiny_models import fields_of

from llm_npu.config.written import read_file
from llm_npu.core import tensor_file
from llm_npu.data import answers, indexed
from llm_npu.data.text import chat_template, corpus, encoding, records, turns
from llm_npu.data.text.conversations import Conversations
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer
from llm_npu.models import presets
from llm_npu.models.paddlenlp import internlm2
from llm_npu.models.stored import Stored
from llm_npu.models.stored import write as write_weights
from llm_npu.numerics.dumped import Dumped
from llm_npu.numerics.options import write
from llm_npu.profiling.report import summary
from llm_npu.profiling.report.pages import plain
from llm_npu.training import checkpoint, metrics, resume
from llm_npu.training.checkpoint import states
from llm_npu.training.checkpoint.random_state import as_plain, from_plain, random_state
from llm_npu.training.checkpoint.saving import Checkpoints
from llm_npu.training.dry_run import journal

pytestmark = pytest.mark.sampled

CHAT = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
ALPACA = {"instruction": "a", "output": "b", "history": [["c", "d"]]}
SHAREGPT = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
PADDLENLP = {"src": ["a"], "tgt": ["b"], "context": {"system": "c"}}
SETTINGS = {"max_steps": 10, "lora_target": ["q_proj"], "skip_data_intervals": [[1, 2], [3, 4]]}
RUN = {"fixed": {"seed": 1}, "schedule": {"max_steps": 9}, "mesh": {}}
STATE = {"scale": np.float32([65536]), "incr_count": 3, "ratio": 2.0, "used": True}
ARGUMENTS = (
    "max_steps: 10\nlearning_rate: 1.0e-3\nlora_target: [q_proj, o_proj]\nbf16: no\nwhen: 2024-01-02\n"
)
JOURNAL = [
    {"event": "mark", "text": "group 7 tensor"},
    {"event": "mark", "text": "step begins"},
    {"event": "allocate", "id": 7, "bytes": 512, "by": "matmul"},
    {
        "event": "operator",
        "name": "matmul",
        "dtype": "bfloat16",
        "placement": "npu",
        "inputs": [["bfloat16", [2, 3]], ["bfloat16", [3, 4]]],
        "outputs": [["bfloat16", [2, 4]]],
        "allocated": 512,
    },
    {
        "event": "collective",
        "kind": "all_reduce",
        "group": "7",
        "ranks": 2,
        "peer": 0,
        "dtype": "float32",
        "elements": 16,
        "bytes": 64,
        "stream": 1,
    },
    {"event": "free", "id": 7},
    {"event": "mark", "text": "step ends"},
]
WEIGHTS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.uint16),
    "c": np.ones(()),
}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def write_tokenizer(name):
    def write(folder):
        (folder / "text.txt").write_text("to be, or not to be\n" * 9)
        return trained_tokenizer(corpus.corpus(folder / "text.txt"), 270, str(folder)) / name

    return write


def read_tokenizer(file):
    encoding.ids(load_tokenizer(file.parent), ["to be </s>"])


def write_journal(folder):
    (folder / "step.jsonl").write_text(lines(*JOURNAL))
    return folder / "step.jsonl"


def read_journal(file):
    for step in journal.read(file).steps:
        for call in step.calls:
            assert isinstance(call.bytes, int) and isinstance(call.flops, int) and call.kind
        [collective.payload for collective in step.collectives]


def write_pair(folder):
    documents = [np.arange(5), np.arange(3), np.arange(7)]
    indexed.write_indexed(folder / "pair", documents, 100)
    return folder / "pair.idx"


def read_pair(file):
    reopened = indexed.open_indexed(file.with_suffix(""))
    reopened.tokens[: reopened.ends[-1]].sum()


def write_cached(name):
    def write(folder):
        np.save(folder / "ids.npy", np.arange(9, dtype=np.int32))
        np.save(folder / "learnt.npy", np.arange(9) % 3 == 1)
        np.save(folder / "ends.npy", np.array([4, 6, 9]))
        np.save(folder / "last_texts.npy", np.array([1, 3]))
        return folder / f"{name}.npy"

    return write


def write_unused(folder):
    unused = records.Unused()
    unused.unread["id"] += 3
    unused.omitted["tools"] += 2
    unused.save(folder)
    return folder / "unused.json"


def read_cached(file):
    cached = answers.Answers(file.parent, 0, answers.count(file.parent), 8, 100)
    for number in range(min(len(cached.lengths), 10)):
        cached.read(number)


def write_text(name, text):
    def write(folder):
        (folder / name).write_text(text)
        return folder / name

    return write


def write_safetensors(folder):
    write_weights(WEIGHTS, folder)
    return folder / "model.safetensors"


def write_sharded(folder):
    write_weights(WEIGHTS, folder, {"one.safetensors": ["a", "b"], "two.safetensors": ["c"]})
    return folder / "model.safetensors.index.json"


def read_stored(file):
    stored = Stored(file.parent)
    for name in stored:
        stored[name].sum()


def read_mapped(file):
    for array in tensor_file.Reader([file]).values():
        array.sum()


def write_internlm2(folder):
    write_weights({"model.layers.0.attention.wqkv.weight": np.zeros((128, 64), np.float32)}, folder)
    (folder / "config.json").write_text(json.dumps(fields_of("llama") | {"model_type": "internlm2"}))
    return folder / "config.json"


def write_dump(folder):
    write(WEIGHTS, folder / "dump")
    return folder / "dump" / "order.json"


def write_checkpoint(folder):
    Checkpoints(folder).save(3, {}, {"a.json": lambda to: (to / "a.json").write_text("{}")})
    return checkpoint.path_of(folder, 3) / checkpoint.MARK


def write_state(folder):
    (folder / "scaler.json").write_text(states.text(STATE))
    return folder / "scaler.json"


def write_random_state(folder):
    (folder / "rng_state_0.json").write_text(states.text(as_plain(random_state())))
    return folder / "rng_state_0.json"


def write_profile(name):
    def write(folder):
        output = msprof.write(folder / "PROF_1", STEP)
        file = next(output.glob(f"{name}_*"))
        for other in ("op_summary", "msprof"):
            if other != name:
                next(output.glob(f"{other}_*")).unlink()
        return file

    return write


def write_packed_trace(folder):
    events = {"traceEvents": msprof.events(STEP)}
    (folder / "rank_0.paddle_trace.json.gz").write_bytes(gzip.compress(json.dumps(events).encode()))
    return folder / "rank_0.paddle_trace.json.gz"


def read_profile(file):
    folder = next(parent for parent in (*file.parents,) if not parent.name.startswith(("PROF", "mindstudio")))
    plain.write(summary.build(folder))


def read_template(file):
    class Tokenizer:
        special_tokens_map = {"eos_token": "</s>"}  # noqa: RUF012
        init_kwargs: dict = {}  # noqa: RUF012

    tokenizer = Tokenizer()
    source = chat_template.read(file)
    if isinstance(source, str):
        chat_template.attach(tokenizer, source)
        turns.samples(tokenizer, CHAT)


# {format: (what writes the file in a folder and returns its path, what reads it)}
FORMATS = {
    "journal": (write_journal, read_journal),
    "idx": (write_pair, read_pair),
    "ids.npy": (write_cached("ids"), read_cached),
    "learnt.npy": (write_cached("learnt"), read_cached),
    "ends.npy": (write_cached("ends"), read_cached),
    "last_texts.npy": (write_cached("last_texts"), read_cached),
    "unused.json": (write_unused, lambda file: records.Unused().add_saved(file.parent)),
    "text.jsonl": (
        write_text("a.jsonl", lines({"text": "one"}, {"text": "two"})),
        lambda file: list(corpus.corpus(file).documents()),
    ),
    "chats.jsonl": (
        write_text("a.jsonl", lines({"messages": CHAT}, ALPACA)),
        lambda file: list(Conversations.find(str(file)).conversations()),
    ),
    "shared chats": (
        write_text("a.jsonl", lines(SHAREGPT, PADDLENLP)),
        lambda file: list(Conversations.find(str(file)).conversations()),
    ),
    "arguments.yaml": (write_text("run.yaml", ARGUMENTS), lambda file: read_file(str(file))),
    "arguments.json": (
        write_text("run.json", json.dumps(SETTINGS)),
        lambda file: read_file(str(file)),
    ),
    "config.json": (
        write_text("config.json", json.dumps(fields_of("llama3"))),
        lambda file: presets.model_config(str(file.parent)),
    ),
    "internlm2": (
        write_internlm2,
        lambda file: internlm2.to_llama(file.parent, file.parent / "llama"),
    ),
    "model.safetensors": (write_safetensors, read_stored),
    "optimizer.safetensors": (write_safetensors, read_mapped),
    "index.json": (write_sharded, read_stored),
    "order.json": (write_dump, lambda file: list(Dumped(file.parent).values())),
    "complete.json": (write_checkpoint, lambda file: checkpoint.verify(file.parent)),
    "run.json": (
        write_text("run.json", json.dumps(RUN)),
        lambda file: resume.changes(file.parent, {**RUN, "mesh": {"tensor": 2}}),
    ),
    "scaler.json": (
        write_state,
        lambda file: states.like(states.read(file.parent, "scaler"), STATE, str(file)),
    ),
    "rng_state.json": (
        write_random_state,
        lambda file: from_plain(states.read(file.parent, "rng_state_0"), str(file)),
    ),
    "metrics.jsonl": (
        write_text("metrics.jsonl", lines({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25})),
        metrics.read,
    ),
    "op_summary": (write_profile("op_summary"), read_profile),
    "msprof": (write_profile("msprof"), read_profile),
    "paddle_trace": (write_packed_trace, read_profile),
    "tokenizer.json": (write_tokenizer("tokenizer.json"), read_tokenizer),
    "tokenizer_config.json": (write_tokenizer("tokenizer_config.json"), read_tokenizer),
    "template.jinja": (write_text("t.jinja", chat_template.DEFAULT), read_template),
    "chat_template.json": (
        write_text("t.json", json.dumps({"chat_template": chat_template.DEFAULT})),
        read_template,
    ),
}  # fmt: skip


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(tmp_path, name, count):
    write, read = FORMATS[name]
    file = write(tmp_path)
    read(file)  # as it is, it is good
    for target in tmp_path.glob("llama"):
        shutil.rmtree(target)
    content = file.read_bytes()
    for number, damaged in enumerate(mutations(content, count)):
        file.write_bytes(damaged)
        try:
            read(file)
        except (ValueError, OSError) as error:
            assert str(error)
        except BaseException as error:
            raise AssertionError(f"copy {number}: {damaged[:400]!r}") from error
        for target in tmp_path.glob("llama"):
            shutil.rmtree(target)
