"""Pointers of git-LFS in place of files: one sentence, whatever reads them."""

import pytest

from llm_npu.core import tensor_file
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.data.indexed import open_indexed
from llm_npu.data.text import chat_template
from llm_npu.data.text.conversations import Conversations
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import load_tokenizer
from llm_npu.models import presets
from llm_npu.models.stored import Stored

READERS = {
    "tokenizer.json": lambda file: load_tokenizer(file.parent),
    "tokenizer.model": lambda file: load_tokenizer(file.parent),
    "tokenizer_config.json": lambda file: load_tokenizer(file.parent),
    "added_tokens.json": lambda file: load_tokenizer(file.parent),
    "chat_template.jinja": chat_template.read,
    "config.json": lambda file: presets.model_config(str(file.parent)),
    "model.safetensors": lambda file: Stored(file.parent),
    "model.safetensors.index.json": lambda file: Stored(file.parent),
    "optimizer.safetensors": tensor_file.places,
    "any.json": plain_json.load,
    "a.txt": lambda file: list(corpus(file).documents()),
    "a.py": lambda file: list(corpus(file).documents()),
    "a.jsonl": lambda file: list(corpus(file).documents()),
    "chats.jsonl": lambda file: list(Conversations.find(str(file)).conversations()),
    "p.bin": lambda file: open_indexed(file.with_suffix("")),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 499723\n"
    (tmp_path / "p.idx").touch()
    (tmp_path / name).write_text(pointer)
    with pytest.raises(UserError, match=f"{name} is a git-LFS pointer"):
        READERS[name](tmp_path / name)
