"""Every rule of ``paddle_fused.contracts`` is broken by a real call, which raises the rule's message.

And the rules' other forms: the sentences for dispatchers, and the page of the documentation. What differs
between releases of CANN: test_cann_releases.py.
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
    with pytest.raises(AssertionError, match=r"swiglu.same_shape .* rms_norm"):
        contracts.reason("swiglu.same_shape", "rms_norm", "x is odd")


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
