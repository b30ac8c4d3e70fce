"""Tokenizers: trained and cached, loaded from directories, never downloaded."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from llm_npu.config import ModelArguments
from llm_npu.core.cache import cache_folder, cached
from llm_npu.data.pipeline import tokenizer_for
from llm_npu.data.text import encoding
from llm_npu.data.text.corpus import Document, corpus
from llm_npu.data.text.encoding import encoded
from llm_npu.data.text.tokenizer import (
    SPECIAL_TOKENS,
    copy_tokenizer,
    fingerprint,
    load_tokenizer,
    trained_tokenizer,
    vocabulary_size,
)


def encode(tokenizer, texts):
    """The ids of whole documents."""
    for parts in encoded(tokenizer, [Document("a text", [text]) for text in texts]):
        yield np.concatenate([*parts])


TEXT = "def grüße(name):\n\treturn f'Grüß Gott, {name}!'  # 你好 🙂\n" * 20


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.py").write_text(TEXT, encoding="utf-8")
    return corpus(tmp_path / "text")


@pytest.fixture
def trained(text, tmp_path):
    return trained_tokenizer(text, 300, str(tmp_path / "cache"))


def test_decoding_gives_any_text_back(trained):
    tokenizer = load_tokenizer(trained)
    samples = [TEXT, "", " ", "\n\n\t ", "é", "\x00\x7f", "日本語", "👩‍👩‍👧", "a" * 1000, "  leading", "\r\n"]
    for sample, ids in zip(samples, encode(tokenizer, samples), strict=True):
        assert ids.dtype == np.int64
        assert tokenizer.decode(ids.tolist()) == sample


def test_ids_of_special_tokens_are_llamas(trained):
    tokenizer = load_tokenizer(trained)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 0)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert len(tokenizer) <= 300


def test_text_that_spells_a_special_token_stays_text(trained):
    tokenizer = load_tokenizer(trained)
    written = f"a{SPECIAL_TOKENS[2]}b"
    (ids,) = encode(tokenizer, [written])
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids.tolist()) == written
    assert tokenizer(written)["input_ids"].count(tokenizer.eos_token_id) == 1  # the switch is set back


def test_training_is_deterministic_and_happens_once(text, trained, tmp_path):
    again = trained_tokenizer(text, 300, str(tmp_path / "other"))
    assert (again / "tokenizer.json").read_bytes() == (trained / "tokenizer.json").read_bytes()
    assert again.name == trained.name
    (trained / "mark").touch()
    assert (trained_tokenizer(text, 300, str(tmp_path / "cache")) / "mark").exists()
    assert trained_tokenizer(text, 301, str(tmp_path / "cache")) != trained


def test_the_key_depends_on_the_content_of_the_corpus(text, trained, tmp_path):
    file = text.files[0]
    file.write_text(TEXT + "x", encoding="utf-8")
    assert trained_tokenizer(corpus(file.parent), 300, str(tmp_path / "cache")) != trained


def test_a_vocabulary_too_small_for_all_bytes_is_refused(text, tmp_path):
    with pytest.raises(ValueError, match=r"259 tokens, .* 258"):
        trained_tokenizer(text, 258, str(tmp_path))
    assert trained_tokenizer(text, 259, str(tmp_path)).is_dir()


def test_a_corpus_without_text_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "empty.txt").touch()
    with pytest.raises(ValueError, match="contains no text"):
        trained_tokenizer(corpus(tmp_path / "text"), 300, str(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache_is_named_by_argument_then_environment_then_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("LLM_NPU_CACHE", raising=False)
    assert cache_folder() == tmp_path / "xdg" / "llm_npu"
    monkeypatch.setenv("LLM_NPU_CACHE", str(tmp_path / "env"))
    assert cache_folder() == tmp_path / "env"
    assert cache_folder(str(tmp_path / "arg")) == tmp_path / "arg"


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="LLM_NPU_CACHE or --data_cache"):
        cached("name", lambda folder: None, str(tmp_path / "file"))


def test_a_file_elsewhere_that_cannot_be_read_is_not_blamed_on_the_cache(tmp_path):
    with pytest.raises(FileNotFoundError):
        cached("name", lambda folder: (tmp_path / "text" / "missing").read_text(), str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="cache cannot be written"):
        cached("name", lambda folder: (folder / "none" / "file").touch(), str(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


BUILD = """
import os, sys
from pathlib import Path
from llm_npu.core.cache import cached
folder, name = Path(sys.argv[1]), sys.argv[2]
(folder / f"begun-{name}").touch()
def build(new):
    while len(list(folder.glob("begun-*"))) < 3:  # all want it
        os.sched_yield()
    (folder / f"built-by-{name}").touch()
    (new / "content").write_text("whole")
