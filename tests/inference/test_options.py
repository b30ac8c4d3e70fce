"""Options of generation: those of generation_config.json, and those that are given."""

import json

import pytest

from llm_npu.inference import options

QWEN = {  # the file of a chat model
    "bos_token_id": 1,
    "pad_token_id": 1,
    "do_sample": True,
    "eos_token_id": [2, 1],
    "repetition_penalty": 1.05,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "transformers_version": "4.37.0",
}
SAMPLING = {name: QWEN[name] for name in ("do_sample", "repetition_penalty", "temperature", "top_p", "top_k")}


@pytest.fixture
def folder(tmp_path):
    """A function that writes a generation_config.json, and returns its folder."""

    def write(fields):
        (tmp_path / "generation_config.json").write_text(json.dumps(fields))
        return tmp_path

    return write


def test_a_folder_without_the_file_sets_nothing(tmp_path):
    assert options.of_folder(tmp_path, {}) == ({}, [])


def test_the_file_of_a_chat_model(folder):
    assert options.of_folder(folder(QWEN), {}) == (SAMPLING, [])
    assert options.resolved(SAMPLING, {}) == ("sampling", SAMPLING)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_length": 0, "max_new_tokens": 7}, {"max_new_tokens": 7}),
        ({"decode_strategy": "sampling", "top_k": 3}, {"do_sample": True, "num_beams": 1, "top_k": 3}),
        ({"decode_strategy": "beam_search", "num_beams": 3}, {"do_sample": False, "num_beams": 3}),
        ({"do_sample": False, "temperature": 1.0, "top_p": 1, "typical_p": 1.0}, {"do_sample": False}),
    ],
)
def test_what_changes_nothing_is_not_noted(folder, fields, expected):
    assert options.of_folder(folder(fields), {}) == (expected, [])


def test_what_has_no_effect_is_noted(folder):
    fields = {"top_p": 0.9, "typical_p": 0.5, "num_return_sequences": 2, "chat_format": "chatml"}
    _, notes = options.of_folder(folder(fields), {})
    assert [note.partition(": ")[2].split()[:2] for note in notes] == [
        ["typical_p", "0.5"],
        ["num_return_sequences", "2"],
        ["chat_format", "'chatml'"],
        ["top_p", "0.9"],
    ]
    assert len(options.of_folder(folder(fields), {"do_sample": True})[1]) == 3


@pytest.mark.parametrize(
    ("settings", "decode", "read", "unread"),
    [
        ({"do_sample": False}, "greedy", {"repetition_penalty": 1.05}, {"temperature", "top_p", "top_k"}),
        ({"num_beams": 3}, "beam", {"num_beams": 3, "do_sample": False}, {"temperature", "top_p", "top_k"}),
        ({"top_p": 0.5, "top_k": None}, "sampling", {"top_p": 0.5, "top_k": 20}, set()),
        ({"max_length": 9}, "sampling", {"max_length": 9}, {"max_new_tokens"}),
    ],
)
def test_given_options_win(settings, decode, read, unread):
    strategy, chosen = options.resolved({**SAMPLING, "max_new_tokens": 5}, settings)
    assert strategy == decode
    assert chosen.items() >= read.items() and not chosen.keys() & unread


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_tokens": 5}, "'max_tokens'; accepted: .* max_new_tokens"),
        ({"top_p": 0}, "top_p is 0; accepted: above 0, up to 1"),
        ({"do_sample": "yes"}, "do_sample is 'yes'; accepted: True or False"),
        ({"max_new_tokens": True}, "max_new_tokens is True; accepted: 1 or more"),
        ({"temperature": float("nan"), "do_sample": True}, "temperature is nan; accepted: 0.0001 or more"),
        ({"top_k": 3}, "top_k .*do_sample=True"),
        ({"length_penalty": 0.5}, "length_penalty .*num_beams=2"),
        ({"do_sample": True, "num_beams": 2}, "do_sample .*num_beams=2"),
    ],
)
def test_bad_options_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        options.resolved({}, settings)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"top_k": "20"}, "generation_config.json: top_k is '20'; accepted: 0"),
        ({"decode_strategy": ["x"]}, "decode_strategy is .*; accepted: greedy_search, sampling, beam_search"),
        ([], "must hold a JSON object"),
    ],
)
def test_a_bad_file_is_refused(folder, fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        options.of_folder(folder(fields), {})
