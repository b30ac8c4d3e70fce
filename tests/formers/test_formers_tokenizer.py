"""sentencepiece's files beside PaddleFormers: ids and texts are those of sentencepiece."""

import random

import pytest
import sentencepiece
from places import ROOT

from llm_npu.core.errors import UserError
from llm_npu.data.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.sampled

TEXT = (ROOT / "llm_npu/data/packing.py").read_text(encoding="utf-8")
HARD = ["", " x", "  two  blanks  ", "a\nb\tc", "héllo 你好 ﬁ½", "2 + 2 = 4, 12345"]
KINDS = {
    "as Llama's": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "that maps characters": {},
    "without a blank in front": {"add_dummy_prefix": False},
}


def trained(folder, **options):
    (folder / "text").write_text(TEXT, encoding="utf-8")
    options = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 500} | options
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "m"), minloglevel=2, **options
    )
    (folder / "m.model").rename(folder / "tokenizer.model")
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_sentencepiece(tmp_path, kind):
    processor, tokenizer = trained(tmp_path, **KINDS[kind]), load_tokenizer(tmp_path)
    draw = random.Random(0)
    some = ["".join(draw.choices(TEXT + "  é你ﬁ½", k=draw.randint(1, 40))) for _ in range(300)]
    for text in [*HARD, *TEXT.splitlines(), TEXT, *some]:
        ids = processor.encode(text)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids, text
        assert tokenizer.decode(ids) == processor.decode(ids), text
    assert len(tokenizer) == processor.get_piece_size()
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (processor.bos_id(), processor.eos_id())
    tokenizer.save_pretrained(str(tmp_path / "saved"))
    assert load_tokenizer(tmp_path / "saved")(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]


def test_a_symbol_of_its_own_is_one_token(tmp_path):
    processor = trained(tmp_path, user_defined_symbols="<mask>")
    ids = load_tokenizer(tmp_path)("a<mask>b", add_special_tokens=False)["input_ids"]
    assert ids[1] == processor.piece_to_id("<mask>") and len(ids) > 2


def test_another_kind_of_model_is_refused(tmp_path):
    trained(tmp_path, model_type="unigram", vocab_size=300, byte_fallback=False, hard_vocab_limit=False)
    with pytest.raises(UserError, match=r"BPE.* tokenizer\.json"):
        load_tokenizer(tmp_path)
