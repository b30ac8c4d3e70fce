"""Preference pairs -> samples and batches: what each token sees, what is learnt, what is left out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from llm_npu.config import DataArguments
from llm_npu.data.collate import IGNORED, ROWS, Collator, PairCollator
from llm_npu.data.pipeline import FirstSamples, ShuffledSamples, find, load
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import load_tokenizer, trained_tokenizer

pytestmark = pytest.mark.sampled

VOCABULARY = 270
PAIRS = [(f"{a} + {b}?", f"{a + b}" + "!" * a, f"{a - b}") for a in range(8) for b in range(1, 4)]
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("User: and Assistant: " * 9)
    return trained_tokenizer(corpus(text), VOCABULARY, str(text.parent))


@pytest.fixture
def samples(folder, tmp_path):
    """A function from records, or (prompt, chosen, rejected), and arguments to samples and tokenizer."""

    def of(pairs, vocab_size=VOCABULARY, need_valid=True, tokenizer=folder, **fields):
        file = tmp_path / "pairs.jsonl"
        names = ("prompt", "chosen", "rejected")
        records = (p if isinstance(p, dict) else dict(zip(names, p, strict=True)) for p in pairs)
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        arguments = {"split": "8,1,1", "max_seq_length": 64, "data_cache": str(tmp_path / "cache")}
        data = DataArguments(stage="dpo", input_dir=str(file), **arguments | fields)
        tokenizer = load_tokenizer(tokenizer)
        return load(data, find(data), tokenizer, vocab_size, need_valid=need_valid), tokenizer

    return of


def rendered(pair):
    prompt, chosen, rejected = pair
    return f"{BOS}User: {prompt}\nAssistant:", f" {chosen}{EOS}", f" {rejected}{EOS}"


def seen_and_learnt(batch):
    """For each label, in the order of the batch: the ids that its token sees, by position, and the label.

    Each sees one token at every position up to its own.
    """
    for ids, labels, positions, ends in zip(
        *(batch[name] for name in ("input_ids", "labels", "position_ids")),
        batch[ROWS][:, 0, :, 0],
        strict=True,
    ):
        for token in np.flatnonzero(labels != IGNORED):
            seen = np.array([other for other in range(token + 1) if token < ends[other]])
            assert sorted(positions[seen]) == list(range(positions[token] + 1))
            yield ids[seen[np.argsort(positions[seen])]].tolist(), int(labels[token])


@pytest.mark.parametrize("packing", ["none", "first_fit"])
@pytest.mark.parametrize("padding", ["none", "longest", "max_length"])
def test_every_answer_sees_its_prompt_and_itself(samples, packing, padding):
    parts, tokenizer = samples(PAIRS, packing=packing)
    rows, size = parts.train, len(parts.train)
    length = 80 if padding == "max_length" else None
    batch = PairCollator(Collator(padding, length=length, mask="rows"))([rows[n] for n in range(size)])
    pairs_seen = list(seen_and_learnt(batch))
    count = 0
    for pair in (PAIRS[number] for index in range(size) for number in rows.numbers(index)):
        prompt, *answers = rendered(pair)
        for answer in answers:
            ids = [
                tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + answer)
            ]
            for end in range(len(ids[0]), len(ids[1])):
                assert pairs_seen[count] == (ids[1][:end], ids[1][end])
                count += 1
    assert count == len(pairs_seen)


def test_responses_are_the_spans_among_the_labels(samples):
    parts, _ = samples(PAIRS, packing="first_fit")
    rows = [parts.train[index] for index in range(3)]
    batch = PairCollator(Collator("longest", mask="rows"))(rows)
    sizes = np.concatenate([row["pairs"] for row in rows])
    assert [[c - b, d - c] for _, b, c, d in batch["responses"]] == sizes[:, 1:].tolist()
    assert [b for _, b, _, _ in batch["responses"][1:]] == [d for *_, d in batch["responses"][:-1]]
    assert batch["responses"][-1][-1] == (batch["labels"] != IGNORED).sum()


def test_a_pair_is_one_label_and_carries_its_reference(samples):
    parts, _ = samples(PAIRS, packing="first_fit")
    rows = parts.train
    rows.reference = np.arange(2 * len(rows.sizes), dtype=np.float32).reshape(-1, 2)
    drawn = ShuffledSamples(rows, 8, seed=3, per_step=4)
    for step in (range(4), range(4, 8)):
        pairs = [len(drawn[item]["pairs"]) for item in step]
        assert [drawn[item]["loss_weight"] for item in step] == pytest.approx(
            [4 * count / sum(pairs) for count in pairs]
        )
    sample = rows[1]
    np.testing.assert_array_equal(sample["reference"], rows.reference[rows.numbers(1)])
    batch = PairCollator(Collator("none", mask="rows"))([rows[0], sample])
    expected = rows.reference[rows.numbers(0) + rows.numbers(1)]
    np.testing.assert_array_equal(batch["reference"], expected)


def test_padding_of_an_evaluation_has_no_pairs(samples):
    parts, _ = samples(PAIRS)
    rows = parts.train
    rows.reference = np.zeros((len(rows.sizes), 2), np.float32)
    held_out = FirstSamples(rows, 1, padded=3)
    collate = PairCollator(Collator("longest", mask="rows"))
    batch = collate([held_out[0], held_out[2]])
    assert len(batch["responses"]) == len(batch["reference"]) == 1 and batch["loss_weight"] == 1
    assert collate([held_out[1]])["responses"] == []


def test_long_pairs_are_left_out_with_file_and_line(samples, tmp_path):
    long = ("3 + 4?", "seven, that is " * 9, "8")
    parts, _ = samples([*PAIRS[:2], long, *PAIRS[2:], long])
    assert len(parts.train.sizes) == 20
    (note,) = [note for note in parts.notes if "--max_seq_length" in note]
    assert "more than 64 tokens are dropped" in note
    assert f"{tmp_path / 'pairs.jsonl'}, line 3). Raise --max_seq_length" in note
    with pytest.raises(ValueError, match=r"training split .* is empty: .*pairs.jsonl, line 1"):
        samples([long] * 9, need_valid=False)


def test_what_the_model_and_the_data_do_not_fit(samples):
    with pytest.raises(ValueError, match="contains no preference pairs"):
        samples([])
    with pytest.raises(ValueError, match=r"validation split .* 2 preference pairs"):
        samples(PAIRS[:2])
    parts, _ = samples(PAIRS, vocab_size=100)
    with pytest.raises(ValueError, match="another tokenizer"):
        parts.train[0]


def test_answers_that_are_equal_as_tokens_are_refused_with_file_and_line(samples, tmp_path):
    (tmp_path / "own.jinja").write_text("{% for each in messages %}{{ each.content | trim }};{% endfor %}")
    with pytest.raises(ValueError, match=r"pairs\.jsonl, line 2: the chosen "):
        samples([PAIRS[0], ("3 + 4?", "7", "7 ")], chat_template=str(tmp_path / "own.jinja"))


def test_a_damaged_cache_is_refused(samples, tmp_path):
    samples(PAIRS)
    (folder,) = (tmp_path / "cache").glob("pairs-*")
    np.save(folder / "sizes.npy", np.zeros_like(np.load(folder / "sizes.npy")))
    with pytest.raises(ValueError, match=r"inconsistent sizes"):
        samples(PAIRS)


def test_another_special_token_in_the_template_is_read(samples, folder, tmp_path):
    """The text changes with it, though neither the template nor the ids of a text do."""
    samples(PAIRS)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    config = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": EOS}))
    parts, tokenizer = samples(PAIRS, tokenizer=other)
    assert parts.train[0]["input_ids"][0] == tokenizer.convert_tokens_to_ids(EOS)


@pytest.mark.parametrize(
    ("name", "prompt", "chosen"),
    [
        ("qwen3", "assistant\n4<|im_end|>\n<|im_start|>user\n+ 1?<|im_end|>\n<|im_start|>assistant\n",
         "<think>\nadd\n</think>\n\n5<|im_end|>\n"),
        ("deepseek_r1", "<｜Assistant｜>\n\n4<｜end▁of▁sentence｜><｜User｜>+ 1?<｜Assistant｜><think>\n",
         "add\n</think>\n\n5<｜end▁of▁sentence｜>"),
    ],
)  # fmt: skip
def test_pairs_in_templates_that_rewrite_turns(samples, name, prompt, chosen):
    answers = [{"role": "assistant", "content": text, "reasoning_content": "add"} for text in ("5", "6")]
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "<think>a</think>\n\n4"}]
    record = {"messages": [*turns, {"role": "user", "content": "+ 1?"}], "chosen": answers[0]}
    record |= {"rejected": answers[1], "score": 3, "tools": [{"name": "add"}]}
    template = Path(__file__).parent / "templates" / f"{name}.jinja"
    fields = {"chat_template": str(template), "max_seq_length": 512, "split": "1,0,0", "need_valid": False}
    parts, tokenizer = samples([record] * 2, **fields)
    sample = parts.train[0]
    ids = sample["input_ids"].tolist()
    size = sample["pairs"][0]
    assert tokenizer.decode(ids[: size[0]]).endswith(prompt)
    assert tokenizer.decode(sample["labels"][size[0] - 1 : size[0] - 1 + size[1]].tolist()) == chosen
    leaves_out = {"qwen3": (), "deepseek_r1": ("not used by the chat template: tools (2 times)",)}
    assert parts.notes[1:] == ("unused keys of the data: score (2 times)", *leaves_out[name])
