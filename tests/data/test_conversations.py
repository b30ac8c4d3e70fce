"""Lines of .jsonl in the common layouts -> messages; lines that are none, by file and line."""

import json

import pytest

from llm_npu.data.text.conversations import Conversations

pytestmark = pytest.mark.sampled

QUESTION, ANSWER = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "Be short."}
MORE = [{"role": "user", "content": "And + 1?"}, {"role": "assistant", "content": "5"}]


def read(path):
    return [conversation.messages for conversation in Conversations.find(str(path)).conversations()]


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
        ({"messages": [QUESTION, {**ANSWER, "name": "x"}]}, [QUESTION, {**ANSWER, "name": "x"}]),
        ({"messages": [QUESTION, {**ANSWER, "name": None, "tool_calls": []}]}, [QUESTION, ANSWER]),
        ({"messages": [QUESTION, ANSWER], "system": "Be short."}, [SYSTEM, QUESTION, ANSWER]),
        ({"messages": [SYSTEM, QUESTION, ANSWER], "system": "Be short."}, [SYSTEM, QUESTION, ANSWER]),
        ({"messages": [QUESTION, ANSWER], "conversations": None, "src": ""}, [QUESTION, ANSWER]),
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
        ({"instruction": "", "input": "2 + 2?", "output": "4"}, [QUESTION, ANSWER]),
        ({"query": "And + 1?", "response": "5", "history": [["2 + 2?", "4"]]}, [QUESTION, ANSWER, *MORE]),
        ({"src": ["Be short.", "2 + 2?"], "tgt": ["-", "4"], "is_system": 1}, [SYSTEM, QUESTION, ANSWER]),
        ({"src": "2 + 2?", "tgt": "4", "system": "Be short."}, [SYSTEM, QUESTION, ANSWER]),
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
        ('{"src": "x", "src": "y", "tgt": "z"}', "line 2 is not valid JSON: the key src appears twice"),
        ('{"src": "x", "tgt": "y", "n": ' + "9" * 5000 + "}", "line 2 cannot be read: Exceeds the limit"),
        ({}, "line 2 has nothing, .* messages, conversations, instruction, src"),
        ({"text": "x"}, "line 2 has text, but needs one of messages"),
        ({"messages": "x"}, "line 2: messages must be a list"),
        ({"messages": []}, "line 2 has no messages"),
        ({"messages": [QUESTION]}, "line 2 ends with the user message"),
        ({"messages": [QUESTION, {"role": "bot", "content": "4"}]},
         "line 2: messages: role is 'bot'; accepted: system, user, assistant"),
        ({"messages": [QUESTION, {"role": "assistant"}]}, "message 2 must be text, not None"),
        ({"messages": [QUESTION, {"role": "assistant", "content": ["4"]}]}, "must be text, not \\['4'\\]"),
        ({"messages": [QUESTION, SYSTEM, ANSWER]}, "system message .* not number 2"),
        ({"conversations": [{"from": "user", "value": "x"}]}, "from is 'user'; accepted: system, human, gpt"),
        ({"instruction": 3, "output": "x"}, "line 2: instruction and input must be text"),
        ({"instruction": "x"}, "line 2: .*message 2 must be text, not None"),
        ({"instruction": "x", "output": "y", "history": ["x"]}, "history must be a list of"),
        ({"messages": [{**QUESTION, "role": ["user"]}]}, r"messages: role is \['user'\]; accepted: system"),
        ({"messages": [QUESTION, ANSWER], "src": "x", "tgt": "y"}, "has messages and src, two conversations"),
        ({"messages": [SYSTEM, QUESTION, ANSWER], "system": "x"}, "a different system message"),
        ({"messages": [QUESTION, ANSWER], "system": 0}, "message 1 must be text, not 0"),
        ({"messages": [QUESTION, ANSWER], "images": ["a.png"]}, "line 2 has images, but only text"),
        ({"messages": [{**QUESTION, "audio": {"id": 1}}, ANSWER]}, "messages has audio, but only text"),
        ({"messages": [QUESTION, {**ANSWER, "weight": 0.5}]}, r"weight of message 2 is 0\.5; accepted: 1"),
        ({"messages": [QUESTION, {**ANSWER, "loss": "no"}]}, "loss of message 2 is 'no'; accepted: 1"),
        ({"messages": [QUESTION, ANSWER], "tools": "x"}, "line 2: tools is not valid JSON"),
        ({"messages": [QUESTION, ANSWER], "tools": {"a": 1}}, "line 2: tools must be a list"),
        ({"messages": [QUESTION, {**ANSWER, "tool_calls": [{}]}]}, "tool_calls: a call has no name"),
        ({"conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "y"}]},
         "conversations: from function_call is not valid JSON"),
        ({"instruction": "x", "input": 0, "output": "y"}, "line 2: instruction and input must be text"),
        ({"src": ["x"], "tgt": ["y"], "label": [1, 0]}, "label must be a list"),
        ({"src": ["x"], "tgt": ["y"], "label": [2]}, "weight of message 2 is 2; accepted: 1"),
        ({"src": ["x"], "tgt": ["y"], "is_system": "yes"}, "is_system is 'yes'; accepted: 1 and 0"),
        ({"src": ["x"], "tgt": ["y"], "context": "S"}, "context must be an object"),
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
    everything, *none = Conversations.find(str(tmp_path)).parts()
    assert [conversation.messages[0]["content"] for conversation in everything.conversations()] == ["a", "b"]
    assert none == [None, None]

    paddlenlp = tmp_path / "paddlenlp"
    paddlenlp.mkdir()
    written(paddlenlp, record("train"), name="train.json")
    written(paddlenlp, record("dev"), name="dev.json")
    train, dev, none = Conversations.find(str(paddlenlp)).parts()
    assert [list(part.documents()) for part in (train, dev)] == [["train", "y"], ["dev", "y"]]
    assert none is None
    (paddlenlp / "train.json").unlink()
    with pytest.raises(ValueError, match=r"contains only dev\.json"):
        Conversations.find(str(paddlenlp))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("none", "does not exist"), ("empty", "contains no .jsonl file"), ("a.txt", "suffix '.txt'")],
)
def test_what_holds_no_conversations_is_refused(tmp_path, name, sentence):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=sentence):
        Conversations.find(str(tmp_path / name))


