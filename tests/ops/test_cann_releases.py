"""What each release of CANN changed: limits and error numbers, in Python and in the virtual NPU's plugin."""

import importlib
import itertools
import json
import re
from pathlib import Path

import custom_operator
import numpy as np
import paddle
import pytest
from flash_attention_program import flash_attention
from precision import npu

import paddle_fused
import virtual_npu
from paddle_fused import cann_releases, compat, contracts
from paddle_fused.contracts.__main__ import page
from virtual_npu.settings import SETTINGS, check_settings

RELEASES = cann_releases.RELEASES
PUBLISHED = Path(importlib.import_module("llm_npu.cann").__file__).parent / "data" / "releases.json"


@pytest.fixture(params=RELEASES)
def release(request, monkeypatch):
    monkeypatch.setenv("VIRTUAL_NPU_CANN", request.param)
    return request.param


def since(release, first):
    return RELEASES.index(release) >= RELEASES.index(first)


def number_of(call) -> int | None:
    """CANN's error number of a call; None if it is not refused."""
    try:
        call()
    except ValueError as error:
        return int(re.search(r"CANN error (\d+)", str(error))[1])
    return None


def test_the_releases_are_those_of_the_installations():
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8"))["releases"]
    assert tuple(row["release"] for row in rows) == RELEASES


@pytest.mark.parametrize(
    ("text", "release"),
    [
        *((release, release) for release in RELEASES),
        *zip(
            ("8.0", "8.1", "8.2", "8.3", "8.5", "9.0", "9.1", "9.2"),
            ("8.0.0", "8.1.RC1", "8.2.RC1", "8.3.RC1", "8.5.0", "9.0.0", "9.1.0", "9.2.0-beta.1"),
            strict=True,
        ),
        ("", "8.0.0"),
    ],
)
def test_spellings(text, release, monkeypatch):
    monkeypatch.setenv("VIRTUAL_NPU_CANN", text)
    check_settings()
    assert virtual_npu.cann_level() == cann_releases.emulated() == release


def test_the_default_of_each_card():
    levels = {
        card: virtual_npu.cann_level({"VIRTUAL_NPU_CARD": card}) for card in ("", "910b", "910c", "950")
    }
    assert levels == {"": "8.0.0", "910b": "8.0.0", "910c": "8.2.RC1", "950": "9.0.0"}
    assert virtual_npu.cann_level({"VIRTUAL_NPU_CARD": "910c", "VIRTUAL_NPU_CANN": "8.1"}) == "8.1.RC1"


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("7.0.0", "8.0.RC2"),
        ("8.0.RC1", "8.0.0"),
        ("8.4", "8.3.RC1"),
        ("9.0.1", "9.0.0"),
        ("10.1", "9.2.0-beta.1"),
        ("8.1.RC1 ", "8.1.RC1"),
        ("beta.1", "9.2.0-beta.1"),
    ],
)
def test_other_values_are_refused_with_the_nearest(text, nearest, monkeypatch, on_npu):
    with pytest.raises(
        ValueError, match=re.escape(f"accepts {SETTINGS['VIRTUAL_NPU_CANN'].accepts}")
    ) as raised:
        check_settings({"VIRTUAL_NPU_CANN": text})
    assert f"nearest: {nearest})" in str(raised.value)
    monkeypatch.setenv("VIRTUAL_NPU_CANN", text)
    with pytest.raises(ValueError, match=re.escape(f"nearest: {nearest})")):
        contracts.limit("attention.head_dim")
    with pytest.raises(ValueError, match="VIRTUAL_NPU_CANN"):  # a plugin that is loaded without ``activate``
        attend(512)


def attend(head_dim):
    query = paddle.zeros([1, 2, 1, head_dim]).astype("bfloat16")
    return flash_attention(query, query, query, causal=True)


def test_head_sizes(release, on_npu):
    largest = 768 if since(release, "8.3.RC1") else 512
    assert contracts.limit("attention.head_dim") == largest
    assert number_of(lambda: attend(largest)) is None
    assert number_of(lambda: attend(largest + 1)) == 161002
    query = paddle.zeros([1, 2, 1, largest + 1]).astype("bfloat16")
    for function in (
        lambda: paddle_fused.flash_attention(query, query, query),
        lambda: compat.npu_fusion_attention(query, query, query, 1, "BSND"),
    ):
        assert number_of(function) == 161002


def rotate(x, angles):
    return compat.npu_rotary_mul(paddle.ones(x), paddle.ones(angles), paddle.ones(angles))


def test_rotary(release, on_npu):
    number = 561103 if since(release, "9.0.0") else 561002
    three_dimensions = None if since(release, "9.1.0") else number
    assert number_of(lambda: rotate([2, 8, 4, 64], [1, 5, 1, 64])) == number
    assert number_of(lambda: rotate([8, 64], [8, 64])) == number
    assert number_of(lambda: rotate([8, 4, 64], [8, 1, 64])) == three_dimensions
    if three_dimensions is None:
        assert number_of(lambda: rotate([8, 4, 64], [1, 8, 1, 64])) == number
        assert number_of(lambda: rotate([2, 1000, 64], [2, 1, 64])) == number
    query, angles = npu(np.ones([2, 8, 4, 64]), "float32"), npu(np.ones([1, 5, 1, 64]), "float32")
    assert number_of(lambda: custom_operator.run("fused_rope", query, angles, angles)) == number


