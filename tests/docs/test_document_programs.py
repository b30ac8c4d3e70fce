"""The programs in the blocks of Python of these pages run as they are printed."""

import re

import pytest
from places import ROOT

pytestmark = pytest.mark.slow


CHECKPOINT = """
from llm_npu.data.text import chat_template, corpus, tokenizer
from llm_npu.models import weights

folder = Path(mkdtemp())
(folder / "text.txt").write_text("Eat vegetables. Sleep enough. Walk every day. " * 9)
text = corpus.corpus(folder / "text.txt")
tokens = tokenizer.load_tokenizer(tokenizer.trained_tokenizer(text, 300, folder))
chat_template.attach(tokens, "{% for message in messages %}{{ message.content }} {% endfor %}")
chat_template.save(tokens, folder)
fields = SIZE | {"vocab_size": 300, "max_position_embeddings": 64}
weights.save(LlamaForCausalLM(LlamaConfig(**fields, num_attention_heads=2)), folder)
"""


def test_the_examples_of_inference_run(run_program):
    """One after the other, with weights and a tokenizer of their own."""
    generation, pipe, *others = blocks("inference.md")
    imports = "from pathlib import Path\nfrom tempfile import mkdtemp\n"
    result = run_program("\n".join([imports, generation, CHECKPOINT, pipe, *others]))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_program_of_profiling_records_a_profile(run_python, tmp_path):
    """In a process that does not know of the virtual NPU."""
    [program] = blocks("profiling.md")
    (tmp_path / "program.py").write_text(program)
    result = run_python(tmp_path / "program.py", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "profile/rank_0/trace.json").is_file()


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
