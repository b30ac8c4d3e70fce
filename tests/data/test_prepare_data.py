"""scripts/prepare_data.py: text -> .bin + .idx, complete or not at all."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT

from llm_npu.config import ModelArguments
from llm_npu.data.indexed import open_indexed, write_indexed
from llm_npu.data.pipeline import tokenizer_for
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import fingerprint, load_tokenizer, trained_tokenizer

pytestmark = pytest.mark.sampled

SCRIPT = ROOT / "scripts" / "prepare_data.py"
RECORDS = ["One two three.", "Grüße — 你好 🙂", "x", "no newline"]


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.jsonl"
    file.write_text("\n".join(json.dumps({"text": record}) for record in RECORDS), encoding="utf-8")
    return file


@pytest.fixture
def tokenizer(text, tmp_path):
    return trained_tokenizer(corpus(text), 300, str(tmp_path / "cache"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_text_becomes_a_pair_and_a_tokenizer_that_give_the_text_back(text, tmp_path, run_python):
    out = tmp_path / "out"
    arguments = ("--input_dir", text, "--output_prefix", out / "v1.5", "--vocab_size", "300")
    write_indexed(out / "v1.5", [np.arange(10)], 100)  # output of an earlier run, to be replaced
    (out / "v1.5-tokenizer").mkdir()
    (out / "v1.5-tokenizer" / "old").touch()
    done = run_python(SCRIPT, *arguments, LLM_NPU_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("4 documents, ")
    assert names(out) == ["v1.5-tokenizer", "v1.5.bin", "v1.5.idx"]
    assert names(out / "v1.5-tokenizer") == ["tokenizer.json", "tokenizer_config.json"]
    written = open_indexed(out / "v1.5")
    tokenizer = load_tokenizer(out / "v1.5-tokenizer")
    documents = np.split(np.asarray(written.tokens), written.ends[:-1])
    assert [int(ids[-1]) for ids in documents] == [tokenizer.eos_token_id] * 4
    assert [tokenizer.decode(ids[:-1].tolist()) for ids in documents] == RECORDS


@pytest.mark.slow
@pytest.mark.parametrize("source", ["elsewhere", "out/p-tokenizer"])
def test_the_named_tokenizer_replaces_the_one_of_an_earlier_run(
    text, tokenizer, tmp_path, run_python, source
):
    shutil.copytree(tokenizer, tmp_path / source)
    (tmp_path / "out" / "p-tokenizer").mkdir(parents=True, exist_ok=True)
    (tmp_path / "out" / "p-tokenizer" / "old").touch()
    arguments = ("--input_dir", text, "--output_prefix", "out/p", "--tokenizer_name_or_path", source)
    done = run_python(SCRIPT, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out") == ["p-tokenizer", "p.bin", "p.idx"]
    assert names(tmp_path / "out" / "p-tokenizer") == ["tokenizer.json", "tokenizer_config.json"]
    used = tokenizer_for(ModelArguments(), tmp_path / "out" / "p", 300)
    assert fingerprint(used) == fingerprint(load_tokenizer(tokenizer))


def test_wherever_a_run_is_killed_ids_never_stand_beside_the_tokenizer_of_others(tmp_path, run_python):
    code = """
import os, sys
from pathlib import Path
from llm_npu.commands.prepare_data import replace

def files(folder):
    return [folder / "p.idx", folder / "p.bin", folder / "p-tokenizer" / "tokenizer.json"]

def killed_at(change, folder):
    for kind in (folder, folder / "new"):
        (kind / "p-tokenizer").mkdir(parents=True)
        for file in files(kind):
            file.write_text(kind.name)
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    seen = []
    def kill(event, arguments):
        if event in ("os.rename", "os.remove", "os.rmdir"):
            seen.append(event)
            if len(seen) == change:
                os.kill(os.getpid(), 9)
    sys.addaudithook(kill)
    replace(folder / "p", folder / "new" / "p", folder / "new" / "p-tokenizer")
    os._exit(0)

