"""The registrations of the operators are complete, and everything derived from them agrees."""

import ast
import importlib
import inspect
import pkgutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import paddle_fused
from llm_npu.config import FusedArguments
from llm_npu.surgery.registry import scan
from paddle_fused import dispatch, ops, registry

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("operator", registry.operators().values(), ids=lambda operator: operator.name)
def test_a_registration_names_what_is_there(operator):
    assert getattr(paddle_fused, operator.public) is operator.function()
    assert operator.cases() and all(case.operator == operator.name for case in operator.cases())
    sizes = dict.fromkeys(list(inspect.signature(operator.cost).parameters)[2:], 2)
    forward, both = (operator.cost(2, backward, **sizes) for backward in (False, True))
    assert 0 < forward.bytes <= both.bytes and 0 <= forward.flops <= both.flops
    assert operator.random_case(np.random.default_rng(0)).operator == operator.name


def test_the_names_for_editors_are_the_public_names():
    stub = ast.parse(Path(paddle_fused.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname: (node.module, alias.name) for node in imports for alias in node.names}
    assert sorted(names) == paddle_fused.__all__
    for name, (module, attribute) in names.items():
        home = importlib.import_module(f"paddle_fused.{module or attribute}")
        value = home if module is None else getattr(home, attribute)
        assert getattr(paddle_fused, name) is value


def test_every_folder_has_the_cases_of_its_operators():
    packages = {
        module.name for module in pkgutil.iter_modules(ops.__path__, "paddle_fused.ops.") if module.ispkg
    }
    assert packages == {operator.package for operator in registry.operators().values()}
    for package in packages:
        known = {operator.name for operator in registry.operators().values() if operator.package == package}
        cases = importlib.import_module(f"{package}.cases")
        assert {case.operator for case in cases.CASES} == set(cases.RANDOM_CASE) == known


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'softmax' .* add_rms_norm, apply_rotary"):
        registry.find("softmax")


def test_what_runs_is_an_operator_or_a_part_of_one():
    for operator in registry.operators().values():
        operator.function()
    importlib.import_module("paddle_fused.context_parallel.ring")  # collective: its tests need several ranks
    # apply_rotary is two calls of rotary_mul, and flashmask_attention one of flash_attention; the gradient of
    # a grouped product is one of its own.
    assert dispatch.OPERATORS.keys() - registry.operators().keys() == {
        "grouped_matmul_dweight",
        "ring_attention",
    }
    assert registry.operators().keys() - dispatch.OPERATORS.keys() == {"apply_rotary", "flashmask_attention"}


def test_the_switches_are_those_of_the_surgery_and_of_the_trainer():
    switches = {operator.switch for operator in registry.operators().values() if operator.switch}
    assert switches == {kernel.switch for kernel in scan().values()} | {"use_fused_adamw"}
    assert switches <= {field.name for field in fields(FusedArguments)}
