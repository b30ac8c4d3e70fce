"""Lines of .jsonl in the common layouts -> messages; lines that are none, by file and line."""

import json

import pytest

from llm_npu.data.text import conversations

QUESTION, ANSWER = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "Be short."}
MORE = [{"role": "user", "content": "And + 1?"}, {"role": "assistant", "content": "5"}]


def read(path):
    return [messages for _, messages in conversations.find(str(path)).conversations()]


def written(folder, *records, name="a.jsonl"):
    file = folder / name
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"messages": [QUESTION, ANSWER]}, [QUESTION, ANSWER]),
        ({"messages": [SYSTEM, QUESTION, ANSWER, *MORE], "id": 7}, [SYSTEM, QUESTION, ANSWER, *MORE]),
        ({"messages": [QUESTION, {**ANSWER, "name": "x"}]}, [QUESTION, ANSWER]),
        (
            {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
            [QUESTION, ANSWER],
        ),
        (
            {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}],
             "system": "Be short."},
            [SYSTEM, QUESTION, ANSWER],
        ),
        ({"instruction": "2 + 2?", "input": "", "output": "4"}, [QUESTION, ANSWER]),
        ({"instruction": "2 + 2?", "output": "4"}, [QUESTION, ANSWER]),
        ({"instruction": "Add.", "input": "2 + 2", "output": "4"},
         [{"role": "user", "content": "Add.\n2 + 2"}, ANSWER]),
        (
            {"instruction": "And + 1?", "output": "5", "history": [["2 + 2?", "4"]], "system": "Be short."},
            [SYSTEM, QUESTION, ANSWER, *MORE],
        ),
        ({"src": "2 + 2?", "tgt": "4"}, [QUESTION, ANSWER]),
        ({"src": ["2 + 2?", "And + 1?"], "tgt": ["4", "5"]}, [QUESTION, ANSWER, *MORE]),
        ({"src": ["2 + 2?"], "tgt": ["4"], "context": {"system": "Be short."}}, [SYSTEM, QUESTION, ANSWER]),
    ],
)  # fmt: skip
def test_the_common_layouts(tmp_path, record, messages):
    assert read(written(tmp_path, record)) == [messages]


def test_blank_lines_and_a_byte_order_mark_are_no_conversations(tmp_path):
    line = json.dumps({"src": "2 + 2?", "tgt": "4"})
    (tmp_path / "a.jsonl").write_bytes(f"\ufeff{line}\n\n  \n{line}".encode())
    assert read(tmp_path) == [[QUESTION, ANSWER]] * 2


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"messages": [', "line 2 is not valid JSON"),
        ("[1]", "line 2 must be an object, not a list"),
        ({}, "line 2 has nothing, but needs one of messages, conversations, instruction, src"),
        ({"text": "x"}, "line 2 has text, but needs one of messages"),
        ({"messages": "x"}, "line 2: messages must be a list of objects with role and content"),
        ({"messages": []}, "line 2 has no messages"),
        ({"messages": [QUESTION]}, "line 2 ends with the user's message"),
        ({"messages": [QUESTION, {"role": "bot", "content": "4"}]},
         "line 2: messages: role is 'bot'; accepted: system, user, assistant"),
        ({"messages": [QUESTION, {"role": "assistant"}]}, "the assistant's message 2 must be text, not None"),
        ({"messages": [QUESTION, {"role": "assistant", "content": ["4"]}]}, "must be text, not \\['4'\\]"),
        ({"messages": [QUESTION, SYSTEM, ANSWER]}, "the system's message must be the first, not number 2"),
        ({"conversations": [{"from": "user", "value": "x"}]}, "from is 'user'; accepted: system, human, gpt"),
        ({"instruction": 3, "output": "x"}, "line 2: instruction and input must be text"),
        ({"instruction": "x"}, "line 2: the assistant's message 2 must be text, not None"),
        ({"instruction": "x", "output": "y", "history": ["x"]}, "history must be a list of"),
        ({"src": "x"}, "line 2: src and tgt must be two texts"),
        ({"src": ["x", "y"], "tgt": ["z"]}, "line 2: src and tgt must be two texts"),
        ('{"src": "x", "tgt": "\\ud800"}', "line 2: message 2 is not valid Unicode"),
    ],
)  # fmt: skip
def test_bad_lines_are_refused_with_file_and_line(tmp_path, line, sentence):
    file = written(tmp_path, {"src": "x", "tgt": "y"}, line)
    with pytest.raises(ValueError, match=sentence) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}, line 2") and "\n" not in str(caught.value)


def test_folders_and_their_held_out_part(tmp_path):
    def record(text):
        return {"src": text, "tgt": "y"}

    written(tmp_path, record("b"), name="b.jsonl")
    written(tmp_path, record("a"), name="a.jsonl")
    (tmp_path / "config.json").write_text("{}")
    everything, none = conversations.find(str(tmp_path)).parts()
    assert [messages[0]["content"] for _, messages in everything.conversations()] == ["a", "b"]
    assert none is None

    paddlenlp = tmp_path / "paddlenlp"
    paddlenlp.mkdir()
    written(paddlenlp, record("train"), name="train.json")
    written(paddlenlp, record("dev"), name="dev.json")
    parts = conversations.find(str(paddlenlp)).parts()
    assert [list(part.documents()) for part in parts] == [["train", "y"], ["dev", "y"]]
    (paddlenlp / "train.json").unlink()
    with pytest.raises(ValueError, match=r"contains only dev\.json"):
        conversations.find(str(paddlenlp)).parts()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("none", "does not exist"), ("empty", "contains no .jsonl file"), ("a.txt", "suffix '.txt'")],
)
def test_what_holds_no_conversations_is_refused(tmp_path, name, sentence):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=sentence):
        conversations.find(str(tmp_path / name))