print(cached("name", build, str(folder / "cache")) / "content")
"""


def test_one_of_several_processes_builds_and_the_others_wait(tmp_path):
    command = [sys.executable, "-c", BUILD, tmp_path]
    workers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "abc"]
    for worker in workers:
        (file,) = worker.communicate(timeout=120)[0].splitlines()
        assert Path(file).read_text() == "whole"
    assert len(list(tmp_path.glob("built-by-*"))) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["name"]


def test_without_locks_of_two_that_build_at_once_one_wins_and_both_go_on(tmp_path):
    """Two threads: the lock is between processes."""
    both = threading.Barrier(2, timeout=60)
    folders, results = [], []

    def build(folder):
        folders.append(folder)
        (folder / "content").write_text("whole")
        both.wait()  # neither has published before both have built

    workers = [
        threading.Thread(target=lambda: results.append(cached("name", build, str(tmp_path))))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(set(folders)) == 2
    assert results == [tmp_path / "name"] * 2
    assert (tmp_path / "name" / "content").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_a_killed_build_counts_for_nothing_and_is_cleared_away(tmp_path, run_python):
    code = (
        "import os, sys\n"
        "from llm_npu.core.cache import cached\n"
        "def build(folder):\n"
        "    (folder / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
        "cached('name', build, sys.argv[1])\n"
    )
    assert run_python("-c", code, tmp_path).returncode == -9
    left, lock = sorted(tmp_path.iterdir(), key=lambda path: path.is_file())
    assert left.name.startswith(".name.unfinished-") and lock.name == ".name.lock"
    assert cached("name", lambda folder: (folder / "whole").touch(), str(tmp_path)) == tmp_path / "name"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".files", "name", "whole"]


@pytest.mark.parametrize(
    "clean",
    [
        lambda file: file.unlink(),
        lambda file: [path.unlink() for path in file.parent.iterdir()],
        lambda file: os.truncate(file, 2),
        lambda file: shutil.rmtree(file.parent),
    ],
)
def test_a_folder_that_a_cleaner_emptied_is_built_again(tmp_path, clean):
    def build(folder):
        (folder / "content").write_text("whole")
        builds.append(folder)

    builds = []
    for _ in range(2):
        file = cached("name", build, str(tmp_path)) / "content"
    assert len(builds) == 1
    clean(file)
    for _ in range(2):
        assert (cached("name", build, str(tmp_path)) / "content").read_text() == "whole"
    assert len(builds) == 2 and [path.name for path in tmp_path.iterdir()] == ["name"]


def test_a_failed_build_leaves_nothing(tmp_path):
    def build(folder):
        (folder / "half").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached("name", build, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_hugging_face_directory_is_loaded(trained, tmp_path):
    """Hugging Face writes tokens as objects, and names a class that PaddleNLP does not have."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((trained / "tokenizer.json").read_bytes())
    eos = {"__type": "AddedToken", "content": SPECIAL_TOKENS[2], "lstrip": False, "special": True}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "bos_token": None})
    )
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_token_id, tokenizer.bos_token) == (2, None)


def test_a_directory_saved_by_paddlenlp_is_loaded(trained, tmp_path):
    tokenizer = load_tokenizer(trained)
    tokenizer.save_pretrained(str(tmp_path / "saved"))
    saved = load_tokenizer(tmp_path / "saved")
    assert saved(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    assert fingerprint(saved) == fingerprint(tokenizer)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["tokenizer.model", "sentencepiece.bpe.model"])
