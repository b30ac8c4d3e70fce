"""Chat templates: found, rendered as prompts and answers, tokenised, kept with the tokenizer."""

import argparse
import json
import shutil

import pytest

from llm_npu.data.text import chat_template, turns
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer

pytestmark = pytest.mark.sampled

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And + 1?"},
    {"role": "assistant", "content": "5"},
]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Llama 2's: the system's message inside the first turn, and no marker of its own before an answer.
INSTRUCT = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{% for turn in turns %}"
    "{% if (turn.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if turn.role == 'user' %}{{ bos_token }}[INST] {{ system if loop.first }}{{ turn.content }} [/INST]"
    "{% else %} {{ turn.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
PADDLENLP = {
    "system": "<s>{{system}}\n",
    "conversation": ["Q{{index}}: {{user}}\n", "A: {{bot}}</s>"],
    "query": "Q: {{query}}\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.py"
    shutil.copy(argparse.__file__, text)
    return trained_tokenizer(corpus(text), 600, str(text.parent))


@pytest.fixture
def tokenizer(folder):
    return load_tokenizer(folder)


def texts(tokenizer, source, messages=MESSAGES):
    chat_template.attach(tokenizer, source)
    (pieces,) = turns.samples(tokenizer, messages)
    return pieces


def test_an_answer_is_what_its_message_adds_to_the_prompt(tokenizer):
    assert texts(tokenizer, CHATML) == [
        (
            "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n"
            "<|im_start|>assistant\n",
            False,
        ),
        ("4<|im_end|>\n", True),
        ("<|im_start|>user\nAnd + 1?<|im_end|>\n<|im_start|>assistant\n", False),
        ("5<|im_end|>\n", True),
    ]
    bos, eos = "<|begin_of_text|>", "<|end_of_text|>"
    assert texts(tokenizer, INSTRUCT) == [
        (f"{bos}[INST] Be short.\n2 + 2? [/INST]", False),
        (f" 4 {eos}", True),
        (f"{bos}[INST] And + 1? [/INST]", False),
        (f" 5 {eos}", True),
    ]
    assert texts(tokenizer, chat_template.DEFAULT) == [
        (f"{bos}System: Be short.\nUser: 2 + 2?\nAssistant:", False),
        (f" 4{eos}", True),
        ("User: And + 1?\nAssistant:", False),
        (f" 5{eos}", True),
    ]


@pytest.mark.paddlenlp
def test_an_answer_in_paddlenlps_template(tokenizer):
    assert texts(tokenizer, PADDLENLP) == [
        ("<s>Be short.\nQ0: 2 + 2?\n", False),
        ("A: 4</s>", True),
        ("Q1: And + 1?\n", False),
        ("A: 5</s>", True),
    ]


def test_the_pieces_are_what_inference_sees(tokenizer):
    for source in (CHATML, INSTRUCT, chat_template.DEFAULT):
        pieces = texts(tokenizer, source)
        for number, message in enumerate(MESSAGES):
            if message["role"] == "assistant":
                prompt = tokenizer.apply_chat_template(MESSAGES[:number], tokenize=False)
                answers = sum(message_before["role"] == "assistant" for message_before in MESSAGES[:number])
                assert "".join(text for text, _ in pieces[: 2 * answers + 1]) == prompt


@pytest.mark.parametrize(
    ("source", "messages", "sentence"),
    [
        (INSTRUCT, [MESSAGES[1], MESSAGES[3], MESSAGES[2]], "roles must alternate"),
        ("{{ messages[0].content }}", MESSAGES, "does not render answer 1"),
        ("{# nothing #}", MESSAGES, "does not render answer 1"),
        (
            "{{ messages[-1].content }}{{ '!' if add_generation_prompt }}",
            MESSAGES,
            "answer 1 after a different context",
        ),
        pytest.param(
            PADDLENLP,
            [MESSAGES[1], MESSAGES[3], MESSAGES[2]],
            "not user, user, assistant",
            marks=pytest.mark.paddlenlp,
        ),
        pytest.param(
            {"conversation": PADDLENLP["conversation"]},
            MESSAGES,
            "system message",
            marks=pytest.mark.paddlenlp,
        ),
    ],
)
def test_conversations_that_a_template_does_not_take(tokenizer, source, messages, sentence):
    with pytest.raises(ValueError, match=sentence):
        texts(tokenizer, source, messages)


def test_tokens_before_an_answer_are_those_of_the_prompt_alone(tokenizer):
    for source in (CHATML, INSTRUCT, chat_template.DEFAULT):
        chat_template.attach(tokenizer, source)
        (pieces,) = turns.samples(tokenizer, MESSAGES)
        ids, answers = turns.encode(tokenizer, pieces)
        assert tokenizer.decode(ids.tolist()) == "".join(text for text, _ in pieces)
        assert tokenizer.decode(ids[answers].tolist()) == "".join(text for text, answer in pieces if answer)
        prompt = tokenizer.apply_chat_template(MESSAGES[:2], add_special_tokens=False)["input_ids"]
        assert ids[: len(prompt)].tolist() == prompt and not answers[: len(prompt)].any()
        assert answers[len(prompt)]


def test_a_boundary_inside_a_token_of_the_whole_text_is_kept(tokenizer):
    chat_template.attach(tokenizer, "{% for message in messages %}{{ message.content }}{% endfor %}")
    split = [{"role": "user", "content": "x = Non"}, {"role": "assistant", "content": "e, "}]
    whole = tokenizer("x = None, ", add_special_tokens=False)["input_ids"]
    ids, answers = turns.encode(tokenizer, *turns.samples(tokenizer, split))
    assert tokenizer.decode(ids[answers].tolist()) == "e, "
    assert ids.tolist() != whole and tokenizer.decode(ids.tolist()) == "x = None, "


@pytest.mark.parametrize(
    "source", [CHATML, pytest.param(PADDLENLP, marks=pytest.mark.paddlenlp)], ids=["jinja", "paddlenlp"]
)
def test_a_saved_tokenizer_has_its_template(tokenizer, tmp_path, source):
    expected = texts(tokenizer, source)
    chat_template.save(tokenizer, tmp_path)
    again = load_tokenizer(tmp_path)
    assert turns.samples(again, MESSAGES) == [expected]
    assert chat_template.source_of(again) == chat_template.source_of(tokenizer)


def test_where_templates_are_found(tmp_path):
    assert chat_template.find(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": "</s>"}))
    assert chat_template.find(tmp_path) is None
    config.write_text(json.dumps({"chat_template": "in config"}))
    assert chat_template.find(tmp_path) == "in config"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "in list"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert chat_template.find(tmp_path) == "in list"
    (tmp_path / "chat_template.jinja").write_text("in file")
    assert chat_template.find(tmp_path) == "in file"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of a processor"}))
    assert chat_template.find(tmp_path) == "of a processor"
    (tmp_path / "chat_template.json").write_text(json.dumps(PADDLENLP))
    assert chat_template.find(tmp_path) == PADDLENLP


def test_empty_templates_do_not_count(tmp_path):
    config, file = tmp_path / "tokenizer_config.json", tmp_path / "chat_template.jinja"
    config.write_text(json.dumps({"chat_template": "in config"}))
    file.write_text(" \n")
    assert chat_template.find(tmp_path) == "in config"
    config.write_text(json.dumps({"chat_template": ""}))
    assert chat_template.find(tmp_path) is None
    with pytest.raises(ValueError, match=r"chat_template\.jinja is empty"):
        chat_template.read(file)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "chat_template.json cannot be read as JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "contains neither conversation"),
        ('{"conversation": ["x"]}', "requires conversation"),
        ('{"conversation": ["x", "y"], "extra": "z"}', "requires conversation"),
        ('{"chat_template": 3}', "chat_template must be a Jinja template"),
    ],
)
def test_files_that_are_no_templates_are_refused(tmp_path, content, sentence):
    (tmp_path / "chat_template.json").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        chat_template.read(tmp_path / "chat_template.json")