def normalised(operator, x, weight):
    y = operator(x, weight)[0]
    y.sum().backward()
    return y.numpy(), x.grad.numpy(), weight.grad.numpy()


def test_gradient_of_rms_norm(release, on_npu):
    """A vector has no gradient in the plugin's operator from 9.1.0 on; paddle_fused adds a dimension."""

    def vector():
        return npu(np.arange(1.0, 9.0), "float32", requires_grad=True)

    def of_plugin(x, weight):
        return custom_operator.run("rms_norm_npu", x, weight, 1e-6)

    number = 561002 if since(release, "9.1.0") else None
    assert number_of(lambda: of_plugin(vector(), vector())) is None
    assert number_of(lambda: normalised(of_plugin, vector(), vector())) == number
    assert number_of(lambda: compat.npu_rms_norm(vector(), vector())) == number
    with paddle.no_grad():
        assert number_of(lambda: compat.npu_rms_norm(vector(), vector())) is None

    def of_project(x, weight):
        return (paddle_fused.rms_norm(x, weight),)

    got = normalised(of_project, vector(), vector())
    assert paddle_fused.dispatch_log()[-1].backend == "ascend"
    for name in ("8.0.0", "9.1.0"):
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("VIRTUAL_NPU_CANN", name)
            for actual, expected in zip(normalised(of_project, vector(), vector()), got, strict=True):
                np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("card", ["", "910b", "910c", "950"])
def test_lists_of_grouped_matmul(release, card, monkeypatch):
    monkeypatch.setenv("VIRTUAL_NPU_CARD", card)
    longest = 1024 if card == "950" and since(release, "9.0.0") else 128
    assert contracts.limit("grouped_matmul.list") == longest


def test_every_change_has_a_source_and_a_place_in_the_releases():
    numbers = {rule.error_number for rule in contracts.RULES.values()}
    changes = [
        value for value in (*contracts.LIMITS.values(), *numbers) if isinstance(value, contracts.ByRelease)
    ]
    assert len(changes) >= 5 and contracts.CHANGES
    for change in (*changes, *contracts.CHANGES):
        assert change.source.startswith("https://") and change.since in RELEASES[1:], change


def test_the_page_has_a_column_for_each_release():
    table = [
        line.strip("| ").split(" | ")
        for line in page().partition("## Releases")[2].splitlines()
        if "|" in line
    ]
    head, _, *rows = table
    assert tuple(head[:-1]) == RELEASES  # the first cell is empty
    cells = {row[0]: row[1:-1] for row in rows}
    assert len(cells) == len(rows)
    assert cells["`attention.head_dim`"] == ["512"] * 4 + ["768"] * 5
    assert cells["`aclnnGroupedMatmulV5`"] == ["absent"] * 3 + ["present"] * 6
    assert cells["Rotary position embedding: error number for shapes"] == ["561002"] * 6 + ["561103"] * 3
    for name, values in cells.items():
        assert len(values) == len(RELEASES), name
        assert len(list(itertools.groupby(values))) == 2, name  # it changes once


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sizes"), [("8.0.RC2", "512"), ("8.3", "512 513 768"), ("9.1.0", "512 513 768")]
)
def test_the_virtual_npu_follows_the_release(text, sizes, run_program):
    result = run_program(HEAD_DIM, VIRTUAL_NPU_CANN=text)
    assert result.stdout.split() == sizes.split(), result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("card", "text", "is_refused"),
    [("910c", "8.1", True), ("910c", "8.2", False), ("910c", "", False), ("910b", "8.1", False)],
)
def test_the_910c_has_products_with_collectives_since_8_2(card, text, is_refused, run_program):
    result = run_program(GATHER, VIRTUAL_NPU_CARD=card, VIRTUAL_NPU_CANN=text)
    operator, reason = result.stdout.splitlines()
    assert ("910C from 8.2.RC1 on" in operator) is ("910C from 8.2.RC1 on" in reason) is is_refused, (
        result.stdout
    )
    assert is_refused or "hcom is nobody" in operator, result.stdout


GATHER = """
import paddle
from llm_npu.parallel.overlap import mc2
from llm_npu.parallel.overlap.product import GATHER, Product
from paddle_custom_device.npu import ops
paddle.set_device("npu:0")
x = paddle.ones([8, 256], "bfloat16")
try:
    ops.fused_allgather_mm(x, x.t(), None, "nobody", 2, 0, True, 0)
except Exception as error:
    print(" ".join(str(error).split()))
print(mc2.reason(Product(GATHER, 8, 256, 8, "bfloat16", 2), None))
"""
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


def test_limits_on_a_card_are_those_of_the_installed_release(run_python, tmp_path):
    """Without the virtual NPU, by the version of the CANN that set_env.sh names."""
    program = "from paddle_fused import cann_releases, contracts\n"
    program += "print(cann_releases.in_effect(), contracts.limit('attention.head_dim'))"
    installed = {"VIRTUAL_NPU_CANN": None, "CUSTOM_DEVICE_ROOT": None, "ASCEND_HOME_PATH": tmp_path}
    for version, expected in (("8.2.RC1", "8.2.RC1 512"), ("9.0.1", "9.0.0 768"), ("", "8.0.0 512")):
        (tmp_path / "version.cfg").write_text(f"toolkit_running_version=[1.0:{version}]" if version else "")
        assert run_python("-c", program, **installed).stdout.strip() == expected
    done = run_python("-c", program, **{**installed, "VIRTUAL_NPU_CANN": "8.3"})
    assert done.stdout.strip() == "8.3.RC1 768"