change, killed = 0, True
while killed:
    change += 1
    folder = Path(sys.argv[1], str(change), "old")
    killed = killed_at(change, folder)
    print(*(file.read_text() if file.exists() else "none" for file in files(folder)))
"""
    done = run_python("-c", code, tmp_path)
    *killed, finished = [line.split() for line in done.stdout.splitlines()]
    assert finished == ["new"] * 3, done.stderr
    assert len(killed) >= 5
    assert all(index == "none" or index == binary == tokenizer for index, binary, tokenizer in killed), killed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input_dir", "none.txt"], "none.txt does not exist"),
        (["--input_dir", "text.jsonl", "--tokenizer_name_or_path", "hub/name"], "nothing is downloaded"),
        (["--input_dir", "text.jsonl", "--vocab_size", "5"], "needs 259 tokens"),
        (["--input_dir", "bad.jsonl", "--tokenizer_name_or_path", "tokenizer"], "bad.jsonl, line 3"),
    ],
)
def test_bad_input_is_one_sentence_status_2_and_no_output(
    text, tokenizer, tmp_path, run_python, arguments, words
):
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n' * 2 + "{")
    (tmp_path / "tokenizer").symlink_to(tokenizer)
    done = run_python(
        SCRIPT, *arguments, "--output_prefix", "out/p", cwd=tmp_path, LLM_NPU_CACHE=str(tmp_path / "cache")
    )
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert last.startswith("error: ")
    assert words in last
    assert not (tmp_path / "out").exists() or names(tmp_path / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_leaves_no_output(tokenizer, tmp_path, sent, status):
    pipe = tmp_path / "text.txt"
    os.mkfifo(pipe)
    arguments = [
        "--input_dir",
        pipe,
        "--output_prefix",
        tmp_path / "out" / "p",
        "--tokenizer_name_or_path",
        tokenizer,
    ]
    with (
        subprocess.Popen([sys.executable, SCRIPT, *map(str, arguments)], stderr=subprocess.PIPE) as process,
        pipe.open("wb"),  # returns when the script has begun to read the text, in the middle of writing
    ):
        assert len(names(tmp_path / "out")) == 1
        process.send_signal(sent)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == status
    assert b"Traceback" not in errors
    assert names(tmp_path / "out") == []


@pytest.mark.slow
def test_what_a_killed_run_left_is_no_output_and_the_next_run_clears_it_away(tmp_path, run_python):
    code = (
        "import os, sys, pathlib, numpy\n"
        "from llm_npu.data.indexed import write_indexed\n"
        "def documents():\n"
        "    yield numpy.arange(10)\n"
        "    os.kill(os.getpid(), 9)\n"
        "write_indexed(pathlib.Path(sys.argv[1]), documents(), 100)\n"
    )
    prefix = tmp_path / "p"
    assert run_python("-c", code, prefix).returncode == -9
    (left,) = names(tmp_path)
    assert left.startswith(".p.unfinished-")
    with pytest.raises(ValueError, match=r"p\.idx is missing"):
        open_indexed(prefix)
    write_indexed(prefix, [np.arange(3)], 100)
    assert names(tmp_path) == ["p.bin", "p.idx"]
    assert open_indexed(prefix).tokens.tolist() == [0, 1, 2]


def test_two_writers_of_one_pair_do_not_disturb_each_other(tmp_path):
    prefix = tmp_path / "p"

    def outer():
        yield np.arange(5)
        write_indexed(prefix, [np.arange(2)], 100)  # another writer begins and ends meanwhile
        assert open_indexed(prefix).tokens.tolist() == [0, 1]
        yield np.arange(5, 7)

    write_indexed(prefix, outer(), 100)
    assert open_indexed(prefix).tokens.tolist() == list(range(7))
    assert names(tmp_path) == ["p.bin", "p.idx"]
