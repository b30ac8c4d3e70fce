"""Lines of .jsonl in the common layouts -> preference pairs; lines that are none, by file and line."""

import json

import pytest

from llm_npu.data.text.preferences import Preferences

QUESTION = {"role": "user", "content": "2 + 2?"}
SYSTEM = {"role": "system", "content": "Be short."}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("4", "5"))
MORE = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}, QUESTION]
HUMAN = [{"from": "human", "value": "2 + 2?"}]
ANSWERS = {"chosen": "4", "rejected": "5"}
SORTED = {"src": ["2 + 2?"], "tgt": [], "response": ["5", "4"], "sort": [0, 1]}


def read(path):
    return list(Preferences.find(str(path)).pairs())


def written(folder, *records):
    file = folder / "a.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("record", "prompt"),
    [
        ({"prompt": "2 + 2?", **ANSWERS}, [QUESTION]),
        ({"prompt": "2 + 2?", "system": "Be short.", **ANSWERS}, [SYSTEM, QUESTION]),
        ({"prompt": [SYSTEM, QUESTION], "chosen": [GOOD], "rejected": [BAD]}, [SYSTEM, QUESTION]),
        ({"messages": MORE, "chosen": GOOD, "rejected": "5"}, MORE),
        ({"messages": [QUESTION], "chosen_response": [GOOD], "rejected_response": [BAD]}, [QUESTION]),
        ({"chosen": [*MORE, GOOD], "rejected": [*MORE, BAD]}, MORE),
        ({"prompt": "2 + 2?", "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]}, [QUESTION]),
        ({"conversations": HUMAN, "chosen": {"from": "gpt", "value": "4"},
          "rejected": {"from": "gpt", "value": "5"}, "system": "Be short."}, [SYSTEM, QUESTION]),
        ({"instruction": "Add.", "input": "2 + 2", **ANSWERS}, [{"role": "user", "content": "Add.\n2 + 2"}]),
        ({"instruction": "2 + 2?", "history": [["1 + 1?", "2"]], **ANSWERS}, MORE),
        ({"messages": [*MORE, GOOD], "rejected_response": "5"}, MORE),
        ({"query": "2 + 2?", "response": "4", "rejected_response": "5"}, [QUESTION]),
        ({"messages": [QUESTION], "system": "Be short.", **ANSWERS}, [SYSTEM, QUESTION]),
        ({"messages": [*MORE[:1], {**MORE[1], "weight": 0}, *MORE[2:]], **ANSWERS}, MORE),
        (SORTED, [QUESTION]),
        ({**SORTED, "src": "2 + 2?", "response": ["4", "5"], "sort": [1.5, 1]}, [QUESTION]),
        ({**SORTED, "src": ["1 + 1?", "2 + 2?"], "tgt": ["2"], "response": [["5"], ["4"]]}, MORE),
        ({**SORTED, "src": ["Be short.", "2 + 2?"], "tgt": [""], "is_system": 1}, [SYSTEM, QUESTION]),
        ({**SORTED, "system": "Be short."}, [SYSTEM, QUESTION]),
    ],
)  # fmt: skip
def test_the_common_layouts(tmp_path, record, prompt):
    (pair,) = read(written(tmp_path, record))
    assert (pair.prompt, pair.chosen, pair.rejected) == (prompt, GOOD, BAD)
    assert pair.where == f"{tmp_path / 'a.jsonl'}, line 1"


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"prompt": "x", "rejected": "5"}, "has prompt, rejected, but no chosen answer"),
        ({"prompt": "x", "chosen": "4"}, "has prompt, chosen, but no rejected answer"),
        ({}, "line 2 has nothing, but no chosen answer"),
        (ANSWERS, "line 2 has no prompt"),
        ({"prompt": "", **ANSWERS}, "line 2 has no prompt"),
        ({"prompt": "x", "messages": [QUESTION], **ANSWERS}, "has prompt and messages, two conversations"),
        ({"prompt": "x", "chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]}, "do not contain prompt"),
        ({"prompt": "x", **ANSWERS, "rejected_response": "6"}, "has rejected and rejected_response"),
        ({"prompt": "x", "chosen": {**GOOD, "weight": 0}, "rejected": "5"}, "has weight 0"),
        ({"prompt": "x", **ANSWERS, "images": ["a.png"]}, "has images"),
        ({**SORTED, "sort": [float("nan"), 1]}, "line 2: sort must be two numbers"),
        ({"messages": [], **ANSWERS}, "line 2: the prompt ends with nothing"),
        ({"messages": [QUESTION, GOOD], **ANSWERS}, "the prompt ends with the assistant message"),
        ({"prompt": "x", "chosen": "4", "rejected": "4"}, "line 2: the chosen and "),
        ({"prompt": "x", "chosen": " ", "rejected": "5"}, "line 2: the chosen answer is empty"),
        ({"prompt": "x", "chosen": "4", "rejected": ""}, "line 2: the rejected answer is empty"),
        ({"prompt": "x", "chosen": 4, "rejected": "5"}, "line 2: chosen must be text"),
        ({"prompt": "x", "chosen": "4", "rejected": [BAD, BAD]}, "line 2: rejected must be text"),
        ({"prompt": "x", "chosen": QUESTION, "rejected": "5"}, "line 2: chosen must be text"),
        ({"chosen": [QUESTION, GOOD], "rejected": [*MORE, BAD]}, "must have the same prompt"),
        ({"chosen": [QUESTION, GOOD], "rejected": "5"}, "line 2: rejected must be a list"),
        ({"prompt": "x", "chosen": "\ud800", "rejected": "5"}, "chosen: message 1 is not valid Unicode"),
        ({**SORTED, "src": []}, "line 2: src must have one text more"),
        ({**SORTED, "tgt": ["x"]}, "line 2: src must have one text more"),
        ({**SORTED, "src": [7]}, "message 1 must be text, not 7"),
        ({**SORTED, "response": ["4"]}, "line 2: response must be a list of two texts"),
        ({**SORTED, "response": 4}, "line 2: response must be a list of two texts"),
        ({**SORTED, "sort": [1, 1]}, r"line 2: sort is \[1, 1\]"),
        ({**SORTED, "sort": "10"}, "line 2: sort must be two numbers"),
    ],
)  # fmt: skip
def test_other_lines_are_refused_with_file_and_line(tmp_path, record, sentence):
    file = written(tmp_path, {"prompt": "2 + 2?", **ANSWERS}, record)
    with pytest.raises(ValueError, match=sentence) as refused:
        read(file)
    assert str(refused.value).startswith(f"{file}, line 2")


def test_documents_are_the_text_of_all_messages(tmp_path):
    file = written(tmp_path, {"messages": MORE, **ANSWERS})
    assert list(Preferences.find(str(file)).documents()) == ["1 + 1?", "2", "2 + 2?", "4", "5"]


def test_keys_that_nothing_reads_are_named(tmp_path):
    more = {"prompt": "2 + 2?", "messages": [QUESTION, GOOD], "score_chosen": 9.5, "id": 0, "tag": None}
    whole = {"chosen": [QUESTION, {**GOOD, "name": "x"}], "rejected": [QUESTION, BAD]}
    alpaca = {"instruction": "2 + 2?", "output": "4", **ANSWERS}
    first, second = read(written(tmp_path, whole | more, alpaca))
    assert first.unread == ("messages", "score_chosen", "id") and first.chosen == {**GOOD, "name": "x"}
    assert second.unread == ("output",)
