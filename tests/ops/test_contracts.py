"""Every rule of ``paddle_fused.contracts`` is broken by a real call, which raises the rule's message.

And the rules' other forms: the sentences for dispatchers, the CANN level, the page of the documentation.
"""

import re
from pathlib import Path

import paddle
import pytest
from contract_calls import CALLS

import paddle_fused
from paddle_fused import contracts
from paddle_fused.contracts.__main__ import page
from paddle_fused.ops.arguments import FLOAT64_NOTE
from virtual_npu.settings import SETTINGS


def test_every_rule_is_broken_by_a_call():
    assert sorted(contracts.RULES.keys() - dict(CALLS).keys()) == []


@pytest.mark.parametrize(
    ("key", "call"), CALLS, ids=[f"{key}-{number}" for number, (key, _) in enumerate(CALLS)]
)
def test_a_broken_rule_is_refused_in_its_words(key, call, on_npu):
    rule = contracts.RULES[key]
    with pytest.raises(ValueError) as raised:
        call()
    operators = "|".join(map(re.escape, rule.operators))
    sentence = f"; accepted: {rule.accepts}. {rule.advice}"
    note = f"(?: {re.escape(FLOAT64_NOTE)})?" if key.endswith("dtype") else ""
    if rule.error is None:  # a reason in a list of them has its full stop from the list
        end = "(?! [(]CANN)"
    else:
        end = re.escape(f" (CANN error {rule.error}, {contracts.ERRORS[rule.error]})")
    assert re.search(f"({operators}): .+{re.escape(sentence)}{note}{end}", str(raised.value), re.DOTALL), (
        raised.value
    )
    if isinstance(raised.value, contracts.ContractError):
        assert (raised.value.rule, raised.value.error) == (rule, rule.error)


def test_keys_are_of_one_rule_each():
    assert sum(len(module.RULES) for module in contracts.MODULES) == len(contracts.RULES)
    assert sum(len(module.LIMITS) for module in contracts.MODULES) == len(contracts.LIMITS)
    assert sum(len(module.DTYPES) for module in contracts.MODULES) == len(contracts.DTYPES)


@pytest.mark.sampled
@pytest.mark.parametrize("rule", contracts.RULES.values(), ids=lambda rule: rule.key)
def test_rules_are_sentences(rule):
    assert rule.error is None or rule.error in contracts.ERRORS
    assert rule.operators and rule.source
    assert not rule.accepts.endswith(".") and rule.advice.endswith(".")
    assert (rule.accepts + rule.advice).isascii()


def test_a_reason_is_the_error_without_its_full_stop():
    with pytest.raises(contracts.ContractError) as raised:
        contracts.refuse("swiglu.same_shape", "swiglu", "x has shape [2] and y [3]")
    reason = contracts.reason("swiglu.same_shape", "swiglu", "x has shape [2] and y [3]")
    assert str(raised.value) == reason + "."
    assert raised.value.error is None


def test_an_error_about_dtypes_says_where_float64_runs():
    x = paddle.ones([2, 8], "int32")
    with pytest.raises(contracts.ContractError) as raised:
        paddle_fused.rms_norm(x, paddle.ones([8]))
    rule = contracts.RULES["rms_norm.dtype"]
    assert str(raised.value) == rule.sentence("rms_norm", "x is int32", FLOAT64_NOTE)
    assert FLOAT64_NOTE in str(raised.value)
    assert paddle_fused.rms_norm(x.astype("float64"), paddle.ones([8])).dtype == paddle.float64


def test_a_rule_of_another_operator_is_our_mistake():
    with pytest.raises(AssertionError, match=r"swiglu.same_shape is no rule of rms_norm"):
        contracts.reason("swiglu.same_shape", "rms_norm", "x is odd")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("level", "expected"),
    [(None, 512), ("", 512), ("7.0.0", 512), ("8.2.RC1", 512), ("8.3.RC1", 768), ("9.0", 768), ("10.1", 768)],
)
def test_limits_follow_the_cann_level(level, expected, monkeypatch):
    if level is None:
        monkeypatch.delenv("VIRTUAL_NPU_CANN")
    else:
        monkeypatch.setenv("VIRTUAL_NPU_CANN", level)
    assert contracts.limit("attention.head_dim") == expected


HEAD_DIM = """
import paddle, paddle_custom_device
paddle.set_device("npu:0")
for size in (512, 513, 768, 769):
    x = paddle.zeros([1, 2, 1, size]).astype("bfloat16")
    try:
        paddle_custom_device.npu.flash_attention_npu(
            x, x, x, None, None, None, None, 0.0, True, False, False, False, False
        )
        print(size)
    except ValueError as error:
        assert "head size" in str(error), error
"""


@pytest.mark.slow
@pytest.mark.parametrize(("level", "sizes"), [("8.0.RC2", "512"), ("8.3.RC1", "512 513 768")])
def test_the_virtual_npu_follows_the_cann_level(level, sizes, run_program):
    result = run_program(HEAD_DIM, VIRTUAL_NPU_CANN=level)
    assert result.stdout.split() == sizes.split(), result.stderr


def test_the_default_level_is_that_of_the_virtual_npu():
    assert SETTINGS["VIRTUAL_NPU_CANN"].default == contracts.DEFAULT_CANN


def test_the_page_has_every_rule():
    written = page()
    assert all(f"| `{key}` |" in written for key in contracts.RULES)


def test_the_page_is_printed_or_written(run_python, tmp_path):
    printed = run_python("-m", "paddle_fused.contracts")
    assert printed.stdout == page()
    file = tmp_path / "rules.md"
    assert run_python("-m", "paddle_fused.contracts", file).stdout == ""
    assert file.read_text() == page()


def test_no_number_of_cann_stands_outside_of_the_table():
    numbers = re.compile("|".join(str(number) for number in contracts.ERRORS))
    package = Path(contracts.__file__).resolve().parents[1]
    files = [path for suffix in ("*.py", "*.h", "*.cc") for path in package.rglob(suffix)]
    files_with_numbers = [str(path) for path in files if numbers.search(path.read_text())]
    assert files_with_numbers == [str(package / "contracts" / "rule.py")]