def test_answers_that_are_context_only(tmp_path):
    weighed = [QUESTION, {**ANSWER, "weight": 0}, *MORE[:1], {**MORE[1], "weight": 1}]
    file = written(
        tmp_path,
        {"messages": weighed},
        {"messages": [{**QUESTION, "loss": False}, {**ANSWER, "loss": False}, *MORE]},
        {"src": ["2 + 2?", "And + 1?"], "tgt": ["4", "5"], "label": [0, 1]},
        {
            "conversations": [
                {"from": "human", "value": "2 + 2?"},
                {"from": "gpt", "value": "4", "train": True},
            ]
        },
        {"messages": [{**QUESTION, "weight": 1}, ANSWER]},
    )
    all_conversations = list(Conversations.find(str(file)).conversations())
    assert [conversation.messages for conversation in all_conversations[:3]] == [
        [QUESTION, ANSWER, *MORE]
    ] * 3
    assert [conversation.context for conversation in all_conversations] == [{1}, {1}, {1}, set(), set()]
    assert [conversation.unread for conversation in all_conversations] == [
        (),
        (),
        (),
        (),
        ("weight of a user message",),
    ]


def test_keys_that_nothing_reads_are_named(tmp_path):
    more = {"id": 7, "source": "x", "score": 0, "empty": [], "none": None}
    file = written(
        tmp_path, {"messages": [QUESTION, ANSWER], **more}, {"src": "x", "tgt": "y", "output": "z"}
    )
    first, second = Conversations.find(str(file)).conversations()
    assert (first.unread, second.unread) == (("id", "source", "score"), ("output",))


def test_tools_and_calls(tmp_path):
    tools = [{"type": "function", "function": {"name": "add"}}]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    as_text = {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    result = {"role": "tool", "content": "4"}
    file = written(
        tmp_path,
        {"messages": [QUESTION, {"role": "assistant", "tool_calls": [as_text]}, result, ANSWER],
         "tools": tools},
        {"conversations": [{"from": "human", "value": "2 + 2?"},
                           {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2}}'},
                           {"from": "observation", "value": "4"}, {"from": "gpt", "value": "4"}],
         "tools": json.dumps(tools)},
    )  # fmt: skip
    for conversation in Conversations.find(str(file)).conversations():
        tool_call = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert conversation.messages == [QUESTION, tool_call, result, ANSWER] and conversation.tools == tools
