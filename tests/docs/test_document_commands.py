"""The reader of documents reads what is there: otherwise the tests of documents would pass over it."""

import document_commands
import pytest

pytestmark = pytest.mark.sampled

DOCUMENT = """
Text with `code`.

```bash
# only a comment
python one.py --prompt "a # b" --name c#d   # exit code 1 if it is late
python two.py \\
    --more
```

```text
step 3: loss 4.5e-03
...
the end
```

```bash card
npu-smi info
```

```python
print("no command")
```
"""


@pytest.fixture
def document(tmp_path):
    file = tmp_path / "document.md"
    file.write_text(DOCUMENT)
    return file


def test_commands(document):
    first, two, card = document_commands.commands(document)
    assert first.text == 'python one.py --prompt "a # b" --name c#d'
    assert (first.exit_codes, first.kind, first.shown) == ((0, 1), "", ())
    assert (two.text, two.exit_codes) == ("python two.py --more", (0,))
    assert two.shown == ("step 3: loss 4.5e-03", "...", "the end")
    assert (card.text, card.kind) == ("npu-smi info", "card")


def test_an_unknown_mark_is_an_error(document):
    document.write_text(DOCUMENT.replace("bash card", "bash crad"))
    with pytest.raises(AssertionError, match="crad"):
        document_commands.commands(document)


@pytest.mark.parametrize(
    ("printed", "lacks"),
    [
        ("first\nstep 12: loss 1.25e+01\nbetween\nthe end\n", ""),
        ("step 12: loss 1.25\nthe  end\n", ""),
        ("step 12: loss 1.25\nthe ending\n", "the end"),
        ("the end\nstep 12: loss 1.25\nmore\n", "the end"),
        ("step 12: loss nan\nmore\nthe end\n", "step 3: loss 4.5e-03"),
    ],
)
def test_what_is_not_printed_is_noticed(document, printed, lacks):
    shown = document_commands.commands(document)[1].shown
    assert document_commands.missing(shown, printed) == lacks