def test_a_sentencepiece_model_is_loaded(tmp_path, name):
    import sentencepiece

    (tmp_path / "text").write_text(TEXT * 5, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=330, model_type="bpe",
        byte_fallback=True, character_coverage=1.0, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    (tmp_path / "m.model").rename(tmp_path / name)
    size = vocabulary_size(load_tokenizer(tmp_path))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size + 1, "<|im_start|>": size}))
    tokenizer = load_tokenizer(tmp_path)
    (ids,) = encode(tokenizer, ["return name"])
    assert tokenizer.decode(ids.tolist()).strip() == "return name"
    beyond = [*ids.tolist(), size + 7]  # as of a model whose vocabulary is padded
    assert encoding.decoded(tokenizer, [beyond]) == encoding.decoded(tokenizer, [ids.tolist()])
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert not {1, 2} & set(ids.tolist())
    assert vocabulary_size(tokenizer) == size + 2
    (marked,) = encoding.ids(tokenizer, ["<|im_start|>a<|im_end|>"])
    assert (marked[0], marked[-1]) == (size, size + 1) and len(marked) > 2
    text = TEXT * 600
    (whole,) = encode(tokenizer, [text])  # in pieces
    assert whole.tolist() == sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / name)).encode(
        text
    )
    assert len(fingerprint(tokenizer)) == 64


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "neither tokenizer.json nor tokenizer.model"),
        ({"tokenizer.json": "{"}, "cannot be read"),
        ({"tokenizer.json": "{}"}, "cannot be read"),
        ({"tokenizer.model": "no model"}, "cannot be read"),
        ({"tokenizer.json": None, "tokenizer_config.json": "{"}, "tokenizer_config.json cannot be read"),
        ({"tokenizer.json": None, "tokenizer_config.json": "[]"}, "tokenizer_config.json cannot be read"),
        ({"tokenizer.json": None}, "has no eos_token"),
    ],
)
def test_directories_without_a_usable_tokenizer_are_refused(trained, tmp_path, files, words):
    folder = tmp_path / "t"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text((trained / name).read_text() if content is None else content)
    with pytest.raises(ValueError, match=words):
        load_tokenizer(folder)


def test_a_vocabulary_with_two_tokens_of_one_id_is_refused(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "t")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["another"] = 0
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="several tokens with the same id"):
        load_tokenizer(folder)


def test_nothing_is_downloaded():
    with pytest.raises(ValueError, match="'meta-llama/Llama-2-7b' is not a local directory"):
        load_tokenizer("meta-llama/Llama-2-7b")


def test_which_tokenizer_a_run_uses(text, trained, tmp_path):
    cache = str(tmp_path / "cache")
    preset = ModelArguments()
    assert len(tokenizer_for(preset, text, 300, cache)) == len(load_tokenizer(trained))
    message = r"ids\.bin contains .* but .*/ids-tokenizer does not exist; specify the tokenizer"
    with pytest.raises(ValueError, match=message):
        tokenizer_for(preset, tmp_path / "ids", 300, cache)
    named = ModelArguments(tokenizer_name_or_path=str(trained))
    size = len(tokenizer_for(named, tmp_path / "ids", 300, cache))
    assert size == len(load_tokenizer(trained))
    with pytest.raises(ValueError, match=f"ids up to {size - 1}, .* llama-tiny has {size - 1} tokens"):
        tokenizer_for(named, text, size - 1, cache)
    model = ModelArguments(model_name_or_path=str(trained))
    assert len(tokenizer_for(model, text, size, cache)) == size


def test_the_tokenizer_of_pair_a_pair_goes_before_the_models_and_after_the_named_one(text, trained, tmp_path):
    other = trained_tokenizer(text, 280, str(tmp_path / "cache"))
    copy_tokenizer(other, tmp_path / "v1.5-tokenizer")
    pair, expected = tmp_path / "v1.5", fingerprint(load_tokenizer(other))
    for model in (ModelArguments(), ModelArguments(model_name_or_path=str(trained))):
        assert fingerprint(tokenizer_for(model, pair, 300)) == expected
    named = ModelArguments(tokenizer_name_or_path=str(trained))
    assert fingerprint(tokenizer_for(named, pair, 300)) != expected


def test_copying_a_tokenizer_leaves_the_model_behind(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").touch()
    copy_tokenizer(str(tmp_path / "model"), tmp_path / "copy")
    assert fingerprint(load_tokenizer(tmp_path / "copy")) == fingerprint(load_tokenizer(trained))
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
