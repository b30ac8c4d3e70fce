"""A fast tokenizer forgets its chat template when it is saved.

``save_resources`` of ``ChatTemplateMixin`` writes chat_template.json. ``PretrainedTokenizerFast``
overrides it without calling it, so a template of PaddleNLP's own kind is in none of the files.

:versions: paddlenlp 3.0.0b4
:device: cpu
:at:
    paddlenlp/transformers/tokenizer_utils.py:877 `def save_resources(self, save_directory):`
    paddlenlp/transformers/tokenizer_utils_fast.py:66 `class PretrainedTokenizerFast(ChatTemplateMixin,`
:prints:
    chat_template.json is written: False
:should print:
    chat_template.json is written: True
:change: Call ``super().save_resources(save_directory)`` in the fast class.
:workaround: llm_npu/data/text/chat_template.py
"""

import tempfile
from pathlib import Path

from paddlenlp.transformers import PretrainedTokenizerFast
from tokenizers import Tokenizer, models

tokenizer = PretrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
tokenizer.init_chat_template({"conversation": [["{{user}}", "{{bot}}"]], "query": "{{query}}"})
folder = Path(tempfile.mkdtemp())
tokenizer.save_pretrained(str(folder))
print("chat_template.json is written:", (folder / "chat_template.json").exists())