def test_what_is_no_jinja_is_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"chat template .* Jinja: .* \(line 2\)"):
        chat_template.attach(tokenizer, "ok\n{% for %}")
    with pytest.raises(ValueError, match=r"chat template .* Unicode"):
        chat_template.attach(tokenizer, "\ud800")
    with pytest.raises(ValueError, match=r"none\.jinja cannot be read"):
        chat_template.read(tmp_path / "none.jinja")


def test_blocks_of_templates_for_transformers_are_understood(tokenizer):
    source = (
        "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
        "{% if message.role == 'assistant' %}{% generation %}{{ message.content | tojson }}"
        "{% endgeneration %}"
        "{% else %}{{ message.content }}:{% endif %}{% endfor %}"
    )
    assert texts(tokenizer, source, [*MESSAGES[:2], {"role": "assistant", "content": "Grüße"}]) == [
        ("2 + 2?:", False),
        ('"Grüße"', True),
    ]


@pytest.mark.parametrize("source", [CHATML, INSTRUCT, chat_template.DEFAULT])
def test_a_question_is_what_stands_before_the_answer_in_training(tokenizer, source):
    chat_template.attach(tokenizer, source)
    ids, answers = turns.encode(tokenizer, *turns.samples(tokenizer, MESSAGES[1:3]))
    assert chat_template.question(tokenizer, "2 + 2?") == ids[~answers].tolist()


@pytest.mark.paddlenlp
def test_a_question_in_paddlenlps_template(tokenizer):
    with pytest.raises(ValueError, match="no chat template"):
        chat_template.question(tokenizer, "2 + 2?")
    chat_template.attach(tokenizer, PADDLENLP)
    assert tokenizer.decode(chat_template.question(tokenizer, "2 + 2?")) == "<s>\nQ: 2 + 2?\n"
